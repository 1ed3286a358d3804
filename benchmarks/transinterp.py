"""TransInterp against the plain forward and backward pass of the same model: time per image, and peak memory.

    python -m benchmarks.transinterp [--model vit_base_patch16_224] [--batch 8] [--repeats 2] [--threads 1]

Each case runs in a process of its own, so that its peak memory is its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings

import timm
import torch

from benchmarks._rows import Row
from xattn.attributions.relevance import TransInterp

CASES = ("idle", "plain", "transinterp")


def main(quick: bool = False) -> list[Row]:
    """Seconds per image, and time and memory as multiples of the plain pass."""
    return _rows(_arguments(["--model", "vit_small_patch16_224", "--batch", "4", "--repeats", "1"] if quick else []))


def _rows(arguments: argparse.Namespace) -> list[Row]:
    idle, plain, ours = (_in_process(case, arguments) for case in CASES)
    case = f"{arguments.model}, batch {arguments.batch}"
    per_image = [
        Row("transinterp", case, f"{name}, s per image", found["seconds"] / arguments.batch)
        for name, found in (("forward and backward", plain), ("TransInterp", ours))
    ]
    rows = [*per_image, Row("transinterp", case, "time / forward and backward", ours["seconds"] / plain["seconds"])]
    above = plain["peak"] - idle["peak"]
    if above > 0:  # loading a small model may take more than running it
        memory = (ours["peak"] - idle["peak"]) / above
        rows.append(Row("transinterp", case, "memory / forward and backward", memory))
    return rows


def _in_process(case: str, arguments: argparse.Namespace) -> dict[str, float]:
    options = [f"--{name}={getattr(arguments, name)}" for name in ("model", "batch", "repeats", "threads")]
    command = [sys.executable, "-m", "benchmarks.transinterp", *options, "--case", case]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(out.splitlines()[-1])
    return result


def _measure(arguments: argparse.Namespace) -> dict[str, float]:
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")  # random weights: nobody relies on the maps
    model = timm.create_model(arguments.model, pretrained=False).eval()
    images = torch.randn(arguments.batch, *timm.data.resolve_model_data_config(model)["input_size"])

    def plain() -> None:
        model.zero_grad()
        model(images).amax(-1).sum().backward()

    run = {"plain": plain, "transinterp": lambda: TransInterp(model).attribute(images), "idle": lambda: None}[
        arguments.case
    ]
    times = []
    for _ in range(arguments.repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return {"seconds": min(times), "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def _arguments(options: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="vit_base_patch16_224")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    return parser.parse_args(options)


if __name__ == "__main__":
    given = _arguments()
    if given.case:
        print(json.dumps(_measure(given)))
    else:
        for row in _rows(given):
            print(f"{row.case} | {row.metric}: {row.value:.3f}")
