"""A run that is killed while it writes: the next one loses nothing, repeats nothing, and ends with the same rows."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from run_models import tiny

from xattn.evaluation import benchmark, load_dataset
from xattn.evaluation._rows import MEASURED

HERE = Path(__file__).parent
KILLED_AT = 4

SCRIPT = f"""
import os, signal, sys
sys.path.insert(0, {str(HERE)!r})
import torch
torch.set_num_threads(1)
from run_models import tiny
from xattn.evaluation import _rows, benchmark, load_dataset

write, count = _rows.pq.write_table, 0

def killed(table, file, **options):
    global count
    count += 1
    if count == {KILLED_AT}:
        file.write(b"PAR1 half a file")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    write(table, file, **options)

_rows.pq.write_table = killed
benchmark(tiny(), load_dataset("demo", n=6), ["token_rank", "raw_attention"], ["perturbation", "segmentation"],
          sys.argv[1], chunk_size=2)
"""


def run(out):
    model = tiny()
    methods, protocols = ["token_rank", "raw_attention"], ["perturbation", "segmentation"]
    results = benchmark(model, load_dataset("demo", n=6), methods, protocols, out, chunk_size=2)
    return results.rows.drop_columns(MEASURED).to_pylist(), model.module.rows


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_a_killed_run_is_taken_up_where_it_was(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "cut")], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    written = set((tmp_path / "cut").rglob("*.parquet"))
    assert len(written) == KILLED_AT - 1
    assert len(list((tmp_path / "cut").rglob("*.partial"))) == 1
    before = {file: file.stat().st_mtime_ns for file in written}

    whole, all_rows = run(tmp_path / "whole")
    resumed, rest = run(tmp_path / "cut")
    keys = [tuple(row[k] for k in ("method", "protocol", "metric", "sample_index")) for row in resumed]
    assert len(set(keys)) == len(keys)
    assert [row["value"] for row in resumed] == pytest.approx([row["value"] for row in whole], abs=1e-6, nan_ok=True)
    assert [row["configuration"] for row in resumed] == [row["configuration"] for row in whole]
    assert {file: file.stat().st_mtime_ns for file in written} == before
    # Of the first chunk of two pictures, one method is done and half of the other: its map is made again, not its 36
    # perturbed pictures, and neither are those of the first method, nor the black ones that both end with.
    assert all_rows == 3 * 2 * (1 + 1 + 2 * (1 + 18))
    assert rest == all_rows - 2 * (1 + 18) - 2 * 18 - 2
