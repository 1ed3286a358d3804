"""Does the relevance lie on the object? Pointing game, mass and rank accuracy, and telling two objects apart."""

import torch
from torch import Tensor

from xattn.errors import ArgumentError
from xattn.evaluation._shapes import check_integer, mask_of, pixel_map


def pointing_game(relevance: Tensor, mask: Tensor, *, tolerance: int = 0) -> Tensor:
    """Whether the largest relevance lies on the object (Zhang et al. 2016), (B,) in 0..1, larger is better.

    Where several pixels share the largest value (all pixels of a patch do), the part of them on the object: what a
    random choice among them would score on average.

    Args:
        relevance: (B, h, w), (B, H, W), (B, 1, H, W) or (B, C, H, W); channels are summed, signs kept.
        mask: (B, H, W) or (B, 1, H, W), non-zero on the object.
        tolerance: Pixels (in both directions) by which the object is widened; published with 15.

    Returns:
        (B,) values; NaN for maps with NaN and masks without object.

    Raises:
        ArgumentError: If shapes do not fit, or `tolerance` is negative.
    """
    maps, inside = _flat(relevance, mask, tolerance)
    largest = maps == maps.amax(1, keepdim=True)
    return _blank((largest & inside).sum(1).double() / largest.sum(1), maps, inside)


def relevance_mass(relevance: Tensor, mask: Tensor) -> Tensor:
    """Part of the positive relevance that lies on the object (Arras et al. 2022), (B,) in 0..1, larger is better.

    Arguments and errors as in `pointing_game`; NaN also for maps without positive relevance.
    """
    maps, inside = _flat(relevance, mask)
    positive = maps.clamp(min=0)
    return _blank((positive * inside).sum(1) / positive.sum(1), maps, inside)


def relevance_rank(relevance: Tensor, mask: Tensor) -> Tensor:
    """Part of the K most relevant pixels on an object of K pixels (Arras et al. 2022), (B,) in 0..1, larger is better.

    Of pixels that tie for the last places, the part on the object counts: the mean over all ways to choose.
    Arguments and errors as in `pointing_game`.
    """
    maps, inside = _flat(relevance, mask)
    size = inside.sum(1)
    ordered = maps.sort(dim=1, descending=True).values
    cut = ordered.gather(1, (size - 1).clamp(min=0).unsqueeze(1))
    above, tied = maps > cut, maps == cut
    places = size - above.sum(1)
    hits = (above & inside).sum(1) + places * (tied & inside).sum(1).double() / tied.sum(1)
    return _blank(hits / size, maps, inside)


def class_discrimination(
    first_relevance: Tensor, second_relevance: Tensor, first_mask: Tensor, second_mask: Tensor
) -> dict[str, Tensor]:
    """On scenes with two objects: does the map for each object's class favour that object over the other?

    A map favours the object on which its mean relevance per pixel is larger. A map that does not depend on the class
    favours the same object both times, so it is never right for both.

    Args:
        first_relevance: Relevance for the class of the first object, in any shape of `pointing_game`.
        second_relevance: Relevance for the class of the second object.
        first_mask: (B, H, W), non-zero on the first object.
        second_mask: (B, H, W), non-zero on the second object.

    Returns:
        "first", "second": (B,) 1 where that map favours its own object. "per_target": their mean; 0.5 by chance.
        "both": 1 where both do; 0 for a class-agnostic map. Larger is better; NaN for maps with NaN.

    Raises:
        ArgumentError: If shapes do not fit.
    """
    if first_mask.shape != second_mask.shape:
        raise ArgumentError(
            f"second_mask: expected the shape of first_mask {tuple(first_mask.shape)}, got {tuple(second_mask.shape)}"
        )
    rates = []
    for relevance, own, other in (
        (first_relevance, first_mask, second_mask),
        (second_relevance, second_mask, first_mask),
    ):
        maps, inside = _flat(relevance, own)
        _, elsewhere = _flat(relevance, other)
        favoured = _mean_on(maps, inside) > _mean_on(maps, elsewhere)
        rates.append(_blank(favoured.to(maps.dtype), maps, inside & elsewhere.any(1, keepdim=True)))
    first, second = rates
    return {"first": first, "second": second, "per_target": (first + second) / 2, "both": first * second}


def _flat(relevance: Tensor, mask: Tensor, tolerance: int = 0) -> tuple[Tensor, Tensor]:
    """Maps (B, n), float64, and object (B, n) bool."""
    mask = mask_of(mask)
    check_integer("tolerance", tolerance, 0)
    inside = mask != 0
    if tolerance:
        widened = torch.nn.functional.max_pool2d(inside.float(), 2 * tolerance + 1, stride=1, padding=tolerance)
        inside = widened > 0
    return pixel_map(relevance, mask).double().flatten(1), inside.flatten(1)


def _mean_on(maps: Tensor, inside: Tensor) -> Tensor:
    return torch.where(inside, maps, 0.0).sum(1) / inside.sum(1)


def _blank(values: Tensor, maps: Tensor, inside: Tensor) -> Tensor:
    """Values with NaN where the map has NaN or there is no object."""
    return values.masked_fill(maps.isnan().any(1) | ~inside.any(1), torch.nan)
