"""Scenes with known answers: textured objects on textured backgrounds, with exact masks.

A scene depends on (split, seed, index) alone. Colour, texture, size and place are drawn independently of the class,
so only the silhouette tells what an object is. Objects and clutter alike are lighter than the background; clutter is
drawn below the objects and never covers them.

Example:
    >>> scene = Scenes("test", n=4)[2]
    >>> tuple(scene.image.shape), scene.names, bool(scene.mask.any())
    ((3, 96, 96), ('arrow',), True)
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from xattn.models._splits import check_split
from xattn.models.shapes import CLASSES, CLUTTER, Grid, Mask, Shape
from xattn.models.textures import lighter, paint, pattern

SIZE = 96
NAMES: tuple[str, ...] = tuple(CLASSES)
SPLITS: dict[str, int] = {"train": 0, "val": 1, "test": 2, "two-object": 3, "two-object-train": 4}
"""Each split has a number that enters the seed of its scenes, so no two splits share a scene."""

_RADIUS = {1: (17.0, 32.0), 2: (15.0, 22.0)}
_TILT = np.pi / 7
_X = np.arange(SIZE, dtype=np.float32)[None, :]
_Y = np.arange(SIZE, dtype=np.float32)[:, None]


@dataclass(frozen=True)
class Scene:
    """One picture and what is in it.

    Attributes:
        image: (3, 96, 96) float32 in [0, 1].
        labels: class of each object, the first one being `label`.
        masks: (objects, 96, 96) bool, exact and disjoint.
    """

    image: Tensor
    labels: tuple[int, ...]
    masks: Tensor

    @property
    def label(self) -> int:
        """Class of the first object."""
        return self.labels[0]

    @property
    def mask(self) -> Tensor:
        """(96, 96) bool: all objects together."""
        return self.masks.any(0)

    @property
    def names(self) -> tuple[str, ...]:
        """Class names of the objects."""
        return tuple(NAMES[label] for label in self.labels)


class Scenes(torch.utils.data.Dataset[Scene]):
    """A split of scenes, made on demand.

    Args:
        split: "train", "val", "test" (one object), "two-object" (two objects of different classes), or
            "two-object-train".
        n: number of scenes.
        seed: another seed gives other scenes; 0 is the seed of every figure stated for the `demo` model.
    """

    def __init__(self, split: str = "test", n: int = 1000, seed: int = 0) -> None:
        check_split(split, n, seed, SPLITS)
        self.split, self.n, self.seed = split, n, seed
        self.objects = 2 if split.startswith("two") else 1

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Scene:
        if not -self.n <= index < self.n:
            raise IndexError(f"scene {index} of a split of {self.n}")
        image, labels, masks = render(self._rng(index % self.n), self.objects)
        return Scene(torch.from_numpy(image), labels, torch.from_numpy(masks))

    def __iter__(self) -> Iterator[Scene]:
        return (self[i] for i in range(self.n))

    def background(self, index: int) -> Tensor:
        """The scene without its objects, clutter included: (3, 96, 96)."""
        return torch.from_numpy(render(self._rng(index % self.n), self.objects, draw_objects=False)[0])

    def batch(self, indices: range | list[int] | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Stacks scenes: images (B, 3, 96, 96), labels (B, objects), masks (B, objects, 96, 96)."""
        scenes = [self[i] for i in (range(self.n) if indices is None else indices)]
        labels = torch.tensor([scene.labels for scene in scenes])
        return torch.stack([s.image for s in scenes]), labels, torch.stack([s.masks for s in scenes])

    def _rng(self, index: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, SPLITS[self.split], index])


def render(rng: np.random.Generator, objects: int, draw_objects: bool = True) -> tuple[Grid, tuple[int, ...], Mask]:
    """Draws one scene: image (3, 96, 96), classes, masks (objects, 96, 96)."""
    base = (0.05 + 0.45 * rng.random(3)).astype(np.float32)
    second = np.clip(base + 0.4 * (rng.random(3).astype(np.float32) - 0.5), 0.05, 0.55)
    grain = (0.06 * (rng.random((3, SIZE, SIZE), dtype=np.float32) - 0.5)).astype(np.float32)
    image = paint(pattern(rng, _X, _Y), base, second)
    for _ in range(2 + int(4 * rng.random())):
        kind, size, place = int(len(CLUTTER) * rng.random()), 4 + 9 * rng.random(), SIZE * rng.random(2)
        _draw(rng, image, base, CLUTTER[kind], (place[0], place[1]), size, np.pi)
    first = int(len(NAMES) * rng.random())
    labels = [first, (first + 1 + int((len(NAMES) - 1) * rng.random())) % len(NAMES)][:objects]
    masks = np.zeros((objects, SIZE, SIZE), dtype=bool)
    canvas = image if draw_objects else image.copy()
    for i, (centre, radius) in enumerate(_places(rng, objects)):
        masks[i] = _draw(rng, canvas, base, CLASSES[NAMES[labels[i]]], centre, radius, _TILT)
    return image + grain, tuple(labels), masks


def _places(rng: np.random.Generator, objects: int) -> list[tuple[tuple[float, float], float]]:
    """Centres and radii of circles inside the picture that do not overlap."""
    low, high = _RADIUS[objects]
    for _ in range(60):
        radii = low + (high - low) * rng.random(objects)
        centres = radii[:, None] + (SIZE - 1 - 2 * radii[:, None]) * rng.random((objects, 2))
        if objects == 1 or np.hypot(*(centres[0] - centres[1])) > radii.sum():
            break
    else:
        radii, centres = np.full(2, low), np.array([[low, low], [SIZE - 1 - low, SIZE - 1 - low]])
    return [((float(c[0]), float(c[1])), float(r)) for c, r in zip(centres, radii, strict=True)]


def _draw(
    rng: np.random.Generator,
    image: Grid,
    background: Grid,
    shape: Shape,
    centre: tuple[float, float],
    radius: float,
    tilt: float,
) -> Mask:
    """Draws a shape into the image in place and returns its silhouette (96, 96)."""
    angle, flip = tilt * (2 * rng.random() - 1), -1 if rng.random() < 0.5 else 1
    left, top = (max(0, int(c - 1.45 * radius)) for c in centre)
    right, bottom = (min(SIZE, int(c + 1.45 * radius) + 2) for c in centre)
    x, y = _X[:, left:right], _Y[top:bottom]
    c, s = np.float32(np.cos(angle) / radius), np.float32(np.sin(angle) / radius)
    dx, dy = x - np.float32(centre[0]), y - np.float32(centre[1])
    silhouette, dark = shape(flip * (c * dx + s * dy), c * dy - s * dx)
    first, second = lighter(rng, background), lighter(rng, background)
    painted = paint(pattern(rng, x, y), first, second)
    window = image[:, top:bottom, left:right]
    window[...] = np.where(silhouette, np.where(dark, 0.03 + 0.22 * painted, painted), window)
    mask = np.zeros((SIZE, SIZE), dtype=bool)
    mask[top:bottom, left:right] = silhouette
    return mask
