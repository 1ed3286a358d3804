"""TransInterp against the plain forward and backward pass of the same model: time per image, and peak memory.

    python benchmarks/transinterp.py [--model vit_base_patch16_224] [--batch 8] [--repeats 2] [--threads 1]

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

from xattn.attributions.relevance import TransInterp

CASES = ("idle", "plain", "transinterp")


def main() -> None:
    arguments = _arguments()
    if arguments.case:
        print(json.dumps(_measure(arguments)))
        return
    results = {}
    for case in CASES:
        command = [sys.executable, __file__, *sys.argv[1:], "--case", case]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        results[case] = json.loads(out.splitlines()[-1])
    idle = results["idle"]["peak"]
    plain, ours = results["plain"], results["transinterp"]
    for case in CASES[1:]:
        seconds, peak = results[case]["seconds"], results[case]["peak"] - idle
        print(f"{case:12s} {seconds / arguments.batch:8.3f} s per image {peak / 2**20:8.0f} MiB above the loaded model")
    memory = (ours["peak"] - idle) / (plain["peak"] - idle)
    print(f"{'ratio':12s} {ours['seconds'] / plain['seconds']:8.2f} {memory:20.2f}")


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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit_base_patch16_224")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
