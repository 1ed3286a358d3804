"""How large relevance grows on its way from the score to the input."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from xattn.errors import ArgumentError
from xattn.viz._lines import style
from xattn.viz._panels import figure_of, single
from xattn.viz._reading import Array, as_array

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def relevance_layers(accounts: Mapping[str, object], *, ax: "Axes | None" = None, title: str | None = None) -> Figure:
    """Largest absolute relevance in every layer, on a logarithmic scale: the median of the samples, and their range.

    Rules that conserve stay near the size of the score; others may grow by orders of magnitude, and then single
    numbers decide a map.

        viz.relevance_layers({m.name: m(model, precision="float64").account(x) for m in (LRP, AttnLRP)})

    Args:
        accounts: Method name to what `.account` of a relevance method returns, or to its `largest`: layer name to
            (B,), from the input to the output. A layer that a method lacks leaves a gap in its line.
        ax: Where to draw; None makes a new figure.
        title: Written above.

    Raises:
        ArgumentError: If there are no accounts or layers, or a layer has not one number per sample.
    """
    sizes = {name: _sizes(name, account) for name, account in accounts.items()}
    layers = list(dict.fromkeys(layer for own in sizes.values() for layer in own))
    if not layers:
        raise ArgumentError("accounts: expected at least one account with at least one layer, got none")
    ax = single(ax, (2.2 + 0.45 * len(layers), 4.0))
    places = np.arange(len(layers), dtype=np.float64)
    for place, (name, own) in enumerate(sizes.items()):
        look = style(place)
        low, middle, high = (np.array([_of(own.get(layer), q) for layer in layers]) for q in (0.0, 0.5, 1.0))
        ax.fill_between(places, low, high, color=look["color"], alpha=0.15, linewidth=0)
        label = name if np.isfinite(middle).any() else f"{name} (nothing above zero)"
        ax.plot(places, middle, label=label, marker="o", markersize=4, **look)
    ax.set_yscale("log")
    ax.set_xticks(places, [layer or "(model)" for layer in layers], rotation=45, ha="right", fontsize=8)
    ax.set_ylabel("largest absolute relevance")
    ax.set_xlabel("from the input to the output")
    if title:
        ax.set_title(title, loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize="small", handlelength=3)
    return figure_of(ax)


def _sizes(name: str, account: object) -> dict[str, Array]:
    largest = getattr(account, "largest", account)
    if not isinstance(largest, Mapping):
        raise ArgumentError(f"accounts[{name!r}]: expected an Account, got {type(account).__name__}")
    sizes = {str(layer): as_array(values, f"accounts[{name!r}]") for layer, values in largest.items()}
    for layer, values in sizes.items():
        if values.ndim != 1 or not values.size:
            raise ArgumentError(f"accounts[{name!r}]: expected (B,) in layer {layer!r}, got shape {values.shape}")
    return sizes


def _of(values: Array | None, quantile: float) -> float:
    """Quantile of the positive finite values, NaN without any: a logarithm has no place for zero."""
    shown = np.array([]) if values is None else values[np.isfinite(values) & (values > 0)]
    return float(np.quantile(shown, quantile)) if shown.size else float("nan")
