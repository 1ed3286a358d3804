"""Pictures to begin with: generated scenes, and photographs of an installed scikit-image for models that know them."""

from typing import NamedTuple

from torch import Tensor

from xattn.models import read_image
from xattn.models.scenes import Scenes

SCENES = (("test", 0), ("test", 1), ("test", 2), ("test", 5), ("two-object", 0), ("two-object", 1))


class Example(NamedTuple):
    """A picture (3, H, W) and what is in it."""

    title: str
    picture: Tensor


def scenes() -> list[Example]:
    """Scenes of one and of two objects."""
    found = []
    for split, index in SCENES:
        scene = Scenes(split)[index]
        found.append(Example(" and ".join(scene.names), scene.image))
    return found


def photographs() -> list[Example]:
    """Photographs that scikit-image ships; none without it."""
    from xattn.demo import photo_files

    return [Example(title, read_image(path)) for title, path in photo_files([]).items()]
