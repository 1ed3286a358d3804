"""How many power iterations TokenRank needs in each layer and head of `photos`: a table and a figure.

    python -m benchmarks.tokenrank_iterations [--photographs 16] [--out docs]

The walk is TokenRank's: patches alone, forward, uniform start, p uniform, alpha = 0.99. It stops as the published power
method does, when one step changes the distribution by less than the tolerance (L1 norm).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks._photos import attention, photographs
from xattn.markov import stationary
from xattn.models import photos

ALPHA, TOLERANCES = 0.99, (1e-3, 1e-5)


def iterations(layers: Sequence[Tensor], tolerance: float) -> Tensor:
    """(photographs, layers, heads) products with the chain."""
    chains = torch.stack(tuple(layers), 1)[..., 1:, 1:]  # without the class token
    chains = chains / chains.sum(-1, keepdim=True)
    return stationary(chains, ALPHA, tol=tolerance, method="power", stop="change").iterations


def page(counts: dict[float, Tensor]) -> str:
    """The table: per layer, over heads and photographs."""
    number = len(next(iter(counts.values())))
    heads = " | ".join(f"change < {tolerance:g}: median | 5 % | 95 % | most" for tolerance in counts)
    lines = [
        "# How many iterations TokenRank needs",
        "",
        f"Power iterations on the attention of `photos` ({photos.SIZE} x {photos.SIZE} pixels, {number} photographs),",
        "over photographs and heads: patches alone, uniform start, alpha = 0.99, until one step changes the",
        "distribution by less than the tolerance in the L1 norm. The authors of the method report about 20 for Stable",
        "Diffusion 1.5. The distribution can then still be off by up to 99 times the change: `stationary` therefore",
        "solves directly or stops by a bound of the error, and its users do not pay these counts.",
        "Made by `python -m benchmarks.tokenrank_iterations`.",
        "",
        f"| layer | {heads} |",
        f"| --- |{' ---: |' * 4 * len(counts)}",
    ]
    layers = next(iter(counts.values())).shape[1]
    for label, part in [*((str(i + 1), slice(i, i + 1)) for i in range(layers)), ("all", slice(None))]:
        cells = [f"{value:.0f}" for count in counts.values() for value in _spread(count[:, part])]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    figure = "![Median number of iterations per layer and head](images/tokenrank_iterations.png)"
    return "\n".join([*lines, "", figure, ""])


def _spread(count: Tensor) -> list[float]:
    values = count.flatten().double()
    return [values.quantile(q).item() for q in (0.5, 0.05, 0.95)] + [values.max().item()]


def picture(counts: dict[float, Tensor]) -> Figure:
    """Median over photographs for each layer and head, one panel per tolerance."""
    figure = Figure(figsize=(4.6 * len(counts), 5), layout="constrained")
    for axes, (tolerance, count) in zip(figure.subplots(1, len(counts)), counts.items(), strict=True):
        median = count.double().quantile(0.5, 0)
        image = axes.imshow(median, cmap="viridis", aspect="auto")
        for (layer, head), value in zip(
            torch.cartesian_prod(*map(torch.arange, median.shape)), median.flatten(), strict=True
        ):
            shade = "black" if value > (median.max() + median.min()) / 2 else "white"
            axes.text(head, layer, f"{value:.0f}", ha="center", va="center", color=shade, fontsize=8)
        axes.set(xlabel="head", ylabel="layer", title=f"iterations until the change is below {tolerance:g}")
        axes.set_xticks(range(median.shape[1]), range(1, median.shape[1] + 1))
        axes.set_yticks(range(median.shape[0]), range(1, median.shape[0] + 1))
        figure.colorbar(image, ax=axes, shrink=0.7)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--photographs", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for the page and its picture")
    options = parser.parse_args(arguments)
    layers = attention(photos.build(), photographs(options.photographs), photos.SIZE)
    counts = {tolerance: iterations(layers, tolerance) for tolerance in TOLERANCES}
    (options.out / "images").mkdir(parents=True, exist_ok=True)
    (options.out / "tokenrank_iterations.md").write_text(page(counts))
    picture(counts).savefig(options.out / "images" / "tokenrank_iterations.png", dpi=110)


if __name__ == "__main__":
    main()
