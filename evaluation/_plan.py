"""What a run consists of: chunks of samples, methods and protocols, and a file name for each of their crossings."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from xattn._subject import find_subject
from xattn._versions import versions
from xattn.errors import ArgumentError
from xattn.evaluation._digests import code_hash, model_hash, short_hash
from xattn.evaluation._labels import Explained
from xattn.evaluation._rows import SCHEMA, is_written
from xattn.evaluation.datasets import Dataset, digest
from xattn.evaluation.judges import JUDGES, Judge
from xattn.explain import MethodLike, configuration
from xattn.models.model import Model
from xattn.models.text_model import TextModel

AnyModel: TypeAlias = Model | TextModel

_LONGEST = 60  # letters of a folder's name: at most 240 bytes


@dataclass(frozen=True)
class Unit:
    """One method under one protocol on one chunk: what one file holds."""

    method: str
    protocol: str
    configuration: str
    path: Path
    seed: int = 0


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
        seeds: Of everything random; what is not random is done for the first one only.
        limit: Number of samples, the first ones.
        chunk_size: Samples per chunk.
        batch_size: Largest number of rows of one forward call; no influence on rows beyond rounding.
        skip_broken: Whether unusable samples are counted and left out; else the first one ends the run.
        skip_refused: Whether methods that do not apply to the model are reported; else the first one ends the run.
    """

    model: AnyModel
    dataset: Dataset
    methods: Mapping[str, MethodLike]
    judges: tuple[Judge, ...]
    explained: Explained
    seeds: tuple[int, ...]
    limit: int
    chunk_size: int
    batch_size: int
    skip_broken: bool
    skip_refused: bool

    @property
    def seed(self) -> int:
        """The first seed."""
        return self.seeds[0]

    @cached_property
    def model_hash(self) -> str:
        """Of the model; known to the workers, so that all rows of a run have the same."""
        return model_hash(self.model)

    def build_methods(self, seed: int | None = None) -> dict[str, Any]:
        """Attribution objects by name, with the first seed unless another one is given."""
        seed = self.seed if seed is None else seed
        return {name: build_method(method, self.model, seed) for name, method in self.methods.items()}

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Start and stop of each chunk."""
        for start in range(0, self.limit, self.chunk_size):
            yield start, min(start + self.chunk_size, self.limit)

    def jobs(self, out: Path) -> list[Job]:
        """All work of the run, whether done or not."""
        shared = {
            "versions": versions(),
            "columns": str(SCHEMA),
            "model": [self.model.name, self.model_hash],
            "dataset": [self.dataset.name, list(self.dataset.classes)],
            "target": self.explained,
            "chunk": self.chunk_size,
            "broken": self.skip_broken,
        }
        judging = {judge.name: code_hash(judge.function) for judge in self.judges}
        keys = {
            (name, judge.name, seed): short_hash(
                {
                    **shared,
                    "seed": seed,
                    "name": name,
                    "method": facts,
                    "code": [code, judging[judge.name]],
                    **judge.configuration(),
                }
            )
            for name, seed, facts, code in self._seeded()
            for judge in self.judges
            if seed == self.seed or judge.is_random or is_random(self.methods[name])
        }
        jobs = []
        for start, stop in self.chunks():
            content = digest(self.dataset.fingerprint(start, stop))[:8]
            file = f"{start:07d}-{stop:07d}-{content}.parquet"
            units = tuple(
                Unit(name, protocol, key, out / "rows" / _safe(name) / _safe(protocol) / key / file, seed)
                for (name, protocol, seed), key in keys.items()
            )
            jobs.append(Job(start, stop, units))
        return jobs

    def _seeded(self) -> Iterator[tuple[str, int, dict[str, Any], str]]:
        """Name, seed, configuration and code of methods, all seeds of a method one after the other."""
        built = {seed: self.build_methods(seed) for seed in self.seeds}
        for name in self.methods:
            for seed in self.seeds:
                method = built[seed][name]
                yield name, seed, configuration(method), code_hash(method, getattr(method, "forward_func", None))


def remaining(jobs: Iterable[Job]) -> list[Job]:
    """What is still to do of them."""
    left = (Job(job.start, job.stop, tuple(u for u in job.units if not is_written(u.path))) for job in jobs)
    return [job for job in left if job.units]


def build_method(method: MethodLike, model: AnyModel, seed: int) -> Any:  # noqa: ANN401
    """A class becomes an attribution object on the model; what is one already stays as it is."""
    if not isinstance(method, type):
        return method
    options = find_subject(model, None).options(method)
    return method(model, **options, **({"seed": seed} if is_random(method) else {}))


def is_random(method: MethodLike) -> bool:
    """Whether maps depend on the seed of the run: those of a class that takes one."""
    return isinstance(method, type) and "seed" in inspect.signature(method).parameters


def check_needs(model: AnyModel, judges: Sequence[Judge], dataset: Dataset, explained: str) -> None:
    """Refuse protocols that the data cannot serve, before any work.

    Raises:
        ArgumentError: Naming the protocol.
    """
    reads = "pictures" if isinstance(model, Model) else "text"
    if dataset.holds != reads:
        raise ArgumentError(f"dataset: {dataset.name!r} holds {dataset.holds}, and model {model.name!r} reads {reads}")
    for judge in judges:
        if judge.reads != reads:
            known = ", ".join(name for name, one in JUDGES.items() if one.reads == reads)
            raise ArgumentError(f"protocols: {judge.name} judges {judge.reads}; for {reads} there are {known}")
        if judge.needs_mask and not dataset.has_masks:
            raise ArgumentError(f"protocols: {judge.name} needs masks, and {dataset.name!r} has none")
        if judge.needs_objects and not dataset.has_objects:
            raise ArgumentError(
                f"protocols: {judge.name} needs pictures of two objects, such as the data set demo-two-object; "
                f"{dataset.name!r} has none"
            )
    if explained == "label" and not dataset.has_labels:
        raise ArgumentError(f'target: "label" needs labels, and {dataset.name!r} has none')


def _safe(name: str) -> str:
    """A name as that of a folder; two that become alike are told apart by the key inside."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:_LONGEST] or "_"
