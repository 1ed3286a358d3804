"""How patch predictions change from layer to layer."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from xattn.errors import ArgumentError
from xattn.viz._lines import line, style
from xattn.viz._panels import canvas
from xattn.viz._reading import as_array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_UNITS = {
    "accuracy": "share of patches",
    "probability": "of the target",
    "margin": "first minus second logit",
    "entropy": "nats",
}


def layer_curves(
    statistics: Mapping[str, object],
    *,
    title: str | None = None,
    confidence: float = 0.95,
    resamples: int = 1000,
    axes: "Iterable[Axes] | None" = None,
) -> Figure:
    """One panel per statistic: its mean over samples after each layer, with the bootstrap band.

        viz.layer_curves(layer_statistics(model, images, labels))

    Args:
        statistics: Name to values (B, layers), as `xattn.attributions.prediction_analysis.layer_statistics` returns.
            Samples with NaN are left out and counted.
        title: Written above the figure.
        confidence: Of the bands.
        resamples: Of the bootstrap. A single sample has no band.
        axes: Where to draw, one per statistic; as in `comparison`.

    Raises:
        ArgumentError: If there are no statistics, or their shapes are not (B, layers).
    """
    if not statistics:
        raise ArgumentError("statistics: expected at least one, got none")
    count = len(statistics)
    figure, panels = canvas(count, min(count, 4), axes, title=title, cell=(2.9, 2.7))
    for place, (ax, (name, values)) in enumerate(zip(panels, statistics.items(), strict=True)):
        table = as_array(values, f"statistics[{name!r}]")
        if table.ndim != 2 or 0 in table.shape:
            raise ArgumentError(f"statistics[{name!r}]: expected (B, layers), got shape {table.shape}")
        look = {"color": style(place)["color"], "marker": "o", "markersize": 4}
        line(ax, np.arange(table.shape[1], dtype=np.float64), table, confidence, resamples, name, **look)
        ax.set_title(str(ax.lines[-1].get_label()), fontsize=11)
        ax.set_xlabel("layer")
        ax.set_ylabel(_UNITS.get(name, ""), fontsize=9)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        ax.spines[["top", "right"]].set_visible(False)
    return figure
