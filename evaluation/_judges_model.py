"""Judges that ask the model: perturbation, insertion and deletion, token masking."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from xattn.evaluation._ranking import ALL_FRACTIONS
from xattn.evaluation._scores import Score
from xattn.evaluation.fill import Fill
from xattn.evaluation.judges import BOTH, Judge, Measured, Orders, metric, register
from xattn.evaluation.masking import How, token_masking
from xattn.evaluation.metrics import Metric
from xattn.evaluation.perturbation import Removal, Unit, perturbation_curves
from xattn.evaluation.protocols import deletion, insertion, perturbation_2021

if TYPE_CHECKING:
    from xattn.evaluation._chunk import Chunk


def judge_perturbation(
    chunk: "Chunk",
    relevance: Tensor,
    *,
    orders: Orders = BOTH,
    fractions: Sequence[float] = ALL_FRACTIONS,
    fill: Fill = "black",
    score: Score = "probability",
    unit: Unit = "pixel",
) -> Mapping[str, Measured]:
    """`perturbation` in both orders, with normalised areas."""
    measured: dict[str, Measured] = {}
    for order in orders:
        grid = chunk.grid(relevance) if unit == "patch" else None
        removal = Removal(order, fractions, fill, unit, grid, seed=chunk.seed)
        curve = perturbation_curves(
            chunk.shared, chunk.inputs, relevance, chunk.target, removal, (score,), **_call(chunk)
        )
        measured[order] = Measured.of(curve[score])
    return measured


def judge_perturbation_2021(chunk: "Chunk", relevance: Tensor, *, orders: Orders = BOTH) -> Mapping[str, Measured]:
    """`perturbation_2021`: area under the accuracy, as published."""
    return {
        order: Measured.of(
            perturbation_2021(chunk.shared, chunk.inputs, relevance, chunk.target, order=order, **_call(chunk))["hit"],
            "published_2021",
        )
        for order in orders
    }


def judge_insertion_deletion(
    chunk: "Chunk",
    relevance: Tensor,
    *,
    fractions: Sequence[float] = ALL_FRACTIONS,
    insertion_fill: Fill = "blur",
    deletion_fill: Fill = "black",
    score: Score = "probability",
    unit: Unit = "pixel",
) -> Mapping[str, Measured]:
    """`insertion` and `deletion`, with normalised areas."""
    common: dict[str, Any] = {"fractions": fractions, "score": score, "unit": unit, "seed": chunk.seed, **_call(chunk)}
    common["grid"] = chunk.grid(relevance) if unit == "patch" else None
    data = chunk.shared, chunk.inputs, relevance, chunk.target
    return {
        "insertion": Measured.of(insertion(*data, fill=insertion_fill, **common)),
        "deletion": Measured.of(deletion(*data, fill=deletion_fill, **common)),
    }


def judge_token_masking(
    chunk: "Chunk",
    relevance: Tensor,
    *,
    how: Sequence[How] = ("fill", "drop", "attention"),
    orders: Orders = ("positive",),
    fractions: Sequence[float] | None = None,
    fill: Fill = "black",
    score: Score = "probability",
) -> Mapping[str, Measured]:
    """`token_masking` in each of the ways, with normalised areas."""
    measured = {}
    for way in how:
        for order in orders:
            curve = token_masking(
                chunk.shared,
                chunk.inputs,
                relevance,
                chunk.target,
                how=way,
                order=order,
                fractions=fractions,
                score=score,
                fill=fill,
                grid=chunk.grid(relevance),
                layout=chunk.layout,
                seed=chunk.seed,
                **_call(chunk),
            )
            measured[f"{way}_{order}"] = Measured.of(curve)
    return measured


def _call(chunk: "Chunk") -> dict[str, Any]:
    return {"mean": chunk.mean, "std": chunk.std, "batch_size": chunk.batch_size}


_ORDERS = tuple(metric(order, f"perturbation_{order}") for order in BOTH)
_WAYS: tuple[How, ...] = ("fill", "drop", "attention")
_TOKENS = tuple(metric(f"{way}_{order}", f"token_masking_{order}") for way in _WAYS for order in BOTH)
_HIT = tuple(
    Metric(m.name, m.higher_is_better, (0.0, 0.9), False, True, f"{m.about}; accuracy, trapezoid over 0..0.9")
    for m in _ORDERS
)

register(Judge("perturbation", judge_perturbation, _ORDERS, partial=True))
register(Judge("perturbation-2021", judge_perturbation_2021, _HIT, partial=True))
register(Judge("insertion-deletion", judge_insertion_deletion, (metric("insertion"), metric("deletion"))))
register(Judge("token-masking", judge_token_masking, _TOKENS, partial=True))
