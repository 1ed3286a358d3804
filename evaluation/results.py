"""What a run found: per-sample rows, and tables made of them."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from xattn.errors import ArgumentError
from xattn.evaluation import _formats
from xattn.evaluation._rows import SCHEMA, read_part
from xattn.evaluation._summary import Scores, Summarizer, Summary
from xattn.evaluation.judges import Judge
from xattn.explanation import write_atomically
from xattn.models.model import Model

if TYPE_CHECKING:
    from xattn.evaluation._plan import Job, Plan


@dataclass(frozen=True, eq=False)
class Example:
    """A sample with its maps, for illustration.

    Attributes:
        name: Of the sample.
        image: (3, h, w) as the model saw it, in 0..1.
        maps: Method to (h, w) relevance.
    """

    name: str
    image: Tensor
    maps: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Results:
    """Rows of a run with what is needed to read them.

    Attributes:
        rows: One row per sample, method and metric; columns as in `xattn.evaluation._rows.SCHEMA`.
        judges: The protocols.
        skipped: Name to reason of samples that could not be used.
        refused: Method to reason of methods that do not apply to the model.
        facts: Model, data, configuration of methods and protocols, versions.
        examples: The first samples with their maps.
    """

    rows: pa.Table
    judges: tuple[Judge, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    examples: tuple[Example, ...] = ()

    @classmethod
    def gather(cls, plan: "Plan", jobs: "Sequence[Job]") -> "Results":
        """Read what a finished run wrote."""
        from xattn.evaluation._facts import facts_of

        tables, skipped, refused = [SCHEMA.empty_table()], dict[str, str](), dict[str, str]()
        maps: dict[int, dict[str, Tensor]] = {}
        for unit in (unit for job in jobs for unit in job.units):
            table, part = read_part(unit.path)
            tables.append(table)
            skipped |= part.skipped
            if part.refused:
                refused[unit.method] = part.refused
            for index, values in part.maps.items():
                maps.setdefault(index, {}).setdefault(unit.method, torch.tensor(values))
        examples = (_example(plan, index, found) for index, found in sorted(maps.items()))
        rows = pa.concat_tables(tables).unify_dictionaries()
        return cls(rows, plan.judges, skipped, refused, facts_of(plan, len(skipped)), tuple(examples))

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods that have rows."""
        return tuple(dict.fromkeys(self.rows["method"].to_pylist()))

    def table(self, *, correct_only: bool = False, confidence: float = 0.95, resamples: int = 2000) -> Summary:
        """One line per method: means with bootstrap intervals, and which differences are real.

        Undefined values are left out and counted. The best method of a column is compared with each other one by
        Wilcoxon's paired test, with Holm's correction.

        Args:
            correct_only: Only samples whose class the model predicts correctly.
            confidence: Of the intervals.
            resamples: Of the bootstrap.

        Raises:
            ArgumentError: If there are no rows to show.
        """
        rows = self.rows.filter(pc.fill_null(self.rows["correct"], False)) if correct_only else self.rows
        if not rows.num_rows:
            which = "correctly classified samples" if correct_only else "rows"
            raise ArgumentError(f"table: there are no {which}; {len(self.skipped)} samples could not be used")
        summary = Summarizer(Scores(rows), self.judges, confidence, resamples).summary()
        kind = "sentences" if self.facts.get("reads") == "text" else "images"
        return replace(summary, kind=kind, note=self.facts.get("quick", ""))

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained HTML page: table, curves, ranks, configuration, versions."""
        from xattn.evaluation.report import page

        return self._write(path, lambda _: page(self))

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the table as CSV, one line per method and metric."""
        return self._write(path, _formats.to_csv)

    def to_markdown(self, path: str | os.PathLike[str]) -> Path:
        """Write the table in Markdown."""
        return self._write(path, _formats.to_markdown)

    def to_latex(self, path: str | os.PathLike[str]) -> Path:
        """Write the table in LaTeX (booktabs)."""
        return self._write(path, _formats.to_latex)

    def to_parquet(self, path: str | os.PathLike[str]) -> Path:
        """Write all rows into one file."""
        return write_atomically(path, lambda file: pq.write_table(self.rows, file, compression="zstd"))

    def _write(self, path: str | os.PathLike[str], make: Callable[[Summary], str]) -> Path:
        text = make(self._summary)
        return write_atomically(path, lambda file: file.write(text.encode()))

    @property
    def _summary(self) -> Summary:
        if "_table" not in self.__dict__:
            object.__setattr__(self, "_table", self.table())
        found: Summary = self.__dict__["_table"]
        return found


def _example(plan: "Plan", index: int, maps: Mapping[str, Tensor]) -> Example:
    assert isinstance(plan.model, Model)  # sentences have no example maps
    sample = plan.dataset.sample(index, plan.model)
    return Example(sample.name, plan.model.denormalize(sample.image).float().cpu(), maps)
