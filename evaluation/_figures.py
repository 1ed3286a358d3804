"""Figures of a report: curves with bands, and the critical-difference diagram. Nothing is shown, nothing global set."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from xattn.evaluation.stats import Ranking

if TYPE_CHECKING:
    from xattn.evaluation.results import Results

Floats = NDArray[np.float64]

_RESAMPLES = 500
_COLOURS = (
    "#3b0f70",
    "#c98a00",
    "#0a7a5c",
    "#d1495b",
    "#2274a5",
    "#7a7a85",
    "#8f2d56",
    "#5c8001",
    "#e07a5f",
    "#264653",
)
_STYLES = ("-", "--", ":")


def curves_of(results: "Results", protocol: str, metric: str) -> dict[str, tuple[Floats, Floats]]:
    """Method to fractions (S,) and curves (n, S) of the samples where they are defined."""
    rows = results.rows
    chosen = rows.filter(
        pc.and_(
            pc.equal(rows["protocol"], protocol), pc.and_(pc.equal(rows["metric"], metric), pc.is_valid(rows["curve"]))
        )
    )
    found = {}
    for name in dict.fromkeys(chosen["method"].to_pylist()):
        own: pa.Table = chosen.filter(pc.and_(pc.equal(chosen["method"], name), pc.invert(chosen["undefined"])))
        if own.num_rows:
            found[name] = np.array(own["fractions"][0].as_py()), np.array(own["curve"].to_pylist(), dtype=np.float64)
    return found


def draw_curves(curves: Mapping[str, tuple[Floats, Floats]], title: str, order: Sequence[str]) -> bytes:
    """PNG of the mean curves with their pointwise 95 % bootstrap bands."""
    figure = Figure(figsize=(8.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, (x, values) in curves.items():
        place = order.index(name)
        colour, style = _COLOURS[place % len(_COLOURS)], _STYLES[place // len(_COLOURS) % len(_STYLES)]
        low, high = band(values)
        axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.plot(x, values.mean(0), color=colour, linestyle=style, label=name)
    axes.set_title(title, loc="left")
    axes.set_xlabel("fraction")
    axes.set_ylabel("mean score")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize="small")
    return _png(figure)


def band(values: Floats) -> tuple[Floats, Floats]:
    """Pointwise 95 % percentile bootstrap of the mean of (n, S) curves."""
    n = len(values)
    weights = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=_RESAMPLES) / n
    low, high = np.quantile(weights @ values, [0.025, 0.975], axis=0)
    return low, high


def draw_ranks(ranking: Ranking, title: str) -> bytes:
    """PNG of average ranks; bars join methods that Nemenyi's test does not tell apart."""
    count = len(ranking.names)
    bars = ranking.cliques()
    figure = Figure(figsize=(8.4, 0.9 + 0.26 * count + 0.12 * len(bars)), layout="constrained")
    axes = figure.subplots()
    place = dict(zip(ranking.names, ranking.ranks, strict=True))
    for i, (name, rank) in enumerate(place.items()):
        axes.plot([rank, rank], [0, -(i + 1)], color="#b9b9c4", linewidth=0.8)
        axes.plot([rank, count + 0.4], [-(i + 1)] * 2, color="#b9b9c4", linewidth=0.8)
        axes.plot(rank, 0, "o", color="#3b0f70", markersize=4)
        axes.text(count + 0.45, -(i + 1), f"{rank:.2f}  {name}", va="center", fontsize="small")
    for i, names in enumerate(bars):
        height = 0.35 + 0.35 * i
        axes.plot([place[names[0]], place[names[-1]]], [height, height], color="#c98a00", linewidth=3)
    axes.set_xlim(0.8, count + 0.4)
    axes.set_ylim(-(count + 0.8), 0.7 + 0.35 * len(bars))
    axes.set_title(f"{title} (critical difference {ranking.critical_difference:.2f})", loc="left", fontsize="medium")
    axes.set_yticks([])
    axes.xaxis.tick_top()
    axes.spines[["left", "right", "bottom"]].set_visible(False)
    return _png(figure)


def draw_maps(image: Tensor, maps: Mapping[str, Tensor], title: str) -> bytes:
    """PNG of an image and its maps."""
    from xattn.viz import comparison

    return _png(comparison(image, maps, title=title, columns=6), dpi=70)


def _png(figure: Figure, dpi: int = 110) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()
