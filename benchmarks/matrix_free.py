"""Chains of long sequences without their matrix: seconds, and peak memory above the inputs.

    python -m benchmarks.matrix_free [--quick]

Each case runs in a process of its own, so that its peak memory is its own. One head of width 64, float32.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks._rows import Row, seconds
from xattn.markov import AttentionOperator, rollout_row

SIZES, QUICK, WIDTH = (4096, 16384), (2048,), 64
CASES: dict[str, Callable[[AttentionOperator], object]] = {
    "setup": lambda operator: operator.states,
    "A x": lambda operator: operator.matvec(torch.ones(operator.states)),
    "v A": lambda operator: operator.rmatvec(torch.ones(operator.states)),
    "n_bounce (n=2)": lambda operator: operator.bounce(0, 2),
    "rollout row, 2 layers": lambda operator: rollout_row([operator, operator]),
    "lambda2": lambda operator: operator.second_eigenvalue(),
    "token_rank": lambda operator: operator.token_rank(tol=1e-4),
}


def main(quick: bool = False) -> list[Row]:
    """Seconds and memory for each size and case."""
    rows: list[Row] = []
    for states in QUICK if quick else SIZES:
        for case in CASES:
            found, label = _in_process(case, states), f"{case}, N={states}"
            rows.append(Row("matrix_free", label, "seconds", found["seconds"]))
            rows.append(Row("matrix_free", label, "MiB above the inputs", found["peak"] / 2**20))
    return rows


def _in_process(case: str, states: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.matrix_free", "--case", case, "--states", str(states)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(out.splitlines()[-1])
    return result


def _measure(case: str, states: int) -> dict[str, float]:
    query, key = torch.randn(2, 1, states, WIDTH, generator=torch.Generator().manual_seed(0))
    CASES[case](AttentionOperator(query[:, :8], key[:, :8], materialize=False))  # what torch loads on first use
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak starts anew at what is resident now
    before = _memory("VmRSS")
    taken = seconds(lambda: CASES[case](AttentionOperator(query, key, materialize=False)))
    return {"seconds": taken, "peak": _memory("VmHWM") - before}


def _memory(field: str) -> float:
    """Bytes of this process by the kernel's own count."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * float(next(line.split()[1] for line in lines if line.startswith(f"{field}:")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--states", type=int, help=argparse.SUPPRESS)
    arguments, _ = parser.parse_known_args()
    if arguments.case:
        print(json.dumps(_measure(arguments.case, arguments.states)))
    else:
        from benchmarks.__main__ import run

        run([main])
