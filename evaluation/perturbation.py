"""Perturbation curves: how a score falls as pixels or patches are removed in the order of their relevance."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from xattn._state import undisturbed
from xattn.attributions._targets import Target
from xattn.evaluation._curve import Curve
from xattn.evaluation._ranking import (
    ALL_FRACTIONS,
    Nan,
    Order,
    Rounding,
    cells_removed,
    check_fractions,
    removal_rank,
)
from xattn.evaluation._scores import (
    PUBLISHED_SCORES,
    SCORES,
    Score,
    batched_logits,
    call_logits,
    resolve_class,
    score_of,
)
from xattn.evaluation._shapes import (
    Interpolation,
    Statistics,
    check_choice,
    check_forward,
    check_images,
    check_integer,
    constant_maps,
    normalisation,
    patch_map,
    pixel_map,
)
from xattn.evaluation._shared import recalled
from xattn.evaluation._tokens import find_grid
from xattn.evaluation.fill import Fill, Filler, make_fill

_NUMBERS = 2**18  # in the pictures made at once, where these are small: few enough to stay in the cache

Unit: TypeAlias = Literal["pixel", "patch"]
Forward: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Removal:
    """How pixels are removed: everything of `perturbation` that does not depend on data or score.

    Attributes:
        order: "positive" removes the most relevant first, "negative" the least relevant.
        fractions: Increasing fractions in 0..1.
        fill: What stands in for removed pixels, see `xattn.evaluation.fill`.
        unit: Whether whole pixels (all channels) or whole patches go.
        grid: (h, w) of the patches; None takes the map's own, or reads it off the model.
        interpolation: How a patch map is spread over pixels before these are ranked.
        rounding: "nearest" removes round(p * n) cells, "down" int(p * n).
        nan: "undefined" gives NaN curves for samples with NaN relevance; "first" removes these cells first.
        insert: Reveal instead: at fraction p only the p * n first cells are shown.
        seed: Of the fill.
    """

    order: Order = "positive"
    fractions: Sequence[float] | Tensor = ALL_FRACTIONS
    fill: Fill = "black"
    unit: Unit = "pixel"
    grid: tuple[int, int] | None = None
    interpolation: Interpolation = "nearest"
    rounding: Rounding = "nearest"
    nan: Nan = "undefined"
    insert: bool = False
    seed: int = 0


def perturbation(
    forward: Forward,
    inputs: Tensor,
    relevance: Tensor,
    target: Target = None,
    *,
    order: Order = "positive",
    fractions: Sequence[float] | Tensor = ALL_FRACTIONS,
    fill: Fill = "black",
    score: Score = "probability",
    unit: Unit = "pixel",
    mean: Statistics = None,
    std: Statistics = None,
    grid: tuple[int, int] | None = None,
    interpolation: Interpolation = "nearest",
    nan: Nan = "undefined",
    seed: int = 0,
    batch_size: int = 32,
) -> Curve:
    """Remove pixels or patches by relevance and follow the score of the target.

    Exactly round(p * H * W) pixels (or round(p * h * w) patches) are replaced at fraction p, all channels at once,
    each time starting from the clean image. Equal relevance goes row by row from the top left.

    Args:
        forward: Module or callable from images to logits; its state is as before afterwards.
        inputs: (B, C, H, W) images as the model gets them.
        relevance: (B, h, w), (B, H, W), (B, 1, H, W) or (B, C, H, W); channels are summed, signs kept.
        target: int, list or tensor (B,); None is the predicted class of the clean image, resolved once.
        order: "positive": most relevant first, a steep fall (small area) is good. "negative": least relevant first,
            a large area is good.
        fractions: Increasing fractions in 0..1.
        fill: "black" (zero before normalisation), "mean", "blur", "noise" or "linear".
        score: "probability", "accuracy", "logit" or "log_odds" of the target.
        unit: "pixel" or "patch".
        mean: Of the normalisation, per channel. With None for both, an xattn model's own are taken; any other function
            is taken to receive values in [0, 1].
        std: Of the normalisation, per channel.
        grid: (h, w) of the patches for `unit="patch"`; None takes the map's own grid, or reads it off the model where
            relevance is given per pixel.
        interpolation: "nearest" or "bilinear", from a patch map to pixels.
        nan: "undefined" or "first", see `Removal`.
        seed: Of the fill's noise.
        batch_size: Largest number of rows of one forward call; no influence on the result.

    Returns:
        A `Curve` with values (B, S).

    Raises:
        ArgumentError: If an argument is out of range or shapes do not fit.
    """
    removal = Removal(order, fractions, fill, unit, grid, interpolation, nan=nan, seed=seed)
    check_choice("score", score, SCORES)
    return perturbation_curves(
        forward, inputs, relevance, target, removal, (score,), mean=mean, std=std, batch_size=batch_size
    )[score]


@torch.no_grad()
def perturbation_curves(
    forward: Forward,
    inputs: Tensor,
    relevance: Tensor,
    target: Target,
    removal: Removal,
    scores: Sequence[str] = ("probability",),
    *,
    mean: Statistics = None,
    std: Statistics = None,
    batch_size: int = 32,
) -> dict[str, Curve]:
    """Several scores from the same forward passes, see `perturbation`.

    Raises:
        ArgumentError: If an argument is out of range or shapes do not fit.
    """
    check_forward(forward)
    check_images(inputs)
    check_integer("seed", removal.seed, 0)
    check_choice("unit", removal.unit, get_args(Unit))
    check_choice("nan", removal.nan, get_args(Nan))
    for score in scores:
        check_choice("score", score, SCORES + PUBLISHED_SCORES)
    nominal = check_fractions(removal.fractions)
    maps = (
        patch_map(relevance, inputs, removal.grid or find_grid(forward, inputs, relevance))
        if removal.unit == "patch"
        else pixel_map(relevance, inputs, removal.interpolation)
    )
    cells = maps[0].numel()
    counts = cells_removed(nominal, cells, removal.rounding)
    mean, std = normalisation(forward, inputs, mean, std)
    replace = make_fill(removal.fill, inputs, mean, std, removal.seed)
    rank = pixel_map(removal_rank(maps, removal.order).view_as(maps).float(), inputs)

    with undisturbed(forward):
        clean = batched_logits(forward, inputs, batch_size)
        index = resolve_class(clean, target)
        fill = (removal.fill, removal.seed, *mean.flatten().tolist(), *std.flatten().tolist())
        pictures = _Pictures(forward, inputs, replace, fill, batch_size)
        logits = _logits(pictures, rank, counts, removal.insert, clean)

    undefined = maps.flatten(1).isnan().any(1) & (removal.nan == "undefined")
    settings = {name: getattr(removal, name) for name in ("order", "fill", "unit", "rounding", "nan", "insert", "seed")}
    fractions = torch.tensor([count / cells for count in counts], dtype=logits.dtype, device=logits.device)
    curves = {}
    for score in scores:
        values = score_of(score, logits, index, clean).masked_fill(undefined.unsqueeze(1), torch.nan)
        curves[score] = Curve(
            fractions,
            values,
            nominal=torch.tensor(nominal, dtype=logits.dtype, device=logits.device),
            undefined=undefined,
            constant=constant_maps(maps),
            target=index,
            settings={**settings, "score": score},
            higher_is_better=removal.insert != (removal.order == "negative"),
        )
    return curves


@dataclass(frozen=True)
class _Pictures:
    """Pictures of which something is removed, and what the model says of them.

    Attributes:
        forward: The model.
        inputs: (B, C, H, W) clean pictures.
        replace: Makes the pictures.
        fill: What tells this `replace` from another one.
        batch_size: Largest number of rows of one forward call.
    """

    forward: Forward
    inputs: Tensor
    replace: Filler
    fill: Hashable
    batch_size: int

    def logits(self, removed: Tensor) -> Tensor:
        """Logits (S, B, C) for (S, B, H, W), 1 where a pixel is removed, else 0."""
        images = self.replace(removed)
        parts = images.flatten(0, 1).split(self.batch_size)
        return torch.cat([call_logits(self.forward, part) for part in parts]).view(*images.shape[:2], -1)

    def blank(self) -> Tensor:
        """Logits (B, C) with everything removed: the same for every map."""
        everything = torch.ones(1, len(self.inputs), *self.inputs.shape[2:], device=self.inputs.device)
        key = ("everything removed", self.fill, self.batch_size)
        return recalled(self.forward, self.inputs, key, lambda: self.logits(everything)[0])


def _logits(pictures: _Pictures, rank: Tensor, counts: Sequence[int], insert: bool, clean: Tensor) -> Tensor:
    """Logits (B, S, C): every sample at every step."""
    cells = int(rank.amax()) + 1
    logits = clean.unsqueeze(1).repeat(1, len(counts), 1)
    bare = [step for step, count in enumerate(counts) if (count == 0 if insert else count >= cells)]
    if bare:
        logits[:, bare] = pictures.blank().unsqueeze(1)
    limits = torch.tensor(counts, dtype=rank.dtype, device=rank.device).view(-1, 1, 1, 1)
    first, last = (sum(count < least for count in counts) for least in (1, cells))
    together = max(1, pictures.batch_size // len(rank), _NUMBERS // pictures.inputs.numel())
    for start in range(first, last, together):
        steps = slice(start, min(start + together, last))
        # Ranks are whole numbers. This is rank < limit as 0 or 1, and faster on a CPU than to compare and convert.
        removed = (limits[steps] - rank).clamp_(0, 1)
        logits[:, steps] = pictures.logits(1 - removed if insert else removed).transpose(0, 1)
    return logits
