"""One number per layer and head, as a heat map."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator

from xattn.errors import ArgumentError
from xattn.viz._panels import figure_of, hatch
from xattn.viz._reading import Array, as_array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = "viridis"
_WRITTEN = 12  # numbers are written into the cells of tables up to this size


def as_table(values: object, argument: str) -> Array:
    """(layers, heads) numbers.

    Raises:
        ArgumentError: For another rank, or an empty one.
    """
    table = as_array(values, argument)
    if table.ndim != 2 or table.size == 0:
        raise ArgumentError(f"{argument}: expected (layers, heads), got shape {table.shape}")
    return table


def heatmap(ax: "Axes", table: Array, norm: Normalize, *, label: str, form: str, title: str | None) -> None:
    """Layers downwards, heads to the right; cells without a finite value are hatched."""
    layers, heads = table.shape
    ax.imshow(np.ma.masked_invalid(table), cmap=_COLOURS, norm=norm, aspect="auto")
    hatch(ax, ~np.isfinite(table), layers, heads)
    ax.xaxis.tick_top()  # as a table is read; below, panels beside it have their colour bars
    ax.xaxis.set_label_position("top")
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if title:
        ax.set_title(title, fontsize=11)
    if max(table.shape) <= _WRITTEN:
        cmap = colormaps[_COLOURS]
        for (layer, head), value in np.ndenumerate(table):
            light = np.isfinite(value) and np.dot(cmap(norm(value))[:3], (0.299, 0.587, 0.114)) > 0.5
            ink = "black" if light or not np.isfinite(value) else "white"
            text = form.format(value) if np.isfinite(value) else "NaN"
            box = None if np.isfinite(value) else {"facecolor": "white", "edgecolor": "none", "pad": 1}
            ax.text(head, layer, text, ha="center", va="center", fontsize=8, color=ink, bbox=box)
    bar = figure_of(ax).colorbar(ax.images[0], ax=ax, label=label, fraction=0.05, pad=0.02)
    bar.outline.set_linewidth(0.4)
    bar.ax.tick_params(labelsize=8, length=2)
