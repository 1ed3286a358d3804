"""Lines with confidence bands: their colours, dashes, and the bootstrap behind them."""

from typing import TYPE_CHECKING, Any

import numpy as np

from xattn.errors import ArgumentError
from xattn.viz._reading import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9")
"""Okabe and Ito's colours without the yellow, which paper swallows."""
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
_AT_ONCE = 2_000_000  # numbers drawn at once


def style(place: int) -> dict[str, Any]:
    """Colour and dash of the line at a place; seven colours and four dashes go around at different pace."""
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": _DASHES[place % len(_DASHES)]}


def mean_band(values: Array, confidence: float = 0.95, resamples: int = 1000) -> tuple[Array, Array]:
    """Ends (S,) of the pointwise percentile bootstrap interval of the mean of (n, S) curves; equal calls are equal.

    Raises:
        ArgumentError: If `confidence` is not between 0 and 1, or `resamples` is not positive.
    """
    if not 0 < confidence < 1:
        raise ArgumentError(f"confidence: expected a number between 0 and 1, got {confidence}")
    if resamples < 1:
        raise ArgumentError(f"resamples: expected a positive number, got {resamples}")
    n = len(values)
    generator = np.random.default_rng(0)
    means, step = [], max(1, _AT_ONCE // n)
    for done in range(0, resamples, step):
        counts = generator.multinomial(n, np.full(n, 1 / n), size=min(step, resamples - done))
        means.append(counts @ values / n)
    low, high = np.quantile(np.concatenate(means), [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high


def line(ax: "Axes", x: Array, values: Array, confidence: float, resamples: int, label: str, **look: Any) -> None:  # noqa: ANN401
    """Mean of the curves without NaN and, if there are at least two, its band; those left out are counted."""
    defined = values[~np.isnan(values).any(1)]
    left_out = len(values) - len(defined)
    if left_out:
        label += f" ({left_out} of {len(values)} undefined)"
    mean = defined.mean(0) if len(defined) else np.full(len(x), np.nan)
    if len(defined) > 1:
        low, high = mean_band(defined, confidence, resamples)
        ax.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
    ax.plot(x, mean, label=label, **look)
