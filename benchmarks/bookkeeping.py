r"""What a run costs beyond its methods and protocols: reading samples aside, rows, files and summaries.

    python -m benchmarks.bookkeeping [--quick]

A run of `benchmark` states the seconds of each method and protocol; the rest of its wall time is the overhead, less
what reading and preprocessing the samples takes, which is measured by itself. The full demo evaluation is

    xattn evaluate --model demo --data demo --limit 200 --protocol perturbation,segmentation,token-masking \
        --method tokenrank,n_bounce,lambda2_rollout,column_sum,raw_attention,attention_rollout,attention_gradcam,\
    gradient_rollout,generic_attention,token_gradcam,prediction_map,random
"""

import tempfile
import time

from benchmarks._rows import Row
from xattn import load
from xattn.evaluation import benchmark, load_dataset
from xattn.evaluation._chunk import make_chunk

METHODS = ("tokenrank", "generic_attention", "random")
PROTOCOLS = ("perturbation", "segmentation", "token-masking")


def main(quick: bool = False) -> list[Row]:
    """Share of the wall time that is overhead, and the seconds of a resumed run that has nothing to do."""
    count = 16 if quick else 64
    model, data = load("demo"), load_dataset("demo", n=count)
    start = time.perf_counter()
    samples = list(data.samples(model))
    for first in range(0, count, 16):
        make_chunk(model, samples[first : first + 16], explained="predicted", batch_size=32)
    reading = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        results = benchmark(model, data, METHODS, PROTOCOLS, folder)
        wall = time.perf_counter() - start
        start = time.perf_counter()
        benchmark(model, data, METHODS, PROTOCOLS, folder)
        resumed = time.perf_counter() - start
    worked = _worked(results.rows.to_pylist())
    case = f"demo, {len(METHODS)} methods, {len(PROTOCOLS)} protocols, {count} scenes"
    return [
        Row("bookkeeping", case, "wall time, s", wall, None),
        Row("bookkeeping", case, "overhead, share of wall time", (wall - worked - reading) / wall),
        Row("bookkeeping", case, "nothing left to do, s", resumed),
        Row("bookkeeping", case, "wall time per method, protocol and scene, ms", 1000 * wall / count / 9),
    ]


def _worked(rows: list[dict[str, object]]) -> float:
    """Seconds of all methods, each once per sample, and of all protocols."""
    methods = {(row["method"], row["sample_index"]): float(str(row["seconds"])) for row in rows}
    protocols = {
        (row["method"], row["protocol"], row["sample_index"]): float(str(row["seconds_protocol"])) for row in rows
    }
    return sum(methods.values()) + sum(protocols.values())


if __name__ == "__main__":
    from benchmarks.__main__ import run

    run([main])
