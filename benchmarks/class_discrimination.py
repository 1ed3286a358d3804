"""Which methods tell two objects in one scene apart? Rates with 95 % intervals on two-object demo scenes.

    python -m benchmarks.class_discrimination --scenes 100 --out table.md

Each scene shows two objects of different classes. A method is asked for each of them; the answer counts if more
relevance lies on the asked object than on the other (mean over its pixels). Chance is 50 % per target; a map that
ignores the question gets one of both and never both.
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from scipy.stats import binomtest

from xattn import load
from xattn.attributions import methods
from xattn.evaluation import class_discrimination
from xattn.models.scenes import Scenes

CHUNK = 25


def rates(name: str, scenes: int, seed: int) -> tuple[int, int, float]:
    """Numbers of answers and of scenes that are right, and the seconds it took."""
    model, data = load("demo"), Scenes("two-object", scenes, seed)
    options = {"precision": "float64"} if methods[name].family == "relevance" else {}
    explainer = methods[name](model, **options)
    targets_right = scenes_right = 0
    start = time.perf_counter()
    for first in range(0, scenes, CHUNK):
        chunk = [data[i] for i in range(first, min(first + CHUNK, scenes))]
        images = torch.stack([model.preprocess(scene.image) for scene in chunk])
        maps = [explainer.attribute(images, torch.tensor([s.labels[k] for s in chunk])) for k in range(2)]
        masks = [torch.stack([s.masks[k] for s in chunk]) for k in range(2)]
        result = class_discrimination(*maps, *masks)
        targets_right += int(result["first"].sum() + result["second"].sum())
        scenes_right += int(result["both"].sum())
    return targets_right, scenes_right, time.perf_counter() - start


def percent(right: int, total: int) -> str:
    """A rate with its Wilson interval."""
    interval = binomtest(right, total).proportion_ci(method="wilson")
    return f"{100 * right / total:.1f} ({100 * interval.low:.1f} to {100 * interval.high:.1f})"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", default=",".join(methods))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    lines = [
        "| method | asks for a class | right per target, % | right for both, % | ms per map |",
        "|---|---|---|---|---|",
    ]
    for name in args.methods.split(","):
        single, both, seconds = rates(name, args.scenes, args.seed)
        specific = "yes" if methods[name].is_class_specific else "no"
        cells = (name, specific, percent(single, 2 * args.scenes), percent(both, args.scenes))
        lines.append(f"| {' | '.join(cells)} | {500 * seconds / args.scenes:.1f} |")
        sys.stderr.write(f"{lines[-1]}\n")
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
