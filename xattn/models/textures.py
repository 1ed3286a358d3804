"""Two-colour textures of the scene generator.

Only `Generator.random` is drawn from: its stream is the one numpy keeps stable between versions.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Grid = npt.NDArray[np.float32]
_KINDS = ("stripes", "checker", "dots", "noise", "gradient")
_CELLS = 12


@lru_cache
def _interpolation(size: int) -> Grid:
    """The (size, cells) matrix that resizes a row of cells linearly."""
    place = np.linspace(0, _CELLS - 1, size)
    weights: Grid = np.maximum(0, 1 - np.abs(place[:, None] - np.arange(_CELLS)[None])).astype(np.float32)
    return weights


def pattern(rng: np.random.Generator, x: Grid, y: Grid) -> Grid:
    """A random pattern with values from 0 to 1 on the pixel coordinates x (1, w) and y (h, 1)."""
    draw = rng.random(5).astype(np.float32)
    kind = _KINDS[int(draw[0] * len(_KINDS))]
    angle, period, phase = draw[1] * np.float32(np.pi), 6 + 8 * draw[2], draw[3] * np.float32(2 * np.pi)
    c, s = np.cos(angle), np.sin(angle)
    along, across = c * x + s * y, c * y - s * x
    wave = np.float32(2 * np.pi) / period
    values: Grid
    if kind == "stripes":
        values = 0.5 + 2 * np.sin(wave * along + phase)
    elif kind == "checker":
        values = 0.5 + 4 * np.sin(wave * along + phase) * np.sin(wave * across)
    elif kind == "dots":
        values = 2 * (np.sin(wave * along + phase) + np.sin(wave * across) - 0.6)
    elif kind == "gradient":
        values = ((along - along.min()) / max(float(np.ptp(along)), 1)).astype(np.float32)
    else:
        cells = rng.random((_CELLS, _CELLS)).astype(np.float32)
        smooth = _interpolation(y.shape[0]) @ cells @ _interpolation(x.shape[1]).T
        values = (1.8 * smooth - 0.4).astype(np.float32)
    return values.clip(0, 1)


def lighter(rng: np.random.Generator, background: Grid, contrast: float = 0.25) -> Grid:
    """A random colour (3,) whose mean is above that of the background colour by at least `contrast`."""
    for _ in range(30):
        drawn = (0.05 + 0.9 * rng.random(3)).astype(np.float32)
        if drawn.mean() - background.mean() >= contrast:
            return drawn
    return np.full(3, 0.95, dtype=np.float32)


def paint(values: Grid, first: Grid, second: Grid) -> Grid:
    """Colours a pattern (h, w): (3, h, w), 0 is the first colour and 1 the second."""
    painted: Grid = first[:, None, None] + values[None] * (second - first)[:, None, None]
    return painted
