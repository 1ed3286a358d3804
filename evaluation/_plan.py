"""What a run consists of: chunks of samples, methods and protocols, and a file name for each of their crossings."""

import hashlib
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from xattn import __version__
from xattn.errors import ArgumentError
from xattn.evaluation._chunk import Explained
from xattn.evaluation._rows import SCHEMA, is_written
from xattn.evaluation.datasets import Dataset, digest
from xattn.evaluation.judges import Judge
from xattn.explain import MethodLike, configuration

if TYPE_CHECKING:
    from xattn.models.model import Model


@dataclass(frozen=True)
class Unit:
    """One method under one protocol on one chunk: what one file holds."""

    method: str
    protocol: str
    configuration: str
    path: Path


@dataclass(frozen=True)
class Job:
    """A chunk with what is still to do on it."""

    start: int
    stop: int
    units: tuple[Unit, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that decides what the rows will be; a worker needs nothing else.

    Attributes:
        model: The model.
        dataset: The data.
        methods: Name to class, or to an attribution object of the caller's.
        judges: The protocols.
        explained: "predicted" or "label".
        seed: Of everything random.
        limit: Number of samples, the first ones.
        chunk_size: Samples per chunk.
        batch_size: Largest number of rows of one forward call; no influence on rows beyond rounding.
        skip_broken: Whether unusable samples are counted and left out; else the first one ends the run.
        skip_refused: Whether methods that do not apply to the model are reported; else the first one ends the run.
    """

    model: "Model"
    dataset: Dataset
    methods: Mapping[str, MethodLike]
    judges: tuple[Judge, ...]
    explained: Explained
    seed: int
    limit: int
    chunk_size: int
    batch_size: int
    skip_broken: bool
    skip_refused: bool

    def build_methods(self) -> dict[str, Any]:
        """Attribution objects by name."""
        return {name: build_method(method, self.model, self.seed) for name, method in self.methods.items()}

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Start and stop of each chunk."""
        for start in range(0, self.limit, self.chunk_size):
            yield start, min(start + self.chunk_size, self.limit)

    def jobs(self, out: Path) -> list[Job]:
        """All work of the run, whether done or not."""
        shared = {
            "xattn": __version__,
            "columns": str(SCHEMA),
            "model": [self.model.name, model_hash(self.model)],
            "dataset": [self.dataset.name, list(self.dataset.classes)],
            "target": self.explained,
            "seed": self.seed,
            "chunk": self.chunk_size,
            "broken": self.skip_broken,
        }
        keys = {
            (name, judge.name): short_hash(
                {**shared, "name": name, "method": configuration(method), **judge.configuration()}
            )
            for name, method in self.build_methods().items()
            for judge in self.judges
        }
        jobs = []
        for start, stop in self.chunks():
            content = digest(self.dataset.fingerprint(start, stop))[:8]
            file = f"{start:07d}-{stop:07d}-{content}.parquet"
            units = tuple(
                Unit(name, protocol, key, out / "rows" / _safe(name) / _safe(protocol) / key / file)
                for (name, protocol), key in keys.items()
            )
            jobs.append(Job(start, stop, units))
        return jobs


def remaining(jobs: Iterable[Job]) -> list[Job]:
    """What is still to do of them."""
    left = (Job(job.start, job.stop, tuple(u for u in job.units if not is_written(u.path))) for job in jobs)
    return [job for job in left if job.units]


def build_method(method: MethodLike, model: "Model", seed: int) -> Any:  # noqa: ANN401
    """A class becomes an attribution object on the model; what is one already stays as it is."""
    if not isinstance(method, type):
        return method
    accepted = inspect.signature(method).parameters
    options: dict[str, Any] = {"layout": model.layout} if model.layout is not None and "layout" in accepted else {}
    if "seed" in accepted:
        options["seed"] = seed
    return method(model, **options)


def check_needs(judges: Sequence[Judge], dataset: Dataset, explained: str) -> None:
    """Refuse protocols that the data cannot serve, before any work.

    Raises:
        ArgumentError: Naming the protocol.
    """
    for judge in judges:
        if judge.needs_mask and not dataset.has_masks:
            raise ArgumentError(f"protocols: {judge.name} needs masks, and {dataset.name!r} has none")
        if judge.needs_objects and not dataset.has_objects:
            raise ArgumentError(
                f"protocols: {judge.name} needs pictures of two objects, such as the data set demo-two-object; "
                f"{dataset.name!r} has none"
            )
    if explained == "label" and not dataset.has_labels:
        raise ArgumentError(f'target: "label" needs labels, and {dataset.name!r} has none')


def model_hash(model: "Model") -> str:
    """Sixteen hexadecimal digits that change with weights, their type, preprocessing or classes."""
    state = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.module.state_dict().items()):
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        content = tensor.detach().cpu().contiguous().reshape(-1)
        state.update(memoryview(content.view(torch.uint8).numpy()) if content.numel() else b"")
    state.update(repr((type(model.module).__qualname__, model.transform, model.classes, model.layout)).encode())
    return state.hexdigest()


def short_hash(facts: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits of a JSON-like mapping."""
    return digest(json.dumps(facts, sort_keys=True, default=repr))


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
