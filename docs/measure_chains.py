"""Measures the table of costs in `numerics.md` and writes it there: `python docs/measure_chains.py` (a minute)."""

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from xattn import markov

PAGE = Path(__file__).parent / "numerics.md"
SIZES = {65: 8, 197: 8, 577: 2, 1025: 1}
"""Tokens, and how many chains of that size are taken at once."""


def chains(tokens: int, count: int) -> Tensor:
    """Attention of random queries and keys that resemble each other a little."""
    generator = torch.Generator().manual_seed(0)
    query, noise = torch.randn(2, count, tokens, 32, generator=generator)
    return (1.5 * query @ (noise + query / 2).mT / 32**0.5).softmax(-1)


def milliseconds(function: Callable[[], object]) -> float:
    """Least processor time of three calls, after one to warm up."""
    function()
    times = []
    for _ in range(3):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return 1000 * min(times)


def jobs(chain: Tensor) -> dict[str, Callable[[], object]]:
    """What is timed."""
    start = torch.full((chain.shape[-1],), 1 / chain.shape[-1])
    return {
        "v A": partial(torch.bmm, start.expand(len(chain), 1, -1), chain),
        "`bounce`, n = 10": partial(markov.bounce, chain, start, 10),
        "`stationary`": partial(markov.stationary, chain),
        '`stationary`, method="anderson"': partial(markov.stationary, chain, method="anderson"),
        "`stationary`, alpha=1": partial(markov.stationary, chain, 1.0),
        "`second_eigenvalue`": partial(markov.second_eigenvalue, chain),
        '`second_eigenvalue`, mode="certified"': partial(markov.second_eigenvalue, chain, mode="certified"),
        "`torch.linalg.eigvals`, for comparison": partial(torch.linalg.eigvals, chain),
        "`diagnose`": partial(markov.diagnose, chain),
    }


def main() -> None:
    """Time everything at every size."""
    torch.set_num_threads(1)
    cells: dict[str, list[str]] = {}
    for tokens, count in SIZES.items():
        for name, job in jobs(chains(tokens, count)).items():
            cost = milliseconds(job) / count
            cells.setdefault(name, []).append(f"{cost:.2g}" if cost < 10 else f"{cost:.0f}")
    header = ["job", *(f"N = {tokens}" for tokens in SIZES)]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    lines += ["| " + " | ".join([name, *row]) + " |" for name, row in cells.items()]
    table = "\n".join(lines)
    page = PAGE.read_text()
    PAGE.write_text(re.sub(r"(<!-- measured.*?-->\n).*?(<!-- /measured -->)", rf"\g<1>{table}\n\2", page, flags=re.S))


if __name__ == "__main__":
    main()
