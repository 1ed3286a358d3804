"""The second eigenvalue against `torch.linalg.eigvals` of the same float32 matrices.

    python -m benchmarks.lambda2 [--quick]
    OMP_NUM_THREADS=1 python -m benchmarks.lambda2

The heads are those of the backbone of `photos` (DINOv2 ViT-S/14) on photographs: all 144 of two at 197 tokens, and 16,
spread over the layers, of one at 1025. Synthetic heads have low-rank scores at many temperatures, local attention, and
a share of sinks.
"""

import math
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks._photos import attention, photographs
from benchmarks._rows import Row, seconds
from xattn.errors import WeightsError
from xattn.markov import second_eigenvalue
from xattn.models import photos

REPEATS = 5
DENSE = "torch.linalg.eigvals"


def photo_heads(states: int, count: int) -> Tensor:
    """(count, states, states), spread evenly over the layers and heads of as many photographs as it takes."""
    side = math.isqrt(states - 1)
    heads = torch.stack(attention(photos.backbone(), photographs(max(1, count // 72)), 14 * side)).flatten(0, 2)
    return heads[torch.linspace(0, len(heads) - 1, count).round().long()]


def synthetic_heads(states: int, count: int, seed: int = 0) -> Tensor:
    """Softmax attention (count, states, states) of one class token and a square grid of patches."""
    generator = torch.Generator().manual_seed(seed)
    side = math.isqrt(states - 1)
    axis = torch.arange(side, dtype=torch.float32)
    grid = torch.cat((torch.full((1, 2), side / 2), torch.cartesian_prod(axis, axis)))
    distance = torch.cdist(grid, grid).square()
    maps = []
    for index in range(count):
        queries, keys = torch.randn(2, states, 16, generator=generator)
        temperature = 0.3 + 3 * torch.rand((), generator=generator)
        logits = temperature * queries @ keys.T / 4
        if index % 3 == 0:
            logits = logits - distance / (1 + side * torch.rand((), generator=generator)) ** 2
        if index % 4 == 1:
            sink = int(torch.randint(states, (), generator=generator))
            logits[:, sink] += 6 * torch.rand((), generator=generator) * temperature
        maps.append(logits.softmax(-1))
    return torch.stack(maps)


KINDS: dict[str, Callable[[int, int], Tensor]] = {"photos": photo_heads, "synthetic": synthetic_heads}
SIZES, QUICK = ((197, 144), (1025, 16)), ((197, 24),)


def main(quick: bool = False) -> list[Row]:
    """Speed-up and largest error of every mode, per kind, number and size of heads."""
    rows = list[Row]()
    for kind, build in KINDS.items():
        for states, count in QUICK if quick else SIZES:
            try:
                chain, case = build(states, count), f"{kind}, {count} heads of {states}"
            except WeightsError as missing:
                print(f"lambda2: {kind} skipped. {missing}", file=sys.stderr)
                continue
            reference = torch.linalg.eigvals(chain).abs().topk(2).values[:, 1]
            rows += [*_errors(case, chain, reference), *_speed_ups(case, chain)]
    return rows


def _modes(chain: Tensor) -> tuple[str, ...]:
    return ("default", "fast", "certified") if chain.shape[-1] <= 500 else ("default", "fast")


def _errors(case: str, chain: Tensor, reference: Tensor) -> list[Row]:
    found = {mode: second_eigenvalue(chain, mode=mode).modulus for mode in _modes(chain)}
    errors = {mode: ((modulus - reference).abs() / (reference + 1e-3)).max() for mode, modulus in found.items()}
    return [Row("lambda2", case, f"{mode}: max error", float(error), None) for mode, error in errors.items()]


def _speed_ups(case: str, chain: Tensor) -> list[Row]:
    times = {
        mode: min(seconds(lambda mode=mode: second_eigenvalue(chain, mode=mode)) for _ in range(REPEATS))
        for mode in _modes(chain)
        if mode != "certified"
    }
    if "certified" in _modes(chain):
        times["certified"] = seconds(lambda: second_eigenvalue(chain, mode="certified"))
    dense = seconds(lambda: torch.linalg.eigvals(chain))
    rows = [Row("lambda2", case, f"{DENSE}, s", dense, None)]
    return rows + [Row("lambda2", case, f"{mode}: speed-up", dense / taken, "higher") for mode, taken in times.items()]


if __name__ == "__main__":
    from benchmarks.__main__ import run

    run([main])
