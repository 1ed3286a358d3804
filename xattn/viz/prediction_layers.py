"""What patches answer after each layer, next to where the model looked: did it not look, or did it not recognise?"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from xattn.errors import ArgumentError
from xattn.viz._panels import canvas
from xattn.viz._panels import colorbar as draw_colorbar
from xattn.viz._reading import Array, Scale, as_array, read, shared_limits
from xattn.viz.overlay import overlay

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CAPTIONS = {
    "shared": "All classes share one colour scale, and so do the layers of the attention; the bars stand at the right.",
    "each": "Each panel has its own colour scale, written below it: colours compare places, not layers or classes.",
}


def prediction_layers(
    image: object,
    predictions: Mapping[str, object],
    attention: object | None = None,
    *,
    title: str | None = None,
    scale: Scale = "shared",
    smooth: bool = False,
    axes: "Iterable[Axes] | None" = None,
) -> Figure:
    """A column per layer: the prediction map of each class, and in the last row the attention of that layer.

    High attention and a low prediction map: the model looked and did not recognise. Low attention and a high
    prediction map: its patches know the answer, and nobody looked.

        maps = torch.stack([PredictionMap(model, layer=k).maps(x)[0] for k in range(depth)])
        looked = torch.cat([RawAttention(model, layers=k).attribute(x, resolution="patch") for k in range(depth)])
        viz.prediction_layers(image, {name: maps[:, model.class_index(name)] for name in names}, looked)

    Args:
        image: As in `overlay`.
        predictions: Class name to its prediction maps (layers, h, w).
        attention: (layers, h, w); None leaves the row out.
        title: Written above the figure.
        scale: "shared" gives all prediction maps one colour scale and all attention maps another; "each" every map
            its own.
        smooth: As in `overlay`.
        axes: Where to draw, row by row, one for each class and layer, then for the attention; as in `comparison`.

    Raises:
        ArgumentError: If there is no class, or the shapes are not (layers, h, w) with the same number of layers.
    """
    rows = {name: _layers(maps, f"predictions[{name!r}]") for name, maps in predictions.items()}
    if not rows:
        raise ArgumentError("predictions: expected the maps of at least one class, got none")
    looked = [] if attention is None else [("attention", _layers(attention, "attention"))]
    depths = {len(maps) for maps in rows.values()} | {len(maps) for _, maps in looked}
    if len(depths) > 1:
        raise ArgumentError(f"predictions: expected as many layers in all maps and the attention, got {sorted(depths)}")
    (depth,) = depths
    count = len(rows) + len(looked)
    cell = (1.75, 1.85 if scale == "shared" else 2.2)
    figure, panels = canvas(count * depth, depth, axes, title=title, caption=_CAPTIONS.get(scale, ""), cell=cell)
    for group, start in ((list(rows.items()), 0), (looked, len(rows))):
        if group:
            _draw(image, group, panels[start * depth : (start + len(group)) * depth], scale, smooth, first=start == 0)
    return figure


def _draw(
    image: object, rows: list[tuple[str, Array]], panels: "list[Axes]", scale: Scale, smooth: bool, *, first: bool
) -> None:
    """Rows of one kind, with one colour bar at their right if their scale is shared."""
    limits, signed = shared_limits([layer for _, maps in rows for layer in maps], scale, None)
    depth = len(rows[0][1])
    for row, (name, maps) in enumerate(rows):
        line = panels[row * depth : (row + 1) * depth]
        line[0].set_ylabel(name, fontsize=11)
        for layer, ax in enumerate(line):
            overlay(
                image, maps[layer], ax=ax, title=f"layer {layer}" if first and row == 0 else None, signed=signed,
                limits=limits, smooth=smooth, colorbar=limits is None,
            )  # fmt: skip
    if limits is not None:
        readings = [read(layer, signed=signed) for _, maps in rows for layer in maps]
        reading = max(readings, key=lambda reading: np.isfinite(reading.values).any())  # its ends are written
        draw_colorbar(panels, Normalize(*limits), reading, orientation="vertical", fraction=0.02, pad=0.01)


def _layers(maps: object, argument: str) -> Array:
    values = as_array(maps, argument)
    if values.ndim != 3 or 0 in values.shape:
        raise ArgumentError(f"{argument}: expected (layers, h, w), got shape {values.shape}")
    return values
