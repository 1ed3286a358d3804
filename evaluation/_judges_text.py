"""Judges of explanations of sentences: rationale, token removal, comprehensiveness and sufficiency."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from xattn.evaluation._ranking import ALL_FRACTIONS
from xattn.evaluation._scores import Score
from xattn.evaluation.judges import BOTH, Judge, Measured, Orders, metric, register
from xattn.evaluation.text import ERASER_FRACTIONS, comprehensiveness, rationale_hit, sufficiency, token_removal

if TYPE_CHECKING:
    from xattn.evaluation._text_chunk import TextChunk


def judge_rationale(chunk: "TextChunk", relevance: Tensor) -> Mapping[str, Measured]:
    """`rationale_hit` of whole words; undefined where the explained class is none that the sentence is about."""
    rationales = [
        sample.rationales[sample.object_labels.index(target)] if target in sample.object_labels else ()
        for sample, target in zip(chunk.samples, chunk.target.tolist(), strict=True)
    ]
    return {"rationale_hit": Measured(rationale_hit(chunk.per_word(relevance), rationales))}


def judge_token_removal(
    chunk: "TextChunk",
    relevance: Tensor,
    *,
    orders: Orders = BOTH,
    fractions: Sequence[float] = ALL_FRACTIONS,
    how: Literal["mask", "delete"] = "mask",
    score: Score = "probability",
) -> Mapping[str, Measured]:
    """`token_removal` of whole words in both orders, with normalised areas."""
    measured = {}
    for order in orders:
        curve = token_removal(
            chunk.forward,
            *_call(chunk, relevance),
            order=order,
            fractions=fractions,
            how=how,
            score=score,
            groups=chunk.groups,
            batch_size=chunk.batch_size,
        )
        measured[f"removal_{order}"] = Measured.of(curve)
    return measured


def judge_eraser(
    chunk: "TextChunk",
    relevance: Tensor,
    *,
    fractions: Sequence[float] = ERASER_FRACTIONS,
    how: Literal["mask", "delete"] = "mask",
) -> Mapping[str, Measured]:
    """`comprehensiveness` and `sufficiency` of whole words."""
    options: dict[str, Any] = {
        "fractions": fractions,
        "how": how,
        "groups": chunk.groups,
        "batch_size": chunk.batch_size,
    }
    data = _call(chunk, relevance)
    return {
        "comprehensiveness": Measured(comprehensiveness(chunk.forward, *data, **options)),
        "sufficiency": Measured(sufficiency(chunk.forward, *data, **options)),
    }


def _call(chunk: "TextChunk", relevance: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return chunk.inputs, chunk.mask, relevance, chunk.target


_REMOVAL = tuple(metric(f"removal_{order}") for order in BOTH)
_ERASER = (metric("comprehensiveness"), metric("sufficiency"))

register(Judge("rationale", judge_rationale, (metric("rationale_hit"),), needs_objects=True, reads="text"))
register(Judge("token-removal", judge_token_removal, _REMOVAL, reads="text", partial=True))
register(Judge("eraser", judge_eraser, _ERASER, reads="text"))
