"""Curves of a score over the share of the input that was removed, one line per method."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from xattn.errors import ArgumentError
from xattn.viz._lines import line, style
from xattn.viz._panels import figure_of, single
from xattn.viz._reading import Array, as_array

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def curves(
    curves: Mapping[str, object],
    *,
    ax: "Axes | None" = None,
    title: str | None = None,
    xlabel: str = "fraction",
    ylabel: str = "mean score",
    names: Sequence[str] | None = None,
    confidence: float = 0.95,
    resamples: int = 1000,
) -> Figure:
    """Mean curve of each method with its pointwise bootstrap band over samples.

        viz.curves({name: perturbation(model, images, relevance) for name, relevance in maps.items()})

    Args:
        curves: Method name to a `Curve` of `xattn.evaluation`, or to a pair of fractions (S,) and values (n, S).
            Samples with NaN are left out and counted in the legend.
        ax: Where to draw; None makes a new figure.
        title: Written above.
        xlabel: Name of the horizontal axis.
        ylabel: Name of the vertical axis.
        names: All names of a family of figures, so that a method looks the same in each; None takes those of `curves`.
        confidence: Of the bands.
        resamples: Of the bootstrap. A single curve has no band.

    Raises:
        ArgumentError: If there are no curves, shapes do not fit, or a name is not among `names`.
    """
    if not curves:
        raise ArgumentError("curves: expected at least one curve, got none")
    order = list(curves if names is None else names)
    missing = [name for name in curves if name not in order]
    if missing:
        raise ArgumentError(f"names: expected all methods among them, {missing} are not")
    ax = single(ax, (8.4, 4.2))
    for name, curve in curves.items():
        x, values = _points(name, curve)
        line(ax, x, values, confidence, resamples, name, **style(order.index(name)))
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    if title:
        ax.set_title(title, loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize="small", handlelength=3)
    return figure_of(ax)


def _points(name: str, curve: object) -> tuple[Array, Array]:
    if hasattr(curve, "fractions") and hasattr(curve, "values"):
        pair: object = (curve.fractions, curve.values)
    else:
        pair = curve
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ArgumentError(
            f"curves[{name!r}]: expected a Curve or a pair (fractions, values), got {type(curve).__name__}"
        )
    x, values = as_array(pair[0], f"curves[{name!r}]"), as_array(pair[1], f"curves[{name!r}]")
    if x.ndim != 1 or values.ndim != 2 or values.shape[1] != len(x) or 0 in values.shape:
        raise ArgumentError(
            f"curves[{name!r}]: expected fractions (S,) and values (n, S), got shapes {x.shape} and {values.shape}"
        )
    if not np.isfinite(x).all():
        raise ArgumentError(f"curves[{name!r}]: expected finite fractions, got {x.tolist()}")
    return x, values
