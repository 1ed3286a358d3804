"""The demo: three photographs and a few scenes explained by every method, as pictures and one page."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from xattn._demo_page import page
from xattn.attributions import TransformerAttribution, methods
from xattn.errors import MissingDependencyError, WeightsError
from xattn.explain import explain
from xattn.explanation import Explanation, write_atomically
from xattn.models import load
from xattn.models.model import Model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PHOTOS = {"cat": "chelsea.png", "coffee cup": "coffee.png", "rocket": "rocket.jpg"}
BOXES = {"coffee cup": (0.03, 0.62, 0.17, 0.80), "rocket": (0.28, 0.95, 0.47, 0.57)}
"""Drawn by hand around the object: top, bottom, left, right as shares of the square that the model sees."""

SCENES = (("test", 0), ("test", 1), ("test", 2), ("two-object", 0), ("two-object", 1))

Progress = Callable[[str, str], object]


@dataclass(frozen=True)
class Item:
    """One picture of the demo.

    Attributes:
        title: What is in it.
        explanation: What the methods say.
        figure: Its file name.
        is_photo: Whether it is a photograph and no scene.
        region: What `area` and `inside` are about: the exact objects of a scene, a box in a photograph, "" for none.
        area: Share of the picture that the region covers.
        inside: Method name to the share of its relevance that lies in the region.
    """

    title: str
    explanation: Explanation
    figure: str
    is_photo: bool
    region: str = ""
    area: float = 0.0
    inside: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Demo:
    """What the demo made.

    Attributes:
        items: The pictures, photographs first.
        notes: What was left out, and why.
        paths: The files written, the page first.
    """

    items: tuple[Item, ...]
    notes: tuple[str, ...]
    paths: tuple[Path, ...]


def run_demo(out: Path, progress: Progress = lambda picture, method: None) -> Demo:
    """Explain the demo's pictures with every registered method and write PNGs and `index.html`.

    Args:
        out: Folder to write to; made if it is missing.
        progress: Called with picture and method before each step.

    Raises:
        ArgumentError: If the folder cannot be written to.
        WeightsError: If the weights of `demo` are damaged.
    """
    notes: list[str] = []
    items: list[Item] = []
    paths: list[Path] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the page says what the methods warned of
        for item, figure in chain(_photographs(notes, progress), _scenes(progress)):
            paths.append(write_atomically(out / item.figure, partial(figure.savefig, dpi=130)))
            items.append(item)
    text = page(items, notes)
    paths.insert(0, write_atomically(out / "index.html", lambda file: file.write(text.encode())))
    return Demo(tuple(items), tuple(notes), tuple(paths))


def photo_files(notes: list[str]) -> dict[str, Path]:
    """Title to file of the photographs in the installed scikit-image; nothing is imported or downloaded."""
    spec = find_spec("skimage")
    if spec is None or spec.origin is None:
        notes.append('the photographs come with scikit-image, which is not installed: pip install "xattn[photos]"')
        return {}
    folder = Path(spec.origin).parent / "data"
    found = {title: folder / name for title, name in PHOTOS.items() if (folder / name).is_file()}
    missing = [name for name in PHOTOS.values() if not (folder / name).is_file()]
    if missing:
        notes.append(f"this scikit-image does not ship {', '.join(missing)}, so they are left out")
    return found


def _photographs(notes: list[str], progress: Progress) -> "Iterator[tuple[Item, Figure]]":
    files = photo_files(notes)
    if not files:
        return
    try:
        model = load("photos")
    except (WeightsError, MissingDependencyError) as error:
        notes.append(f"the photographs are left out: {error}")
        return
    for title, file in files.items():
        explanation = explain(model, file, _explainers(model), progress=partial(progress, title))
        region, area, inside = "", 0.0, {}
        if title in BOXES:
            mask = _box(*BOXES[title], size=explanation.input.shape[-2:])
            region, area, inside = f"a box drawn around the {title}", float(mask.mean()), _inside(mask, explanation)
        figure = f"photo-{_slug(title)}.png"
        yield Item(title, explanation, figure, True, region, area, inside), explanation.plot()


def _explainers(model: Model) -> dict[str, TransformerAttribution]:
    """Every registered method; relevance is propagated in float64, where rounding decides nothing."""
    precise: dict[str, Any] = {"precision": "float64"}
    return {name: m(model, **precise) if m.family == "relevance" else m(model) for name, m in methods.items()}


def _scenes(progress: Progress) -> "Iterator[tuple[Item, Figure]]":
    from xattn.models.scenes import Scenes

    model = load("demo")
    for split, index in SCENES:
        scene = Scenes(split)[index]
        title = " and ".join(scene.names)
        explanation = explain(model, scene.image, _explainers(model), progress=partial(progress, title))
        mask = scene.mask.float()
        figure = f"scene-{split}-{index}-{_slug(title)}.png"
        inside = _inside(mask, explanation)
        yield Item(title, explanation, figure, False, "the objects", float(mask.mean()), inside), explanation.plot()


def share_on(mask: Tensor, relevance: Tensor) -> float:
    """Share of the positive relevance (h, w) that lies on the mask (H, W); NaN if none is positive.

    A patch that the mask covers in part counts in part. Relevance spread evenly gives the mask's share of the area.
    """
    cover = F.adaptive_avg_pool2d(mask[None].double(), (relevance.shape[0], relevance.shape[1]))[0]
    positive = relevance.double().clamp_min(0)
    return float((positive * cover).sum() / positive.sum())


def _inside(mask: Tensor, explanation: Explanation) -> dict[str, float]:
    return {name: share_on(mask, relevance) for name, relevance in explanation.maps.items()}


def _box(top: float, bottom: float, left: float, right: float, size: Sequence[int]) -> Tensor:
    """(H, W) mask of a box given in shares of the picture."""
    mask = torch.zeros(size[0], size[1])
    mask[round(top * size[0]) : round(bottom * size[0]), round(left * size[1]) : round(right * size[1])] = 1
    return mask


def _slug(title: str) -> str:
    return title.replace(" ", "-")
