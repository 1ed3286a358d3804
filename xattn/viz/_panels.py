"""What panels of figures share: where they are drawn, frames, colour bars, and hatching where there is no value."""

import math
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter, ScalarFormatter

from xattn.errors import ArgumentError
from xattn.viz._reading import Reading, as_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backend_bases import RendererBase

_BAR: dict[str, Any] = {"orientation": "horizontal", "fraction": 0.05, "pad": 0.03, "aspect": 25}
_FINE = 4  # points per cell and side, so that hatching follows the cells
CELL = (2.35, 2.95)
"""Width and height in inches of a panel with title and colour bar."""


class PlainFigure(Figure):
    """A figure whose names and words are shown as they are: two dollars in one of them begin no formula."""

    def draw(self, renderer: "RendererBase") -> None:
        """Draw all; numbers on axes keep their powers of ten."""
        axes = [axis for ax in self.axes for axis in (ax.xaxis, ax.yaxis)]
        numbered = [axis for axis in axes if isinstance(axis.get_major_formatter(), (LogFormatter, ScalarFormatter))]
        numbers = [label for axis in numbered for label in axis.get_ticklabels(which="both")]
        for text in set(self.findobj(Text)).difference(numbers):
            text.set_parse_math(False)
        super().draw(renderer)


def canvas(
    panels: int,
    columns: int,
    axes: "Iterable[Axes] | None",
    *,
    title: str | None = None,
    caption: str = "",
    cell: tuple[float, float] = CELL,
    **options: Any,  # noqa: ANN401
) -> "tuple[Figure, list[Axes]]":
    """As many axes as there are panels: those given, or new ones in rows of `columns`.

    Args:
        panels: Number of panels.
        columns: Of a new figure.
        axes: The caller's axes; the title and the caption are then the caller's affair too.
        title: Written above a new figure.
        caption: Written below a new figure.
        cell: Width and height of a panel in inches.
        options: Of `Figure.subplots`.

    Raises:
        ArgumentError: If `axes` are too few or too many, or there is a title with them.
    """
    if axes is not None:
        given = list(np.ravel(np.array(axes, dtype=object)))
        if len(given) != panels:
            raise ArgumentError(f"axes: expected {panels}, one per panel, got {len(given)}")
        if title is not None:
            raise ArgumentError("title: is written above a new figure; with axes= use the figure's own suptitle")
        return figure_of(given[0]), given
    rows = math.ceil(panels / columns)
    size = (cell[0] * columns + 0.3, cell[1] * rows + 0.6)
    figure = PlainFigure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06))
    if title:
        figure.suptitle(title, fontsize=13)
    if caption:
        caption = textwrap.fill(caption, width=max(30, int(15 * size[0])))
        figure.supxlabel(caption, fontsize=9, color="0.35")
    drawn = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for ax in drawn[panels:]:
        ax.set_axis_off()
    return figure, drawn[:panels]


def rows_of(panels: int, one_row: int, columns: int | None = None) -> int:
    """Panels in a row: as many as wanted, else all up to `one_row`, else 5 to 7, whichever leaves the fewest gaps.

    Raises:
        ArgumentError: If `columns` is not positive.
    """
    if columns is not None and columns < 1:
        raise ArgumentError(f"columns: expected a positive integer, got {columns}")
    if columns is not None or panels <= one_row:
        return min(columns or panels, panels)
    return min((5, 6, 7), key=lambda width: -panels % width)


def single(ax: "Axes | None", size: tuple[float, float]) -> "Axes":
    """The given axes, or those of a new figure of that size in inches."""
    return ax or PlainFigure(figsize=size, layout="constrained").add_subplot()


def show_picture(ax: "Axes", image: object, title: str | None, note: str = "") -> None:
    """The picture alone, with the room of a colour bar."""
    ax.imshow(as_picture(image))
    frame(ax, title, note)
    no_colorbar(ax)


def frame(ax: "Axes", title: str | None, note: str) -> None:
    """No ticks; a title above and a note on the picture."""
    ax.set_xticks([])
    ax.set_yticks([])
    if title:
        ax.set_title(title, fontsize=11)
    if note:
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2}
        ax.text(
            0.5, 0.03, note.replace(", ", "\n"), ha="center", va="bottom", fontsize=9, transform=ax.transAxes, bbox=box
        )


def hatch(ax: "Axes", where: npt.NDArray[np.bool_], height: float, width: float) -> None:
    """Hatch the cells without a finite value."""
    if not where.any():
        return
    y, x = ((np.arange(cells * _FINE) + 0.5) / (cells * _FINE) for cells in where.shape)
    fine = where.repeat(_FINE, 0).repeat(_FINE, 1).astype(float)
    ax.contourf(x * width - 0.5, y * height - 0.5, fine, levels=[0.5, 1.5], colors="none", hatches=["xxxx"])


def colorbar(axes: "Axes | list[Axes]", norm: Normalize, reading: Reading, **options: Any) -> None:  # noqa: ANN401
    """The scale without the picture's grey, its ends (and zero, if signed) written as numbers."""
    low, high = float(norm.vmin or 0.0), float(norm.vmax or 0.0)
    first = axes[0] if isinstance(axes, list) else axes
    bar = figure_of(first).colorbar(ScalarMappable(norm, reading.cmap), ax=axes, **(_BAR | options))
    ticks = [low, 0.0, high] if reading.signed else [low, high]
    if not np.isfinite(reading.values).any():
        ticks = []
    bar.set_ticks(ticks, labels=[f"{tick:.3g}" for tick in ticks])
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_linewidth(0.4)
    labels = bar.ax.get_xticklabels()
    if labels and bar.orientation == "horizontal":
        labels[0].set_horizontalalignment("left")
        labels[-1].set_horizontalalignment("right")


def no_colorbar(ax: "Axes") -> None:
    """The room of a colour bar, so that panels without one line up with the others."""
    bar = figure_of(ax).colorbar(ScalarMappable(), ax=ax, **_BAR)
    bar.ax.set_axis_off()
    for artist in (*bar.ax.collections, *bar.ax.images):
        artist.set_visible(False)


def figure_of(ax: "Axes") -> Figure:
    """The figure that axes belong to."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure
