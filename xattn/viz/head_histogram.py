"""Which layer and head is the most similar to the prediction map, and how often."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from xattn.errors import ArgumentError
from xattn.viz._heatmap import as_table, heatmap
from xattn.viz._panels import figure_of, single

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def head_histogram(counts: object, *, ax: "Axes | None" = None, title: str | None = None) -> Figure:
    """Number of samples in which each head of each layer comes first.

        viz.head_histogram(similar_heads(model, images, labels)["histogram"])

    Args:
        counts: (layers, heads), as `xattn.attributions.prediction_analysis.similar_heads` returns as "histogram".
        ax: Where to draw; None makes a new figure.
        title: Written above.

    Raises:
        ArgumentError: If the shape is another one, or a count is negative or not finite.
    """
    table = as_table(counts, "counts")
    if not np.isfinite(table).all() or table.min() < 0:
        raise ArgumentError("counts: expected finite, non-negative numbers")
    layers, heads = table.shape
    ax = single(ax, (1.6 + 0.42 * min(heads, 16), 1.2 + 0.36 * min(layers, 24)))
    heatmap(ax, table, Normalize(0, table.max() or 1), label="samples", form="{:.3g}", title=title)
    return figure_of(ax)
