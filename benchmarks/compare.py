"""What got slower between two runs: `python benchmarks/compare.py BEFORE.json AFTER.json`.

The exit code is 1 if anything did.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

TOLERANCE = 0.15

Key = tuple[str, str, str]


def main(before: Path, after: Path) -> int:
    """Print every number that is worse by more than 15 %; returns how many."""
    old, new = _read(before), _read(after)
    for label, run in (("before", old), ("after", new)):
        print(f"{label}: load average {run['facts']['load_average']}, {run['facts']['threads']} threads")
    worse = slower(_values(old), _values(new))
    for (benchmark, case, metric), (was, now, change) in worse.items():
        print(f"{benchmark} | {case} | {metric}: {was:.4g} -> {now:.4g} ({change:+.0%})")
    shared = len(_values(old).keys() & _values(new).keys())
    print(f"{len(worse)} of {shared} shared numbers are worse by more than {TOLERANCE:.0%}")
    return len(worse)


def slower(
    old: dict[Key, tuple[float, str]], new: dict[Key, tuple[float, str]]
) -> dict[Key, tuple[float, float, float]]:
    """Old value, new value and relative loss of the shared numbers that got worse by more than the tolerance."""
    found = {}
    for key in old.keys() & new.keys():
        (was, better), (now, _) = old[key], new[key]
        first, second = (was, now) if better == "lower" else (now, was)
        loss = second / first - 1 if first > 0 else 0.0
        if loss > TOLERANCE:
            found[key] = (was, now, loss)
    return dict(sorted(found.items(), key=lambda entry: -entry[1][2]))


def _read(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def _values(run: dict[str, Any]) -> dict[Key, tuple[float, str]]:
    return {
        (row["benchmark"], row["case"], row["metric"]): (row["value"], row["better"])
        for row in run["rows"]
        if row["better"]
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    arguments = parser.parse_args()
    sys.exit(main(arguments.before, arguments.after) > 0)
