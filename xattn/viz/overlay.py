"""Relevance laid over a picture."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from xattn.errors import ArgumentError
from xattn.viz._panels import colorbar as draw_colorbar
from xattn.viz._panels import figure_of, frame, hatch, single
from xattn.viz._reading import Scaling, as_picture, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LIGHT = 0.4  # the picture's black under the colours, so that dark pictures stay visible


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
    ax = single(ax, (3.4, 3.9))
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
    hatch(ax, ~np.isfinite(reading.values), height, width)
    frame(ax, title, reading.note)
    if colorbar:
        draw_colorbar(ax, norm, reading)
    return figure_of(ax)
