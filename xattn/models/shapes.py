"""The silhouettes of the scene generator: ten classes and the clutter between them.

A shape is a function of the coordinates u (to the right) and v (down), both about -1 to 1, that returns two boolean
arrays: the silhouette, and the part of it drawn dark (an eye, a door, a trunk; often empty).
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Grid = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Shape = Callable[[Grid, Grid], tuple[Mask, Mask]]


def _plain(mask: Mask) -> tuple[Mask, Mask]:
    return mask, np.zeros_like(mask)


def _disc(u: Grid, v: Grid, cu: float, cv: float, a: float, b: float) -> Mask:
    """An ellipse with half axes a and b around (cu, cv)."""
    return ((u - cu) / a) ** 2 + ((v - cv) / b) ** 2 < 1


def _box(u: Grid, v: Grid, left: float, right: float, top: float, bottom: float) -> Mask:
    return (u > left) & (u < right) & (v > top) & (v < bottom)


def _tent(u: Grid, v: Grid, top: float, bottom: float, half_width: float) -> Mask:
    """A triangle with its tip up."""
    return (v > top) & (v < bottom) & (np.abs(u) < half_width * (v - top) / (bottom - top))


def star(u: Grid, v: Grid) -> tuple[Mask, Mask]:
    """Five points, one of them up."""
    sector = 2 * np.pi / 5
    radius = np.hypot(u, v)
    angle = np.arctan2(u, -v)
    fold = np.abs(angle - sector * np.round(angle / sector))
    x, y = radius * np.cos(fold), radius * np.sin(fold)
    inner_x, inner_y = 0.42 * np.cos(sector / 2), 0.42 * np.sin(sector / 2)
    return _plain((x - 1) * inner_y - y * (inner_x - 1) < 0)


def ring(u: Grid, v: Grid) -> tuple[Mask, Mask]:
    """An annulus; its hole is background."""
    return _plain(_disc(u, v, 0, 0, 0.95, 0.95) & ~_disc(u, v, 0, 0, 0.5, 0.5))


def cross(u: Grid, v: Grid) -> tuple[Mask, Mask]:
    """A plus sign."""
    return _plain(_box(u, v, -0.3, 0.3, -0.95, 0.95) | _box(u, v, -0.95, 0.95, -0.3, 0.3))


def crescent(u: Grid, v: Grid) -> tuple[Mask, Mask]:
    """A moon."""
    return _plain(_disc(u, v, 0, 0, 0.95, 0.95) & ~_disc(u, v, 0.48, 0, 0.75, 0.75))


def heart(u: Grid, v: Grid) -> tuple[Mask, Mask]:
    """A heart, tip down."""
    x, y = u * 1.2, 0.15 - v * 1.2
    return _plain((x * x + y * y - 1) ** 3 < x * x * y**3)


def arrow(u: Grid, v: Grid) -> tuple[Mask, Mask]:
    """An arrow, to the right until flipped."""
    head = (u > -0.05) & (np.abs(v) < 0.8 * (0.95 - u))
    return _plain(head | _box(u, v, -0.95, 0, -0.24, 0.24))


def fish(u: Grid, v: Grid) -> tuple[Mask, Mask]:
    """Body, tail and eye."""
    tail = (u > 0.35) & (u < 0.95) & (np.abs(v) < 0.9 * (u - 0.25))
    return _disc(u, v, -0.2, 0, 0.75, 0.5) | tail, _disc(u, v, -0.58, -0.1, 0.11, 0.11)


def house(u: Grid, v: Grid) -> tuple[Mask, Mask]:
    """Roof, walls, door and two windows."""
    dark = _box(u, v, -0.17, 0.17, 0.4, 0.9)
    for side in (-0.42, 0.42):
        dark |= _box(u, v, side - 0.13, side + 0.13, 0.08, 0.34)
    return _tent(u, v, -0.95, -0.05, 0.9) | _box(u, v, -0.66, 0.66, -0.1, 0.9), dark


def tree(u: Grid, v: Grid) -> tuple[Mask, Mask]:
    """A fir of three tiers on a dark trunk."""
    crown = _tent(u, v, -0.95, -0.3, 0.45) | _tent(u, v, -0.6, 0.15, 0.62) | _tent(u, v, -0.15, 0.6, 0.8)
    trunk = _box(u, v, -0.15, 0.15, 0.59, 0.95)
    return crown | trunk, trunk


def mushroom(u: Grid, v: Grid) -> tuple[Mask, Mask]:
    """A half-round cap on a stem."""
    cap = _disc(u, v, 0, 0.1, 0.95, 0.95) & (v < 0.1)
    return _plain(cap | _box(u, v, -0.26, 0.26, 0.05, 0.95))


CLASSES: dict[str, Shape] = {
    f.__name__: f for f in (star, ring, cross, crescent, heart, arrow, fish, house, tree, mushroom)
}


def _disc_clutter(u: Grid, v: Grid) -> tuple[Mask, Mask]:
    return _plain(_disc(u, v, 0, 0, 0.8, 0.8))


def _square(u: Grid, v: Grid) -> tuple[Mask, Mask]:
    return _plain(_box(u, v, -0.7, 0.7, -0.7, 0.7))


def _triangle(u: Grid, v: Grid) -> tuple[Mask, Mask]:
    return _plain(_tent(u, v, -0.8, 0.7, 0.85))


def _bar(u: Grid, v: Grid) -> tuple[Mask, Mask]:
    return _plain(_box(u, v, -0.95, 0.95, -0.25, 0.25))


def _half(u: Grid, v: Grid) -> tuple[Mask, Mask]:
    return _plain(_disc(u, v, 0, 0.3, 0.9, 0.9) & (v < 0.3))


def _angle(u: Grid, v: Grid) -> tuple[Mask, Mask]:
    return _plain(_box(u, v, -0.8, -0.3, -0.8, 0.8) | _box(u, v, -0.8, 0.8, 0.3, 0.8))


CLUTTER: tuple[Shape, ...] = (_disc_clutter, _square, _triangle, _bar, _half, _angle)
