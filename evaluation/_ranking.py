"""Which pixels, patches or tokens go first, and how many go at a step."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.evaluation._shapes import check_choice

Order: TypeAlias = Literal["positive", "negative"]
Nan: TypeAlias = Literal["undefined", "first"]
Rounding: TypeAlias = Literal["nearest", "down"]

ALL_FRACTIONS = tuple(step / 10 for step in range(11))


def removal_rank(maps: Tensor, order: Order) -> Tensor:
    """Position of each cell in the order of removal, (B, n): 0 goes first.

    "positive" removes the most relevant first, "negative" the least relevant. Ties go row by row from the top left;
    NaN goes before everything else in both directions, as in the published evaluation.

    Args:
        maps: (B, h, w) or (B, n) relevance.
        order: "positive" or "negative".

    Raises:
        ArgumentError: For an unknown order.
    """
    check_choice("order", order, get_args(Order))
    flat = maps.flatten(1)
    # NaN counts as larger than everything in a sort, and so does its negative.
    first = (flat if order == "positive" else -flat).argsort(dim=1, descending=True, stable=True)
    positions = torch.arange(flat.shape[1], device=flat.device).expand_as(first)
    return torch.empty_like(first).scatter_(1, first, positions)


def check_fractions(fractions: Sequence[float] | Tensor) -> list[float]:
    """Fractions as an increasing list.

    Raises:
        ArgumentError: If there are none, or they do not increase within 0..1.
        ArgumentTypeError: If they are no sequence of numbers.
    """
    try:
        found = [float(f) for f in fractions]
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"fractions: expected increasing numbers in 0..1, got {fractions!r}") from None
    if isinstance(fractions, str):  # whose letters may be digits
        raise ArgumentTypeError(f"fractions: expected increasing numbers in 0..1, got {fractions!r}")
    increasing = all(a < b for a, b in pairwise(found))
    if not found or not increasing or not (found[0] >= 0 and found[-1] <= 1):
        raise ArgumentError(f"fractions: expected increasing numbers in 0..1, got {found}")
    return found


def cells_removed(fractions: Sequence[float], cells: int, rounding: Rounding = "nearest") -> list[int]:
    """Number of cells to remove at each fraction: round(p * n), or int(p * n) as in the published evaluation.

    Raises:
        ArgumentError: For an unknown rounding.
    """
    check_choice("rounding", rounding, get_args(Rounding))
    return [round(p * cells) if rounding == "nearest" else int(p * cells) for p in fractions]
