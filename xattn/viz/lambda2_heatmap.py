"""How slowly each head forgets where a walk began, and what the slowest heads look at."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from xattn.errors import ArgumentError
from xattn.viz._heatmap import as_table, heatmap
from xattn.viz._panels import canvas
from xattn.viz._reading import Array, as_array
from xattn.viz.overlay import overlay

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def lambda2_heatmap(
    lambda2: object,
    attention: object | None = None,
    image: object | None = None,
    *,
    best: int = 3,
    title: str | None = None,
    smooth: bool = False,
    axes: "Iterable[Axes] | None" = None,
) -> Figure:
    """Modulus of the second eigenvalue by layer and head, and beside it the attention of the heads where it is largest.

        lambda2 = markov.second_eigenvalue(chains).modulus          # chains (layers, heads, N, N)
        viz.lambda2_heatmap(lambda2, RawAttention(model, layers="all").maps(x)[0], image)

    Args:
        lambda2: (layers, heads), from 0 to 1; NaN is hatched.
        attention: (layers, heads, h, w), as `RawAttention(model, layers="all").maps(x)[0]`; None draws the heat map
            alone.
        image: What the attention is laid over, as in `overlay`; goes with `attention`.
        best: How many heads are shown; they are numbered in the heat map.
        title: Written above the figure.
        smooth: As in `overlay`.
        axes: Where to draw, one for the heat map and one per shown head; as in `comparison`.

    Raises:
        ArgumentError: If shapes do not fit, a modulus is outside of 0..1, or one of `attention` and `image` is
            missing.
    """
    table = as_table(lambda2, "lambda2")
    finite = table[np.isfinite(table)]
    if finite.size and (finite.min() < 0 or finite.max() > 1 + 1e-3):
        raise ArgumentError(f"lambda2: expected moduli in 0..1, got {finite.min():.3g} to {finite.max():.3g}")
    maps = _attention(attention, image, table)
    if best < 0 or not isinstance(best, int):
        raise ArgumentError(f"best: expected zero or more heads, got {best!r}")
    heads = [] if maps is None else _largest(table, best)
    cell = (2.6, 2.8)
    columns = len(heads) + 1
    figure, panels = canvas(columns, columns, axes, title=title, cell=cell, width_ratios=[1.9, *(1.0 for _ in heads)])
    if axes is None:
        figure.set_size_inches(cell[0] * (columns + 0.9), cell[1] + 0.4 * bool(title))
    heatmap(panels[0], table, Normalize(0, 1), label="modulus of λ₂", form="{:.2f}", title=None)
    for number, ((layer, head), ax) in enumerate(zip(heads, panels[1:], strict=True), 1):
        panels[0].add_patch(Rectangle((head - 0.5, layer - 0.5), 1, 1, fill=False, edgecolor="#d55e00", linewidth=2.5))
        panels[0].annotate(
            str(number), (head + 0.5, layer - 0.5), ha="right", va="top", fontsize=7, weight="bold", color="white",
            bbox={"facecolor": "#d55e00", "edgecolor": "none", "pad": 1},
        )  # fmt: skip
        assert maps is not None  # there are no heads without
        name = f"{number}: layer {layer}, head {head}\nλ₂ = {table[layer, head]:.2f}"
        overlay(image, maps[layer, head], ax=ax, title=name, smooth=smooth)
    return figure


def _attention(attention: object | None, image: object | None, table: Array) -> Array | None:
    if (attention is None) != (image is None):
        missing = "image" if image is None else "attention"
        raise ArgumentError(f"{missing}: attention and image go together, got only one of them")
    if attention is None:
        return None
    maps = as_array(attention, "attention")
    if maps.ndim != 4 or maps.shape[:2] != table.shape:
        raise ArgumentError(f"attention: expected {(*table.shape, 'h', 'w')} as lambda2 has, got shape {maps.shape}")
    return maps


def _largest(table: Array, count: int) -> list[tuple[int, int]]:
    """(layer, head) of the largest finite values, largest first."""
    order = np.argsort(-np.nan_to_num(table, nan=-np.inf, posinf=-np.inf), axis=None, kind="stable")
    places = [(int(i) // table.shape[1], int(i) % table.shape[1]) for i in order[:count]]
    return [place for place in places if np.isfinite(table[place])]
