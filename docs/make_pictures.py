"""Draws the pictures of the documentation: `python docs/make_pictures.py`.

The tutorial and the page on numerics write theirs themselves: their code is run, and what it saved is kept.

The method cards show one generated scene with two objects, explained by every registered method on the `demo` model;
methods that ask for a class are asked for both. The scene is the first of its split whose two objects are the model's
two most probable classes.
"""

import os
import re
import shutil
import tempfile
import warnings
from pathlib import Path

from matplotlib.figure import Figure

from xattn import load, viz
from xattn.attributions import methods
from xattn.errors import PrecisionWarning
from xattn.models.model import Model
from xattn.models.scenes import Scene, Scenes

DOCS = Path(__file__).resolve().parent
PAGES = ("tutorial", "numerics")


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


def draw_cards(folder: Path) -> None:
    """One picture for each method."""
    model = load("demo")
    scene = find_scene(model)
    for name in methods:
        draw(name, model, scene).savefig(folder / f"{name}.jpg", dpi=90, pil_kwargs={"quality": 80, "optimize": True})


def draw_page(page: str, folder: Path) -> None:
    """The pictures that the code of a page saves."""
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", (DOCS / f"{page}.md").read_text(), re.S | re.M))
    with tempfile.TemporaryDirectory() as work:
        before = Path.cwd()
        os.chdir(work)
        try:
            exec(compile(code, f"{page}.md", "exec"), {"__name__": "__main__"})
        finally:
            os.chdir(before)
        for picture in Path(work).glob("*.jpg"):
            shutil.copy(picture, folder)


def main() -> None:
    """Draw all of them."""
    for folder in ("methods", *PAGES):
        (DOCS / "images" / folder).mkdir(parents=True, exist_ok=True)
    draw_cards(DOCS / "images" / "methods")
    for page in PAGES:
        draw_page(page, DOCS / "images" / page)


if __name__ == "__main__":
    main()
