"""The critical-difference figure: average ranks of methods, and which of them are not told apart."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from matplotlib.figure import Figure

from xattn.errors import ArgumentError
from xattn.viz._panels import figure_of, single

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DOT, _BAR, _GUIDE = "#0072b2", "#d55e00", "#b0b0b0"


class Ranks(Protocol):
    """What is drawn; `xattn.evaluation.stats.rank_methods` makes it."""

    @property
    def names(self) -> Sequence[str]:
        """(k,) methods, best first."""

    @property
    def ranks(self) -> Sequence[float]:
        """(k,) average ranks."""

    @property
    def critical_difference(self) -> float:
        """Ranks that differ by less are not told apart."""

    def cliques(self) -> Sequence[Sequence[str]]:
        """Groups of methods that are not told apart."""


def critical_difference(ranking: Ranks, *, ax: "Axes | None" = None, title: str | None = None) -> Figure:
    """Average ranks, 1 being the best; bars join methods that the test does not tell apart (Demsar 2006).

        viz.critical_difference(rank_methods({name: curve.auc() for name, curve in curves.items()},
                                             higher_is_better=False))

    Args:
        ranking: What `xattn.evaluation.stats.rank_methods` returns.
        ax: Where to draw; None makes a new figure as high as the methods are many.
        title: Written above; the critical difference is drawn and written in any case.

    Raises:
        ArgumentError: If no sample could be ranked.
    """
    names, ranks, difference = list(ranking.names), list(ranking.ranks), ranking.critical_difference
    if not np.isfinite([*ranks, difference]).all():
        raise ArgumentError("ranking: expected finite ranks; no sample has a value of every method")
    count, bars = len(names), list(ranking.cliques())
    ax = single(ax, (8.4, 1.2 + 0.26 * count + 0.12 * len(bars)))
    right = count + 0.4
    for line, (name, rank) in enumerate(zip(names, ranks, strict=True), 1):
        ax.plot([rank, rank, right], [0, -line, -line], color=_GUIDE, linewidth=0.8, zorder=1)
        ax.plot(rank, 0, "o", color=_DOT, markersize=5, zorder=3)
        ax.text(right + 0.05, -line, f"{rank:.2f}  {name}", va="center", fontsize="small")
    place = dict(zip(names, ranks, strict=True))
    for i, group in enumerate(bars):
        height = 0.4 + 0.35 * i
        ax.plot([place[group[0]], place[group[-1]]], [height] * 2, color=_BAR, linewidth=3, solid_capstyle="butt")
    top = 0.4 + 0.35 * len(bars)
    _ruler(ax, difference, top + 0.35)
    ax.set_xlim(0.8, max(right, 1 + difference))
    ax.set_ylim(-(count + 0.6), top + 0.9)
    ax.set_xticks(range(1, count + 1))
    ax.set_yticks([])
    ax.xaxis.tick_top()
    ax.spines[["left", "right", "bottom"]].set_visible(False)
    if title:
        ax.set_title(title, loc="left", fontsize="medium")
    return figure_of(ax)


def _ruler(ax: "Axes", difference: float, height: float) -> None:
    """The critical difference as a length."""
    ax.plot([1, 1 + difference], [height, height], "|-", color="black", linewidth=1, markersize=7)
    ax.text(1 + difference, height, f"  critical difference {difference:.2f}", va="center", fontsize="small")
