"""Figures: relevance laid over a picture, methods side by side, words coloured by relevance.

Every function returns a `matplotlib.figure.Figure` (or HTML) and shows nothing by itself. Maps are drawn as they are:
unsigned ones in a sequential colour map, signed ones in a diverging one centred at zero, and what cannot be seen in
the colours (a constant map, one without positive values, NaN) is written below them.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from xattn._reading import CAPTIONS, Reading, Scale, Scaling, as_picture, read, shared_limits
from xattn._reading import DIVERGING as DIVERGING
from xattn._token_figure import token_grid as token_grid
from xattn._token_figure import tokens as tokens
from xattn._token_figure import tokens_html as tokens_html
from xattn.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR: dict[str, Any] = {"orientation": "horizontal", "fraction": 0.05, "pad": 0.03, "aspect": 25}
_LIGHT = 0.4  # the picture's black under the colours, so that dark pictures stay visible
_FINE = 4  # points per cell and side, so that hatching follows the cells


def overlay(
    image: object,
    relevance: object,
    *,
    ax: "Axes | None" = None,
    title: str | None = None,
    normalize: Scaling = None,
    signed: bool | None = None,
    limits: tuple[float, float] | None = None,
    alpha: float = 0.6,
    smooth: bool = False,
    colorbar: bool = True,
) -> Figure:
    """Relevance in colour over the picture in grey.

    Args:
        image: (C, H, W) tensor or (H, W, C) array, uint8 or from 0 to 1; values outside are clipped with a warning.
        relevance: (h, w) of any size, stretched over the picture; or (C, h, w), averaged over channels.
        ax: Where to draw; None makes a new figure.
        title: Written above.
        normalize: None shows the raw values, "max" divides them by the largest magnitude.
        signed: Diverging colours around zero; None takes them where a value is negative.
        limits: Ends of the colour scale, to share one between panels; None takes the map's own.
        alpha: Opacity of the colours.
        smooth: Interpolate between patches; off, so that one sees what the model's patches are.
        colorbar: Whether a colour bar is drawn below.

    Returns:
        The figure drawn into.
    """
    if not 0 <= alpha <= 1:
        raise ArgumentError(f"alpha: expected a number in 0..1, got {alpha}")
    picture = as_picture(image)
    reading = read(relevance, normalize=normalize, signed=signed)
    norm = reading.norm if limits is None else Normalize(*limits)
    if ax is None:
        ax = Figure(figsize=(3.4, 3.9), layout="constrained").add_subplot()
    height, width = picture.shape[:2]
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    grey = _LIGHT + (1 - _LIGHT) * picture @ np.array([0.299, 0.587, 0.114])
    ax.imshow(grey, cmap="gray", vmin=0, vmax=1, extent=extent)
    ax.imshow(
        np.ma.masked_invalid(reading.values),
        cmap=reading.cmap,
        norm=norm,
        alpha=alpha,
        extent=extent,
        interpolation="bilinear" if smooth else "nearest",
    )
    _hatch(ax, ~np.isfinite(reading.values), height, width)
    _frame(ax, title, reading.note)
    if colorbar:
        _colorbar(ax, norm, reading)
    return _figure(ax)


def comparison(
    image: object,
    maps: Mapping[str, object],
    *,
    title: str | None = None,
    columns: int | None = None,
    normalize: Scaling = None,
    scale: Scale = "each",
    smooth: bool = False,
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
    """
    if not maps:
        raise ArgumentError("maps: expected at least one map, got none")
    if columns is not None and columns < 1:
        raise ArgumentError(f"columns: expected a positive integer, got {columns}")
    limits, signed = shared_limits([maps], scale, normalize)
    panels = len(maps) + 1
    columns = min(columns or min((5, 6, 7), key=lambda width: -panels % width), panels)
    rows = math.ceil(panels / columns)
    figure, axes = _canvas(rows, columns, title, scale)
    _show_picture(axes[0], image, "image")
    for ax, (name, relevance) in zip(axes[1:], maps.items(), strict=False):
        overlay(image, relevance, ax=ax, title=name, normalize=normalize, signed=signed, limits=limits, smooth=smooth)
    for ax in axes[panels:]:
        ax.set_axis_off()
    return figure


def grid(
    images: Sequence[object],
    maps: Sequence[Mapping[str, object]],
    *,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    normalize: Scaling = None,
    scale: Scale = "each",
    smooth: bool = False,
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
    """
    names = list(dict.fromkeys(name for row in maps for name in row))
    if len(images) != len(maps) or not names:
        raise ArgumentError(
            f"maps: expected one set of maps per image ({len(images)}), none of them empty, "
            f"got {len(maps)} with {len(names)} names"
        )
    if labels is not None and len(labels) != len(images):
        raise ArgumentError(f"labels: expected one per image ({len(images)}), got {len(labels)}")
    limits, signed = shared_limits(maps, scale, normalize)
    figure, axes = _canvas(len(images), len(names) + 1, title, scale)
    for i, (image, row) in enumerate(zip(images, maps, strict=True)):
        line = axes[i * (len(names) + 1) : (i + 1) * (len(names) + 1)]
        _show_picture(line[0], image, "image" if i == 0 else None)
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
                _frame(ax, shown, "")
                _no_colorbar(ax)
                ax.set_box_aspect(1)
                ax.text(0.5, 0.5, "not available", ha="center", va="center", transform=ax.transAxes)
    return figure


def _canvas(rows: int, columns: int, title: str | None, scale: Scale) -> "tuple[Figure, list[Axes]]":
    size = (2.35 * columns + 0.3, 2.95 * rows + 0.6)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06))
    if title:
        figure.suptitle(title, fontsize=13)
    caption = textwrap.fill(CAPTIONS[scale], width=max(30, int(15 * size[0])))
    figure.supxlabel(caption, fontsize=9, color="0.35")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _show_picture(ax: "Axes", image: object, title: str | None) -> None:
    ax.imshow(as_picture(image))
    _frame(ax, title, "")
    _no_colorbar(ax)


def _frame(ax: "Axes", title: str | None, note: str) -> None:
    ax.set_xticks([])
    ax.set_yticks([])
    if title:
        ax.set_title(title, fontsize=11)
    if note:
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2}
        ax.text(0.5, 0.03, note, ha="center", va="bottom", fontsize=9, transform=ax.transAxes, bbox=box)


def _hatch(ax: "Axes", where: npt.NDArray[np.bool_], height: int, width: int) -> None:
    """Hatch the cells without a finite value."""
    if not where.any():
        return
    y, x = ((np.arange(cells * _FINE) + 0.5) / (cells * _FINE) for cells in where.shape)
    fine = where.repeat(_FINE, 0).repeat(_FINE, 1).astype(float)
    ax.contourf(x * width - 0.5, y * height - 0.5, fine, levels=[0.5, 1.5], colors="none", hatches=["xxxx"])


def _colorbar(ax: "Axes", norm: Normalize, reading: Reading) -> None:
    """The scale without the picture's grey, its ends (and zero, if signed) written as numbers."""
    low, high = float(norm.vmin or 0.0), float(norm.vmax or 0.0)
    bar = _figure(ax).colorbar(ScalarMappable(norm, reading.cmap), ax=ax, **_BAR)
    ticks = [low, 0.0, high] if reading.signed else [low, high]
    if not np.isfinite(reading.values).any():
        ticks = []
    bar.set_ticks(ticks, labels=[f"{tick:.3g}" for tick in ticks])
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_linewidth(0.4)
    labels = bar.ax.get_xticklabels()
    if labels:
        labels[0].set_horizontalalignment("left")
        labels[-1].set_horizontalalignment("right")


def _no_colorbar(ax: "Axes") -> None:
    """The room of a colour bar, so that panels without one line up with the others."""
    bar = _figure(ax).colorbar(ScalarMappable(), ax=ax, **_BAR)
    bar.ax.set_axis_off()
    for artist in (*bar.ax.collections, *bar.ax.images):
        artist.set_visible(False)


def _figure(ax: "Axes") -> Figure:
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure
