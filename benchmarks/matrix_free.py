"""Chains of long sequences without their matrix: seconds, and peak memory above the inputs.

    python -m benchmarks.matrix_free [--quick]

Each case runs in a process of its own, so that its peak memory is its own. One head of width 64, float32.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from xattn.markov import AttentionOperator, rollout_row

SIZES, QUICK, WIDTH = (4096, 16384), (2048,), 64
Row = dict[str, str | int | float]
CASES: dict[str, Callable[[AttentionOperator], object]] = {
    "idle": lambda operator: None,
    "setup": lambda operator: operator.states,
    "A x": lambda operator: operator.matvec(torch.ones(operator.states)),
    "v A": lambda operator: operator.rmatvec(torch.ones(operator.states)),
    "n_bounce (n=2)": lambda operator: operator.bounce(0, 2),
    "rollout row, 2 layers": lambda operator: rollout_row([operator, operator]),
    "lambda2": lambda operator: operator.second_eigenvalue(),
    "token_rank": lambda operator: operator.token_rank(tol=1e-4),
}


def main(quick: bool = False) -> list[Row]:
    """One row for each size and case."""
    rows: list[Row] = []
    for states in QUICK if quick else SIZES:
        found = {case: _in_process(case, states) for case in CASES}
        for case in list(CASES)[1:]:
            extra = (found[case]["peak"] - found["idle"]["peak"]) / 2**20
            rows.append(
                {
                    "benchmark": "matrix_free",
                    "case": f"{case}, N={states}",
                    "seconds": found[case]["seconds"],
                    "extra MiB": extra,
                }
            )
    return rows


def _in_process(case: str, states: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.matrix_free", "--case", case, "--states", str(states)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(out.splitlines()[-1])
    return result


def _measure(case: str, states: int) -> dict[str, float]:
    query, key = torch.randn(2, 1, states, WIDTH, generator=torch.Generator().manual_seed(0))
    warm = AttentionOperator(query[:, :8], key[:, :8], materialize=False)  # what torch loads on first use
    CASES[case](warm)
    start = time.perf_counter()
    if case != "idle":
        CASES[case](AttentionOperator(query, key, materialize=False))
    return {
        "seconds": time.perf_counter() - start,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short sequence")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--states", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(_measure(arguments.case, arguments.states)))
    else:
        for row in main(arguments.quick):
            print(row)
