"""The bounce film: where a walk that follows attention stands after each step, and where it ends."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from xattn.errors import ArgumentError
from xattn.viz._panels import canvas, rows_of, show_picture
from xattn.viz._reading import CAPTIONS, Array, Scale, Scaling, as_array, shared_limits
from xattn.viz.overlay import overlay

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ALL = 7  # a film of so many frames is shown whole
_CELL = (2.35, 3.25)  # titles have two lines


def bounce_film(
    image: object,
    film: object,
    limit: object | None = None,
    *,
    steps: Sequence[int] | None = None,
    title: str | None = None,
    columns: int | None = None,
    normalize: Scaling = None,
    scale: Scale = "each",
    smooth: bool = False,
    axes: "Iterable[Axes] | None" = None,
) -> Figure:
    """The picture, the walk after n = 0..N bounces, and its limit, TokenRank.

    Below each n stands how far the walk still is from its limit: half the sum of absolute differences (total
    variation, 0 to 1) of both as distributions over the patches.

        viz.bounce_film(image, NBounceAttention(model, n=8).film(x)[0], TokenRank(model)(x, resolution="patch")[0])

    Args:
        image: As in `overlay`.
        film: (N + 1, h, w), one sample of `NBounceAttention.film`. A start outside of the patches (the class token)
            is drawn as the picture, and said.
        limit: (h, w), the walk's limit, as `TokenRank.attribute` gives it.
        steps: Which n are shown; None takes all of a short film, else 0, 1, 2, 4, 8, ... and N.
        title: Written above the figure.
        columns: Most panels in a row; None takes one row of up to 8, else as in `comparison`.
        normalize: As in `overlay`.
        scale: As in `comparison`.
        smooth: As in `overlay`.
        axes: Where to draw, one for the picture, one per step, one for the limit; as in `comparison`.

    Raises:
        ArgumentError: If the film is no (N + 1, h, w), the limit has another shape, or a step is not in the film.
    """
    frames = as_array(film, "film")
    if frames.ndim != 3 or 0 in frames.shape:
        raise ArgumentError(f"film: expected one sample (N + 1, h, w), got shape {frames.shape}")
    last = None if limit is None else as_array(limit, "limit")
    if last is not None and last.shape != frames.shape[1:]:
        raise ArgumentError(f"limit: expected the shape of a frame {frames.shape[1:]}, got {last.shape}")
    shown = _steps(steps, len(frames))
    maps = {_name(n, frames[n], last): frames[n] for n in shown}
    if last is not None:
        maps["limit\nTokenRank"] = last
    limits, signed = shared_limits(maps.values(), scale, normalize)
    count = len(maps) + 1
    columns = rows_of(count, 8, columns)
    figure, panels = canvas(count, columns, axes, title=title, caption=CAPTIONS[scale], cell=_CELL)
    show_picture(panels[0], image, "image")
    for ax, (name, frame) in zip(panels[1:], maps.items(), strict=True):
        if frame.any():
            overlay(image, frame, ax=ax, title=name, normalize=normalize, signed=signed, limits=limits, smooth=smooth)
        else:
            show_picture(ax, image, name, "no patch")
    return figure


def _steps(steps: Sequence[int] | None, frames: int) -> list[int]:
    if steps is None:
        doubling = [0, *(2**k for k in range(frames.bit_length())), frames - 1]
        return list(range(frames)) if frames <= _ALL else sorted({n for n in doubling if n < frames})
    if not steps or any(not 0 <= n < frames for n in steps):
        raise ArgumentError(f"steps: expected some of 0..{frames - 1}, got {list(steps)}")
    return list(steps)


def _name(n: int, frame: Array, limit: Array | None) -> str:
    name = "start (n = 0)" if n == 0 else f"n = {n}"
    distance = None if limit is None else _distance(frame, limit)
    return name if distance is None else f"{name}\n{distance:.2f} from the limit"


def _distance(first: Array, second: Array) -> float | None:
    """Total variation between two maps as distributions; None where one is none."""
    if any(not np.isfinite(p).all() or (p < 0).any() or not p.sum() > 0 for p in (first, second)):
        return None
    return float(np.abs(first / first.sum() - second / second.sum()).sum() / 2)
