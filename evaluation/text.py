"""Explanations of sentences judged: does the top word decide, and what does the model do without the top words?

Relevance is (B, N) over the tokens of padded sentences, as `attribute(..., resolution="token")` gives it. Whatever it
says about padding and special tokens is ignored.

Example, with a model of `xattn.load("text")`::

    ids, mask = model.preprocess(texts)
    relevance = TokenRank(model).attribute(ids, additional_forward_args=mask, resolution="token")
    groups = word_groups(model, texts)                                  # whole words go, not pieces of them
    comprehensiveness(model, ids, mask, relevance, groups=groups)       # (B,), larger is better
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from xattn._state import undisturbed
from xattn.attributions._targets import Target
from xattn.errors import ArgumentError
from xattn.evaluation._curve import Curve
from xattn.evaluation._ranking import ALL_FRACTIONS, Order, check_fractions, removal_rank
from xattn.evaluation._scores import SCORES, Score, call_logits, resolve_class, score_of
from xattn.evaluation._shapes import check_choice, check_integer
from xattn.markov._numeric import widen

if TYPE_CHECKING:
    from xattn.models.text_model import TextModel

TextHow: TypeAlias = Literal["mask", "delete", "replace"]

ERASER_FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.5)


def word_groups(model: "TextModel", texts: Sequence[str]) -> Tensor:
    """(B, N) number of the word that each token belongs to; -1 for special tokens and padding."""
    sentences = [model.words(text) for text in texts]
    groups = torch.full((len(texts), max(len(words.tokens) for words in sentences)), -1)
    for row, words in zip(groups, sentences, strict=True):
        for number, (start, stop) in enumerate(words.spans):
            row[start:stop] = number
    return groups.to(model.device)


def rationale_hit(relevance: Sequence[Tensor], rationales: Sequence[Sequence[int]]) -> Tensor:
    """Whether the most relevant word is one of those that decide, (B,) in 0..1, larger is better.

    Where several words share the largest value, the part of them that decides: what a random choice among them would
    score on average.

    Args:
        relevance: For each sentence (words,), as `Words.per_word` gives it.
        rationales: For each sentence the positions of the deciding words.

    Returns:
        (B,) float64; NaN for relevance with NaN and sentences without a deciding word.

    Raises:
        ArgumentError: If the lengths differ, or a position is no word.
    """
    if len(relevance) != len(rationales) or not len(relevance):
        raise ArgumentError(
            f"rationales: expected one per sentence ({len(relevance)}, at least 1), got {len(rationales)}"
        )
    hits = []
    for words, positions in zip(relevance, rationales, strict=True):
        if words.ndim != 1 or not all(0 <= position < len(words) for position in positions):
            raise ArgumentError(
                f"rationales: expected positions of words in relevance (words,), got {list(positions)} for shape "
                f"{tuple(words.shape)}"
            )
        top = (words == words.amax()).cpu().double()
        defined = len(positions) > 0 and not bool(words.isnan().any())
        hits.append(float(top[list(positions)].sum() / top.sum()) if defined else math.nan)
    return torch.tensor(hits, dtype=torch.float64)


def token_removal(
    forward: Callable[..., Any],
    ids: Tensor,
    mask: Tensor,
    relevance: Tensor,
    target: Target = None,
    *,
    order: Order = "positive",
    fractions: Sequence[float] | Tensor = ALL_FRACTIONS,
    how: TextHow = "mask",
    fill: int | None = None,
    groups: Tensor | None = None,
    score: Score = "probability",
    batch_size: int = 64,
) -> Curve:
    """Take away ceil(p n) of a sentence's n words by relevance and follow the score of the target.

    Equal relevance goes from left to right. The curve's fractions are the nominal ones, since sentences differ in n.

    Args:
        forward: `forward(ids, mask)` returns logits; nothing is left on it.
        ids: (B, N) token ids, padded.
        mask: (B, N), 0 at padding.
        relevance: (B, N).
        target: int, list or tensor (B,); None is the predicted class of the whole sentence.
        order: "positive" takes the most relevant first, "negative" the least relevant.
        fractions: Increasing fractions in 0..1.
        how: "mask" hides a token from attention, "delete" closes the gap, "replace" puts `fill` in its place.
        fill: Token id for "replace".
        groups: (B, N) what is taken away together, such as `word_groups`; -1 always stays. None takes single tokens and
            keeps the first and the last one of each sentence.
        score: "probability", "accuracy", "logit" or "log_odds" of the target.
        batch_size: Largest number of rows of one forward call; no influence on the result.

    Returns:
        A `Curve` with values (B, S); NaN where relevance is not finite.

    Raises:
        ArgumentError: If an argument is out of range or shapes do not fit.
    """
    check_choice("how", how, get_args(TextHow))
    check_choice("score", score, SCORES)
    if (how == "replace") != (fill is not None):
        raise ArgumentError(f'fill: expected a token id with how="replace" and nothing else, got {fill!r} with {how!r}')
    check_integer("batch_size", batch_size, 1)
    nominal = check_fractions(fractions)
    groups = _check(ids, mask, relevance, groups)
    totals, present = _totals(relevance, groups)
    rank = removal_rank(totals, order)
    # What a sentence lacks is -inf and so last in "positive" order; in "negative" order it would be first.
    rank = rank - (~present).sum(1, keepdim=True) if order == "negative" else rank
    count = present.sum(1)
    steps = []
    for fraction in nominal:
        removed = rank < torch.tensor([[math.ceil(fraction * n - 1e-9)] for n in count.tolist()], device=ids.device)
        gone = removed.gather(1, groups.clamp(min=0)) & (groups >= 0)
        steps.append(_without(ids, mask, gone, how, fill))
    with torch.no_grad(), undisturbed(forward):
        clean = sentence_logits(forward, ids, mask, batch_size)
        index = resolve_class(clean, target)
        logits = sentence_logits(
            forward, torch.cat([i for i, _ in steps]), torch.cat([m for _, m in steps]), batch_size
        )
    stacked = logits.view(len(nominal), len(ids), -1).transpose(0, 1)
    undefined = (present & ~totals.isfinite()).any(1)
    values = score_of(score, stacked, index, clean).masked_fill(undefined.unsqueeze(1), torch.nan)
    return Curve(
        values.new_tensor(nominal),
        values,
        undefined=undefined,
        constant=totals.amax(1) == totals.masked_fill(~present, torch.inf).amin(1),
        target=index,
        settings={"how": how, "order": order, "unit": "token", "score": score},
        higher_is_better=order == "negative",
    )


def comprehensiveness(
    forward: Callable[..., Any],
    ids: Tensor,
    mask: Tensor,
    relevance: Tensor,
    target: Target = None,
    *,
    fractions: Sequence[float] = ERASER_FRACTIONS,
    **options: Any,  # noqa: ANN401
) -> Tensor:
    """Probability lost when the most relevant words are taken away (DeYoung et al. 2020), (B,), larger is better.

    The mean over `fractions`; arguments as in `token_removal`.
    """
    curve = token_removal(forward, ids, mask, relevance, target, fractions=(0.0, *fractions), **options)
    return (curve.values[:, :1] - curve.values[:, 1:]).mean(1)


def sufficiency(
    forward: Callable[..., Any],
    ids: Tensor,
    mask: Tensor,
    relevance: Tensor,
    target: Target = None,
    *,
    fractions: Sequence[float] = ERASER_FRACTIONS,
    **options: Any,  # noqa: ANN401
) -> Tensor:
    """Probability lost when only the most relevant words are kept (DeYoung et al. 2020), (B,), smaller is better.

    The mean over `fractions` of what is kept; arguments as in `token_removal`.
    """
    gone = tuple(1 - fraction for fraction in reversed(fractions))
    options["order"] = "negative"
    curve = token_removal(forward, ids, mask, relevance, target, fractions=(0.0, *gone), **options)
    return (curve.values[:, :1] - curve.values[:, 1:]).mean(1)


def _check(ids: Tensor, mask: Tensor, relevance: Tensor, groups: Tensor | None) -> Tensor:
    """(B, N) groups, -1 also at padding."""
    for name, values in (("mask", mask), ("relevance", relevance), ("groups", groups)):
        if values is not None and (ids.ndim != 2 or values.shape != ids.shape):
            raise ArgumentError(
                f"{name}: expected the shape (B, N) of ids {tuple(ids.shape)}, got {tuple(values.shape)}"
            )
    valid = mask.bool()
    if groups is None:
        order = valid.cumsum(1)
        inner = valid & (order > 1) & (order < valid.sum(1, keepdim=True))
        groups = torch.arange(ids.shape[1], device=ids.device).expand_as(ids).masked_fill(~inner, -1)
    groups = groups.masked_fill(~valid, -1)
    empty = (groups < 0).all(1).nonzero().flatten().tolist()
    if empty:
        raise ArgumentError(f"groups: nothing can be taken away in the sentences {empty}")
    return groups


def _totals(relevance: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """(B, G) relevance of each group, and whether a sentence has it; -inf where it has not."""
    values = widen(relevance.detach()).masked_fill(groups < 0, 0)
    shape = (len(groups), int(groups.max()) + 1)
    places = groups.clamp(min=0)
    totals = values.new_zeros(shape).scatter_add(1, places, values)
    sizes = values.new_zeros(shape).scatter_add(1, places, (groups >= 0).to(values))
    return totals.masked_fill(sizes == 0, -torch.inf), sizes > 0


def _without(ids: Tensor, mask: Tensor, gone: Tensor, how: TextHow, fill: int | None) -> tuple[Tensor, Tensor]:
    if fill is not None:
        return ids.masked_fill(gone, fill), mask
    shown = mask.masked_fill(gone, 0)
    if how == "mask":
        return ids, shown
    front = (shown == 0).to(torch.int8).argsort(dim=1, stable=True)
    return ids.gather(1, front), shown.gather(1, front)


def sentence_logits(forward: Callable[..., Any], ids: Tensor, mask: Tensor, batch_size: int) -> Tensor:
    """Logits (B, classes) of padded sentences, at most `batch_size` rows at a time."""
    parts = zip(ids.split(batch_size), mask.split(batch_size), strict=True)
    return torch.cat([call_logits(lambda rows, shown=shown: forward(rows, shown), rows) for rows, shown in parts])
