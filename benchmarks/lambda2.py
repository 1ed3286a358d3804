"""Time the second eigenvalue against dense eigenvalues: `python -m benchmarks.lambda2 [--quick]`.

Only the ratios of one run mean anything: the machine's load is printed beside them. The heads are synthetic: low-rank
scores at many temperatures, local spatial attention, and a share of sinks, as in vision transformers.
"""

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks._rows import Row
from xattn.markov import second_eigenvalue

SIZES = ((197, 144), (1025, 16))
QUICK = ((197, 24),)


def heads(states: int, count: int, seed: int = 0) -> Tensor:
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


def timed(function: Callable[[], Tensor]) -> tuple[float, Tensor]:
    start = time.perf_counter()
    values = function()
    return time.perf_counter() - start, values


def main(quick: bool = False) -> list[Row]:
    """Speed-up and largest error of every mode, per size."""
    rows: list[Row] = []
    for states, count in QUICK if quick else SIZES:
        chain, case = heads(states, count), f"{count} heads of {states}"
        second_eigenvalue(chain[:2])
        dense_time, reference = timed(lambda chain=chain: torch.linalg.eigvals(chain).abs().topk(2).values[:, 1])
        rows.append(Row("lambda2", case, "eigvals, s", dense_time, None))
        for mode in ("default", "fast", "certified"):
            if mode == "certified" and states > 500:
                continue
            taken, values = timed(lambda chain=chain, mode=mode: second_eigenvalue(chain, mode=mode).modulus)
            error = ((values - reference).abs() / (reference + 1e-3)).max()
            rows.append(Row("lambda2", case, f"{mode}: speed-up", dense_time / taken, "higher"))
            rows.append(Row("lambda2", case, f"{mode}: max error", float(error), None))
    return rows


if __name__ == "__main__":
    from benchmarks.__main__ import run

    run([main])
