"""Draws the pictures of the method cards: `python docs/make_pictures.py`.

One generated scene with two objects, explained by every registered method on the `demo` model; methods that ask for a
class are asked for both. The scene is the first of its split whose two objects are the model's two most probable
classes.
"""

import warnings
from pathlib import Path

import torch
from matplotlib.figure import Figure

from xattn import load, viz
from xattn.attributions import methods
from xattn.errors import PrecisionWarning
from xattn.models.model import Model
from xattn.models.scenes import Scene, Scenes

FOLDER = Path(__file__).parent / "images" / "methods"


def find_scene(model: Model) -> Scene:
    """The first two-object scene that the model sees both objects of."""
    for scene in Scenes("two-object"):
        best = {entry.name for entry in model.predict(model.preprocess(scene.image), k=2)[0]}
        if best == set(scene.names):
            return scene
    raise LookupError("no scene")


def draw(name: str, model: Model, scene: Scene) -> Figure:
    """The scene and one map, or one for each of the two objects."""
    batch = model.preprocess(scene.image)[None]
    kind = methods[name]
    method = kind(model, precision="float64") if kind.family == "relevance" else kind(model)
    targets = scene.names if method.is_class_specific else ("",)
    maps = {}
    for target in targets:
        index = model.classes.index(target) if target else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrecisionWarning)
            relevance = method.attribute(batch, index, resolution="patch")[0]
        maps[f"asked for {target}" if target else name] = relevance
    return viz.comparison(scene.image, maps)


def save(figure: Figure, path: Path) -> None:
    """A JPEG, which is smaller than a PNG here."""
    figure.savefig(path, dpi=90, pil_kwargs={"quality": 80, "optimize": True})


def main() -> None:
    """Draw all of them."""
    torch.manual_seed(0)
    model = load("demo")
    scene = find_scene(model)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in methods:
        save(draw(name, model, scene), FOLDER / f"{name}.jpg")


if __name__ == "__main__":
    main()
