"""Figures of a report, as PNG."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from torch import Tensor

from xattn._png import as_png
from xattn.evaluation.stats import Ranking

if TYPE_CHECKING:
    from xattn.evaluation.results import Results

Floats = NDArray[np.float64]


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
    from xattn import viz

    return as_png(viz.curves(curves, title=title, names=order))


def draw_ranks(ranking: Ranking, title: str) -> bytes:
    """PNG of average ranks; bars join methods that Nemenyi's test does not tell apart."""
    from xattn import viz

    return as_png(viz.critical_difference(ranking, title=title))


def draw_maps(image: Tensor, maps: Mapping[str, Tensor], title: str) -> bytes:
    """PNG of an image and its maps."""
    from xattn import viz

    return as_png(viz.comparison(image, maps, title=title, columns=6), dpi=70)
