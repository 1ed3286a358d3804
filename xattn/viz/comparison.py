"""Methods side by side on one picture."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from xattn.errors import ArgumentError
from xattn.viz._panels import canvas, rows_of, show_picture
from xattn.viz._reading import CAPTIONS, Scale, Scaling, shared_limits
from xattn.viz.overlay import overlay

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def comparison(
    image: object,
    maps: Mapping[str, object],
    *,
    title: str | None = None,
    columns: int | None = None,
    normalize: Scaling = None,
    scale: Scale = "each",
    smooth: bool = False,
    axes: "Iterable[Axes] | None" = None,
) -> Figure:
    """The picture and one overlay per method, each with its name and its colour bar.

    Args:
        image: As in `overlay`.
        maps: Name to map.
        title: Written above the figure.
        columns: Most panels in a row, the picture counted; None takes 5 to 7, whichever leaves the fewest gaps.
        normalize: As in `overlay`.
        scale: "each" gives every map its own colour scale, "shared" one to all; a caption says which.
        smooth: As in `overlay`.
        axes: Where to draw, one for the picture and one per map; None makes a new figure. Title and caption are
            written on a new figure only.
    """
    if not maps:
        raise ArgumentError("maps: expected at least one map, got none")
    limits, signed = shared_limits(maps.values(), scale, normalize)
    count = len(maps) + 1
    columns = rows_of(count, 5, columns)
    figure, panels = canvas(count, columns, axes, title=title, caption=CAPTIONS[scale])
    show_picture(panels[0], image, "image")
    for ax, (name, relevance) in zip(panels[1:], maps.items(), strict=True):
        overlay(image, relevance, ax=ax, title=name, normalize=normalize, signed=signed, limits=limits, smooth=smooth)
    return figure
