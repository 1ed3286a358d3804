"""The work itself: one chunk of samples, every method on it once, and every protocol on every map."""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from xattn._versions import versions
from xattn.errors import CaptureError, LayoutError, UnsupportedModelError
from xattn.evaluation._chunk import AnyChunk, make_chunk
from xattn.evaluation._plan import Job, Plan, Unit, is_random
from xattn.evaluation._rows import Part
from xattn.evaluation.datasets import BrokenSampleError, Sample
from xattn.evaluation.judges import Measured

EXAMPLES = 3
"""Number of samples, the first ones, whose maps are kept for reports."""

_REFUSALS = (UnsupportedModelError, LayoutError, CaptureError)


class Worker:
    """Does chunks of a plan, with one model and one set of attribution objects.

    Args:
        plan: What to do.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.methods = self._methods(plan)
        self.judges = {judge.name: judge for judge in plan.judges}
        self.constants = {
            "model": plan.model.name,
            "model_hash": plan.model_hash,
            "dataset": plan.dataset.name,
            "versions": json.dumps(versions()),
        }

    def run(self, job: Job) -> Iterator[tuple[Unit, Part]]:
        """The rows of each unit, as soon as they are known.

        Raises:
            BrokenSampleError: For the first unusable sample, unless the plan skips them.
            XattnError: What a method or protocol asked for by name raises.
        """
        samples, skipped = self._samples(job)
        if not samples:
            yield from ((unit, Part(skipped=skipped)) for unit in job.units)
            return
        plan = self.plan
        chunk = make_chunk(plan.model, samples, explained=plan.explained, batch_size=plan.batch_size)
        for name, own in groupby(job.units, key=lambda unit: unit.method):
            explained: dict[int, tuple[Tensor, float]] = {}  # a method without a seed explains once for all seeds
            for seed, units in groupby(own, key=lambda unit: unit.seed):
                chunk.method, chunk.seed = self.methods[name, seed], seed
                try:
                    if id(chunk.method) not in explained:
                        explained[id(chunk.method)] = _explain(chunk, name)
                except _REFUSALS as error:
                    if not plan.skip_refused:
                        raise
                    yield from ((unit, Part(skipped=skipped, refused=str(error))) for unit in units)
                    continue
                relevance, seconds = explained[id(chunk.method)]
                maps = chunk.shown(relevance, EXAMPLES) if seed == plan.seed else {}
                for unit in units:
                    yield unit, Part(self._judge(chunk, relevance, unit, seconds), skipped, maps=maps)

    @staticmethod
    def _methods(plan: Plan) -> dict[tuple[str, int], Any]:
        """Attribution objects by name and seed; one for all seeds where the seed plays no part."""
        first = plan.build_methods()
        built = {seed: plan.build_methods(seed) for seed in plan.seeds}
        return {
            (name, seed): built[seed][name] if is_random(method) else first[name]
            for name, method in plan.methods.items()
            for seed in plan.seeds
        }

    def _samples(self, job: Job) -> tuple[list[Sample], dict[str, str]]:
        samples, skipped = [], {}
        for index in range(job.start, job.stop):
            try:
                samples.append(self.plan.dataset.sample(index, self.plan.model))
            except BrokenSampleError as error:
                if not self.plan.skip_broken:
                    raise
                skipped[self.plan.dataset.sample_name(index)] = str(error)
        return samples, skipped

    def _judge(self, chunk: AnyChunk, relevance: Tensor, unit: Unit, seconds: float) -> list[dict[str, Any]]:
        start = _now(chunk)
        measured = self.judges[unit.protocol](chunk, relevance)
        size = len(chunk.samples)
        facts = {
            **self.constants,
            "method": unit.method,
            "seed": unit.seed,
            "protocol": unit.protocol,
            "configuration": unit.configuration,
            "seconds": seconds / size,
            "seconds_protocol": (_now(chunk) - start) / size,
            "peak_memory_mb": peak_memory(chunk.inputs.device),
        }
        return list(_rows(chunk, measured, facts))


def _explain(chunk: AnyChunk, name: str) -> tuple[Tensor, float]:
    """Relevance of a chunk, and the seconds it took."""
    start = _now(chunk)
    try:
        relevance = chunk.attribute(chunk.target)
    except Exception as error:
        error.add_note(f"method {name!r}, samples {chunk.samples[0].name} to {chunk.samples[-1].name}")
        raise
    return relevance, _now(chunk) - start


def _rows(chunk: AnyChunk, measured: Mapping[str, Measured], facts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    predictions, targets = chunk.clean.argmax(1).tolist(), chunk.target.tolist()
    for metric, found in measured.items():
        values = found.values.detach().cpu().double()
        undefined = values.isnan() if found.undefined is None else found.undefined.cpu() | values.isnan()
        constant = torch.zeros_like(undefined) if found.constant is None else found.constant
        columns = zip(values.tolist(), undefined.tolist(), constant.tolist(), strict=True)
        fractions = None if found.fractions is None else found.fractions.tolist()
        curves = None if found.curves is None else found.curves.tolist()
        for i, (sample, (value, bad, flat)) in enumerate(zip(chunk.samples, columns, strict=True)):
            answers = sample.object_labels or (() if sample.label is None else (sample.label,))
            yield {
                **facts,
                "metric": metric,
                "value": value,
                "undefined": bad,
                "constant": flat,
                "sample": sample.name,
                "sample_index": sample.index,
                "label": sample.label,
                "prediction": predictions[i],
                "correct": predictions[i] in answers if answers else None,
                "target": targets[i],
                "fractions": fractions,
                "curve": None if curves is None else curves[i],
            }


def peak_memory(device: torch.device) -> float:
    """Largest memory so far in MB: the device's on CUDA, else the process's; NaN where it cannot be told."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def _now(chunk: AnyChunk) -> float:
    if chunk.inputs.device.type == "cuda":
        torch.cuda.synchronize(chunk.inputs.device)
    return time.perf_counter()
