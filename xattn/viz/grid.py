"""Images x methods."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from xattn.errors import ArgumentError
from xattn.viz._panels import canvas, frame, no_colorbar, show_picture
from xattn.viz._reading import CAPTIONS, Scale, Scaling, shared_limits
from xattn.viz.overlay import overlay

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def grid(
    images: Sequence[object],
    maps: Sequence[Mapping[str, object]],
    *,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    normalize: Scaling = None,
    scale: Scale = "each",
    smooth: bool = False,
    axes: "Iterable[Axes] | None" = None,
) -> Figure:
    """Images x methods: a row per image, a column per method, the picture first.

    Args:
        images: As in `overlay`.
        maps: Name to map for each image; a method that an image lacks leaves a labelled gap.
        labels: Written left of each row.
        title: Written above the figure.
        normalize: As in `overlay`.
        scale: As in `comparison`.
        smooth: As in `overlay`.
        axes: Where to draw, row by row, one for each picture and map; as in `comparison`.
    """
    names = list(dict.fromkeys(name for row in maps for name in row))
    if len(images) != len(maps) or not names:
        raise ArgumentError(
            f"maps: expected one set of maps per image ({len(images)}), none of them empty, "
            f"got {len(maps)} with {len(names)} names"
        )
    if labels is not None and len(labels) != len(images):
        raise ArgumentError(f"labels: expected one per image ({len(images)}), got {len(labels)}")
    limits, signed = shared_limits([relevance for row in maps for relevance in row.values()], scale, normalize)
    columns = len(names) + 1
    figure, panels = canvas(len(images) * columns, columns, axes, title=title, caption=CAPTIONS[scale])
    for i, (image, row) in enumerate(zip(images, maps, strict=True)):
        line = panels[i * columns : (i + 1) * columns]
        show_picture(line[0], image, "image" if i == 0 else None)
        if labels is not None:
            line[0].set_ylabel(labels[i])
        for ax, name in zip(line[1:], names, strict=True):
            shown = name if i == 0 else None
            if name in row:
                overlay(
                    image,
                    row[name],
                    ax=ax,
                    title=shown,
                    normalize=normalize,
                    signed=signed,
                    limits=limits,
                    smooth=smooth,
                )
            else:
                frame(ax, shown, "")
                no_colorbar(ax)
                ax.set_box_aspect(1)
                ax.text(0.5, 0.5, "not available", ha="center", va="center", transform=ax.transAxes)
    return figure
