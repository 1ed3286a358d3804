"""All benchmarks: `python -m benchmarks [NAME ...] [--quick] [--out FILE.json]`; see `benchmarks/README.md`.

Numbers of different runs compare only as ratios, and only on a quiet machine; the load average is recorded with them.
"""

import argparse
import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks._rows import Row

NAMES = (
    "lambda2",
    "capture",
    "matrix_free",
    "transinterp",
    "prediction_attention",
    "perturbation",
    "segmentation",
    "bookkeeping",
    "peers",
)
Benchmark = Callable[[bool], list[Row]]


def run(benchmarks: Sequence[Benchmark] | None = None) -> None:
    """Run benchmarks as the command line asks, show a table and write the rows."""
    arguments = _arguments(named=benchmarks is None)
    if benchmarks is None:
        benchmarks = [importlib.import_module(f"benchmarks.{name}").main for name in arguments.names or NAMES]
    before, rows = os.getloadavg(), list[Row]()
    for benchmark in benchmarks:
        start, name = time.perf_counter(), benchmark.__module__.rpartition(".")[2]
        rows += benchmark(arguments.quick)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
        if arguments.out:  # after each one, so that a run that is broken off leaves what it has
            content = {"facts": _facts(before), "rows": [asdict(row) for row in rows]}
            arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    Console().print(_table(rows, _facts(before)))


def _facts(before: tuple[float, float, float]) -> dict[str, object]:
    """What the numbers depend on."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": platform.machine(),
        "load_average": [round(value, 2) for value in before],
        "load_average_after": [round(value, 2) for value in os.getloadavg()],
    }


def _table(rows: Sequence[Row], facts: dict[str, object]) -> Table:
    title = f"torch {facts['torch']}, {facts['threads']} threads, load average {facts['load_average']} before"
    table = Table("benchmark", "case", "metric", title=title)
    table.add_column("value", justify="right")
    for row in rows:
        table.add_row(row.benchmark, row.case, row.metric, f"{row.value:.4g}")
    return table


def _arguments(named: bool) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    if named:
        parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small sizes, few repeats")
    parser.add_argument("--out", type=Path, help="JSON file for `python benchmarks/compare.py A.json B.json`")
    arguments = parser.parse_args()
    unknown = [name for name in getattr(arguments, "names", []) if name not in NAMES]
    if unknown:
        parser.error(f"expected any of {', '.join(NAMES)}; got {unknown[0]!r}")
    return arguments


if __name__ == "__main__":
    sys.exit(run())
