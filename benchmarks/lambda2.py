"""Time the second eigenvalue against dense eigenvalues: `python benchmarks/lambda2.py [--quick]`.

Only the ratios of one run mean anything: the machine's load is printed beside them. The heads are synthetic: low-rank
scores at many temperatures, local spatial attention, and a share of sinks, as in vision transformers.
"""

import argparse
import math
import os
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small batch")
    quick = parser.parse_args().quick
    table = Table(
        title=f"|lambda_2| in float32, {torch.get_num_threads()} threads, load average {os.getloadavg()[0]:.1f}"
    )
    for column in ("states", "heads", "method", "ms", "speed-up", "max error"):
        table.add_column(column, justify="right")
    for states, count in QUICK if quick else SIZES:
        chain = heads(states, count)
        second_eigenvalue(chain[:2])
        dense_time, reference = timed(lambda chain=chain: torch.linalg.eigvals(chain).abs().topk(2).values[:, 1])
        table.add_row(str(states), str(count), "torch.linalg.eigvals", f"{1e3 * dense_time:.0f}", "1", "")
        for mode in ("default", "fast", "certified"):
            if mode == "certified" and states > 500:
                continue
            seconds, values = timed(lambda chain=chain, mode=mode: second_eigenvalue(chain, mode=mode).modulus)
            error = ((values - reference).abs() / (reference + 1e-3)).max()
            table.add_row("", "", mode, f"{1e3 * seconds:.0f}", f"{dense_time / seconds:.1f}", f"{float(error):.1e}")
    Console().print(table)


if __name__ == "__main__":
    main()
