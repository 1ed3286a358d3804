"""TokenRank of each layer, or of each layer and head."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from xattn.errors import ArgumentError
from xattn.viz._panels import CELL, canvas, frame
from xattn.viz._reading import CAPTIONS, Scale, Scaling, as_array, shared_limits
from xattn.viz.comparison import comparison
from xattn.viz.overlay import overlay

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SMALL = (1.15, 1.15)


def tokenrank_layers(
    image: object,
    maps: object,
    *,
    title: str | None = None,
    columns: int | None = None,
    normalize: Scaling = None,
    scale: Scale = "each",
    smooth: bool = False,
    axes: "Iterable[Axes] | None" = None,
) -> Figure:
    """TokenRank of every layer; with heads a row of small panels per layer.

        layers = [TokenRank(model, layers=k).attribute(x, resolution="patch")[0] for k in range(depth)]
        viz.tokenrank_layers(image, torch.stack(layers))
        viz.tokenrank_layers(image, TokenRank(model, layers="all").maps(x)[0])       # each head for itself

    Args:
        image: As in `overlay`.
        maps: (layers, h, w), or (layers, heads, h, w) as `TokenRank.maps` gives them. Any other map that exists per
            layer can be drawn as well.
        title: Written above the figure.
        columns: Most panels in a row, as in `comparison`; with heads there are as many as heads.
        normalize: As in `overlay`.
        scale: As in `comparison`. Panels of single heads have no colour bars.
        smooth: As in `overlay`.
        axes: Where to draw: one for the picture and one per layer, or with heads one per layer and head, row by row;
            as in `comparison`.

    Raises:
        ArgumentError: If `maps` has another number of dimensions.
    """
    values = as_array(maps, "maps")
    if values.ndim not in (3, 4) or 0 in values.shape:
        raise ArgumentError(f"maps: expected (layers, h, w) or (layers, heads, h, w), got shape {values.shape}")
    if values.ndim == 3:
        named = {f"layer {k}": layer for k, layer in enumerate(values)}
        return comparison(
            image, named, title=title, columns=columns, normalize=normalize, scale=scale, smooth=smooth, axes=axes
        )
    layers, heads = values.shape[:2]
    if columns not in (None, heads):
        raise ArgumentError(f"columns: expected None or the number of heads ({heads}), got {columns}")
    cells = values.reshape(-1, *values.shape[2:])
    limits, signed = shared_limits(cells, scale, normalize)
    cell = CELL if heads == 1 else _SMALL
    figure, panels = canvas(layers * heads, heads, axes, title=title, caption=_CAPTIONS[scale], cell=cell)
    for i, (relevance, ax) in enumerate(zip(cells, panels, strict=True)):
        overlay(
            image, relevance, ax=ax, normalize=normalize, signed=signed, limits=limits, smooth=smooth, colorbar=False
        )
        frame(ax, f"head {i}" if i < heads else None, "")
        for note in ax.texts:
            note.set_fontsize(6)
        if i % heads == 0:
            ax.set_ylabel(f"layer {i // heads}")
    return figure


_CAPTIONS = CAPTIONS | {"each": "Each panel has its own colour scale: colours compare places, not layers or heads."}
