"""From rows to one line per method: means, intervals, and which differences are real."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from xattn.evaluation._judges_mask import COUNTS
from xattn.evaluation.judges import Judge
from xattn.evaluation.metrics import Metric
from xattn.evaluation.stats import (
    Interval,
    compare_all,
    deviation,
    mean_interval,
    miou_interval,
    over_seeds,
    pooled_miou,
)

Key: TypeAlias = tuple[str, str]  # protocol and metric
Floats: TypeAlias = NDArray[np.float64]

DATASET_MIOU, IMAGE_MIOU = "miou_dataset", "miou_image"
_LEVEL = 0.05


@dataclass(frozen=True)
class Column:
    """One metric of one protocol."""

    protocol: str
    metric: Metric

    @property
    def title(self) -> str:
        """For the head of a table: metric with the arrow of its better direction."""
        return f"{self.metric.name} {self.metric.arrow}".rstrip()


@dataclass(frozen=True)
class Cell:
    """One method under one metric.

    Attributes:
        interval: Mean over images, or the data set's value, with its interval and the number of undefined images.
        constant: Number of images whose map had one value only, so that position alone ranks it.
        p_versus_best: Of the paired Wilcoxon test against the best method, after Holm; None for the best itself.
        is_best: Whether no other mean is better.
        is_clear: Whether it is best and differs significantly from every other method.
        is_tied: Whether it shares the first place: it does not differ significantly from the best, or is the best and
            some other does not differ from it.
        seeds: Number of seeds; values of an image are averaged over them.
        deviation: Standard deviation over seeds of the value over images; NaN for one seed.
    """

    interval: Interval
    constant: int = 0
    p_versus_best: float | None = None
    is_best: bool = False
    is_clear: bool = False
    is_tied: bool = False
    seeds: int = 1
    deviation: float = float("nan")


@dataclass(frozen=True)
class Summary:
    """A table of methods and metrics.

    Attributes:
        methods: Rows.
        columns: Columns.
        cells: What is in them, by method and column.
        images: Number of images.
        confidence: Of the intervals.
        kind: What the images are called: "images" or "sentences".
        note: What readers of the numbers have to know before all else.
    """

    methods: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[str, Column], Cell]
    images: int
    confidence: float = 0.95
    kind: str = "images"
    note: str = ""

    @property
    def seeds(self) -> int:
        """Largest number of seeds of a cell."""
        return max((cell.seeds for cell in self.cells.values()), default=1)

    def by_protocol(self) -> dict[str, "Summary"]:
        """A table for each protocol."""
        names = dict.fromkeys(column.protocol for column in self.columns)
        return {
            name: replace(self, columns=tuple(column for column in self.columns if column.protocol == name))
            for name in names
        }

    def undefined(self, method: str) -> int:
        """Largest number of images that are undefined under one of the metrics shown."""
        return max((self.cells[method, column].interval.undefined for column in self.columns), default=0)

    def constant(self, method: str) -> int:
        """Number of images whose map had one value only, and is not undefined."""
        return max((self.cells[method, column].constant for column in self.columns), default=0)

    def __str__(self) -> str:
        from xattn.evaluation._formats import to_markdown

        return to_markdown(self)

    def _repr_html_(self) -> str:
        from xattn.evaluation._formats import to_html

        return to_html(self)


class Scores:
    """Rows by protocol and metric, one array over the same images for each method, averaged over seeds.

    Args:
        rows: As `benchmark` writes them.
    """

    def __init__(self, rows: pa.Table) -> None:
        self.methods = tuple(dict.fromkeys(rows["method"].to_pylist()))
        self._index, place = np.unique(rows["sample_index"].to_numpy(), return_inverse=True)
        code = {name: i for i, name in enumerate(self.methods)}
        method = np.array([code[name] for name in rows["method"].to_pylist()], dtype=np.int64)
        self._cells: dict[Key, list[int]] = {}
        for i, key in enumerate(zip(rows["protocol"].to_pylist(), rows["metric"].to_pylist(), strict=True)):
            self._cells.setdefault(key, []).append(i)
        seeds, seed = np.unique(rows["seed"].fill_null(0).to_numpy(), return_inverse=True)
        self._seeds = len(seeds)
        self._where = {key: (method[at], seed[at], place[at]) for key, at in self._cells.items()}
        bad = rows["undefined"].to_numpy(zero_copy_only=False).astype(bool)
        self._value = np.where(bad, np.nan, rows["value"].to_numpy(zero_copy_only=False))
        self._constant = rows["constant"].to_numpy(zero_copy_only=False).astype(bool) & ~bad

    @property
    def images(self) -> int:
        """Number of images with a row."""
        return len(self._index)

    @property
    def keys(self) -> tuple[Key, ...]:
        """Protocols and metrics that were measured."""
        return tuple(self._cells)

    def values(self, protocol: str, metric: str) -> dict[str, Floats]:
        """Method to (images,) values, averaged over seeds; NaN where undefined for a seed, or missing."""
        return {name: table.mean(0) for name, table in self.by_seed(protocol, metric).items()}

    def by_seed(self, protocol: str, metric: str) -> dict[str, Floats]:
        """Method to (seeds, images) values of the seeds it was run with; NaN where undefined or missing."""
        return self._spread(protocol, metric, self._value)

    def constant(self, protocol: str, metric: str) -> dict[str, int]:
        """Method to its number of maps with one value only, other than those that are undefined for it."""
        found = self._spread(protocol, metric, self._constant)
        return {name: int((np.nan_to_num(table) > 0).any(0).sum()) for name, table in found.items()}

    def _spread(self, protocol: str, metric: str, source: NDArray[np.generic]) -> dict[str, Floats]:
        table = np.full((len(self.methods), self._seeds, self.images), np.nan)
        table[self._where[protocol, metric]] = source[self._cells[protocol, metric]]
        there = np.zeros((len(self.methods), self._seeds), dtype=bool)
        there[self._where[protocol, metric][:2]] = True
        there[~there.any(1), 0] = True
        return {name: own[run] for name, own, run in zip(self.methods, table, there, strict=True)}


class Summarizer:
    """Makes a `Summary` of scores.

    Args:
        scores: The rows, by protocol and metric.
        judges: The protocols that were run.
        confidence: Of the intervals.
        resamples: Of the bootstrap.
    """

    def __init__(self, scores: Scores, judges: Sequence[Judge], confidence: float, resamples: int) -> None:
        self.scores, self.judges, self.confidence, self.resamples = scores, judges, confidence, resamples

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Metrics that have rows, or counts to be pooled."""
        measured = set(self.scores.keys)
        return tuple(
            Column(judge.name, metric)
            for judge in self.judges
            for metric in judge.metrics
            if (judge.name, IMAGE_MIOU if metric.name == DATASET_MIOU else metric.name) in measured
        )

    def summary(self) -> Summary:
        """The table."""
        cells = {(name, column): cell for column in self.columns for name, cell in self.column(column).items()}
        return Summary(self.scores.methods, self.columns, cells, self.scores.images, self.confidence)

    def column(self, column: Column) -> dict[str, Cell]:
        """One metric of all methods."""
        pooled = column.metric.name == DATASET_MIOU
        runs = self._runs(column)
        per_image = self.scores.values(column.protocol, IMAGE_MIOU if pooled else column.metric.name)
        constant = self.scores.constant(column.protocol, IMAGE_MIOU if pooled else column.metric.name)
        intervals = self._pooled(column) if pooled else {name: self._mean(v) for name, v in per_image.items()}
        best = _best(intervals, column.metric.higher_is_better)
        p = {} if best is None else {c.first: c.p_adjusted for c in compare_all(per_image, reference=best)}
        tied = {name for name, value in p.items() if value >= _LEVEL}
        clear = not tied and any(value < _LEVEL for value in p.values())
        return {
            name: Cell(
                found,
                constant.get(name, 0),
                p.get(name),
                name == best,
                name == best and clear,
                name in tied or (name == best and bool(tied)),
                *runs[name],
            )
            for name, found in intervals.items()
        }

    def _mean(self, values: Floats) -> Interval:
        return mean_interval(values, confidence=self.confidence, resamples=self.resamples)

    def _runs(self, column: Column) -> dict[str, tuple[int, float]]:
        """Number of seeds of each method, and the standard deviation over them."""
        if column.metric.name != DATASET_MIOU:
            tables = self.scores.by_seed(column.protocol, column.metric.name)
            return {name: (len(table), over_seeds(table)[1]) for name, table in tables.items()}
        counts = [self.scores.by_seed(column.protocol, name) for name in COUNTS]
        return {
            name: (len(first), deviation([pooled_miou(*one) for one in zip(*(c[name] for c in counts), strict=True)]))
            for name, first in counts[0].items()
        }

    def _pooled(self, column: Column) -> dict[str, Interval]:
        """Data-set mIoU from the counts of each image, pooled over seeds as well."""
        counts = [self.scores.values(column.protocol, name) for name in COUNTS]
        return {
            name: miou_interval(
                *(count[name] for count in counts), confidence=self.confidence, resamples=self.resamples
            )
            for name in counts[0]
        }


def _best(intervals: Mapping[str, Interval], higher_is_better: bool | None) -> str | None:
    """Name with the best estimate; None where there is no better direction or nothing is defined."""
    defined = {name: found.estimate for name, found in intervals.items() if not np.isnan(found.estimate)}
    if higher_is_better is None or not defined:
        return None
    return (max if higher_is_better else min)(defined, key=lambda name: defined[name])
