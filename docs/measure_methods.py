"""Measures the table of `methods/index.md` and writes it there: `python docs/measure_methods.py` (some minutes)."""

import re
import warnings
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from xattn import load
from xattn.attributions import methods
from xattn.errors import PrecisionWarning
from xattn.evaluation import parameter_randomization, random_logit, rank_correlation, relevance_mass
from xattn.models.scenes import Scenes

PAGE = Path(__file__).parent / "methods" / "index.md"
SCENES, RANDOMIZED = 48, 12
HEADER = ("method", "same for another class", "head randomised", "all randomised", "column sum", "mass on the object")


def relevance(name: str, model: nn.Module, images: Tensor, target: Tensor) -> Tensor:
    """Patch maps of one method; relevance propagation in float64, so that rounding plays no part."""
    kind = methods[name]
    method = kind(model, precision="float64") if kind.family == "relevance" else kind(model)
    return method.attribute(images, target, resolution="patch")


def main() -> None:
    """Measure every registered method."""
    warnings.simplefilter("ignore", PrecisionWarning)
    model = load("demo").module
    preprocess = load("demo").preprocess
    scenes = [Scenes("test")[i] for i in range(SCENES)]
    images = torch.stack([preprocess(scene.image) for scene in scenes])
    masks = torch.stack([scene.mask for scene in scenes])
    with torch.no_grad():
        target = model(images).argmax(1)
    columns = relevance("column_sum", model, images, target)
    few = images[:RANDOMIZED], target[:RANDOMIZED]
    lines = ["| " + " | ".join(HEADER) + " |", "|---" * len(HEADER) + "|"]
    for name in methods:
        maps = relevance(name, model, images, target)
        other = random_logit(partial(relevance, name, model), images, target, num_classes=10)
        shaken = parameter_randomization(partial(relevance, name), model, *few).similarity
        same = rank_correlation(maps, columns)
        mass = relevance_mass(maps.repeat_interleave(8, 1).repeat_interleave(8, 2), masks)
        numbers = (other, shaken[:, 0], shaken[:, -1], same, mass)
        lines.append(f"| [{name}]({name}.md) | " + " | ".join(f"{float(x.nanmean()):.2f}" for x in numbers) + " |")
    page = PAGE.read_text()
    table = "\n".join(lines)
    PAGE.write_text(re.sub(r"(<!-- measured.*?-->\n).*?(<!-- /measured -->)", rf"\g<1>{table}\n\2", page, flags=re.S))


if __name__ == "__main__":
    main()
