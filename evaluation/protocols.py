"""Published protocols under their own names: the 2021 perturbation test, insertion, deletion, ROAD, average drop."""

from collections.abc import Sequence

import torch
from torch import Tensor

from xattn._state import undisturbed
from xattn.attributions._targets import Target
from xattn.evaluation._curve import Curve
from xattn.evaluation._ranking import ALL_FRACTIONS, Order
from xattn.evaluation._scores import PUBLISHED_SCORES, Score, batched_logits, resolve_class, score_of
from xattn.evaluation._shapes import Statistics, check_images, min_max, normalisation, pixel_map, undefined_maps
from xattn.evaluation.fill import Fill
from xattn.evaluation.perturbation import Forward, Removal, Unit, perturbation_curves


def perturbation_2021(
    forward: Forward,
    inputs: Tensor,
    relevance: Tensor,
    target: Target,
    *,
    order: Order = "positive",
    mean: Statistics = None,
    std: Statistics = None,
    batch_size: int = 32,
) -> dict[str, Curve]:
    """The published perturbation test (Chefer, Gur and Wolf, CVPR 2021), quantity by quantity.

    Fractions 0, 0.1 ... 0.9; int(p * H * W) pixels set to black; patch maps upsampled bilinearly; NaN goes first. The
    target is the data set's label. `curves["hit"].auc("published_2021")` is the number in the paper's tables.

    Returns:
        Curves "hit", "dissimilarity" (log of target probability over the second largest), "logit_difference" and
        "probability_difference" (change of the maximum over classes), all (B, 10).
    """
    removal = Removal(order, ALL_FRACTIONS[:-1], interpolation="bilinear", rounding="down", nan="first")
    return perturbation_curves(
        forward, inputs, relevance, target, removal, PUBLISHED_SCORES, mean=mean, std=std, batch_size=batch_size
    )


def deletion(
    forward: Forward,
    inputs: Tensor,
    relevance: Tensor,
    target: Target = None,
    *,
    fractions: Sequence[float] | Tensor = ALL_FRACTIONS,
    fill: Fill = "black",
    score: Score = "probability",
    unit: Unit = "pixel",
    mean: Statistics = None,
    std: Statistics = None,
    grid: tuple[int, int] | None = None,
    seed: int = 0,
    batch_size: int = 32,
) -> Curve:
    """Deletion (Petsiuk et al. 2018, RISE): remove the most relevant first; a small area is good.

    Arguments and errors as in `perturbation`.
    """
    removal = Removal("positive", fractions, fill, unit, grid, seed=seed)
    return perturbation_curves(
        forward, inputs, relevance, target, removal, (score,), mean=mean, std=std, batch_size=batch_size
    )[score]


def insertion(
    forward: Forward,
    inputs: Tensor,
    relevance: Tensor,
    target: Target = None,
    *,
    fractions: Sequence[float] | Tensor = ALL_FRACTIONS,
    fill: Fill = "blur",
    score: Score = "probability",
    unit: Unit = "pixel",
    mean: Statistics = None,
    std: Statistics = None,
    grid: tuple[int, int] | None = None,
    seed: int = 0,
    batch_size: int = 32,
) -> Curve:
    """Insertion (Petsiuk et al. 2018, RISE): reveal the most relevant first, on a blurred image; a large area is good.

    `fractions` and the curve's x-axis are the revealed part. Other arguments and errors as in `perturbation`.
    """
    removal = Removal("positive", fractions, fill, unit, grid, insert=True, seed=seed)
    return perturbation_curves(
        forward, inputs, relevance, target, removal, (score,), mean=mean, std=std, batch_size=batch_size
    )[score]


def road(
    forward: Forward,
    inputs: Tensor,
    relevance: Tensor,
    target: Target = None,
    *,
    order: Order = "positive",
    fractions: Sequence[float] | Tensor = ALL_FRACTIONS[1:-1],
    score: Score = "accuracy",
    seed: int = 0,
    batch_size: int = 32,
) -> Curve:
    """Remove and debias (Rong et al. 2022): pixels are replaced by a noisy linear imputation from their neighbours.

    `order="positive"` is their "MoRF" (small area good), "negative" their "LeRF" (large area good). Other arguments
    and errors as in `perturbation`.
    """
    removal = Removal(order, fractions, "linear", seed=seed)
    return perturbation_curves(forward, inputs, relevance, target, removal, (score,), batch_size=batch_size)[score]


def average_drop_increase(
    forward: Forward,
    inputs: Tensor,
    relevance: Tensor,
    target: Target = None,
    *,
    mean: Statistics = None,
    std: Statistics = None,
    batch_size: int = 32,
) -> dict[str, Tensor]:
    """Average drop and increase in confidence (Chattopadhay et al. 2018), per sample.

    The image is darkened by the relevance, scaled to 0..1 per sample, in pixel space before normalisation.

    Returns:
        "drop" (B,): max(0, p - p_darkened) / p, 0..1, lower is better. "increase" (B,): 1 where p_darkened > p,
        higher is better. Both NaN where the map is constant or not finite; "undefined" (B,) bool marks these.
    """
    check_images(inputs)
    maps = pixel_map(relevance, inputs)
    undefined = undefined_maps(maps)
    weight = min_max(maps).to(inputs.dtype).nan_to_num(0.0).unsqueeze(1)
    offset, scale = normalisation(forward, inputs, mean, std)
    black = -offset / scale
    with torch.no_grad(), undisturbed(forward):
        before = batched_logits(forward, inputs, batch_size)
        index = resolve_class(before, target)
        after = batched_logits(forward, black + weight * (inputs - black), batch_size)
    p, q = score_of("probability", torch.stack([before, after], 1), index, before).unbind(1)
    drop = ((p - q).clamp(min=0) / p).masked_fill(undefined, torch.nan)
    increase = (q > p).to(p.dtype).masked_fill(undefined, torch.nan)
    return {"drop": drop, "increase": increase, "undefined": undefined}
