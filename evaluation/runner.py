"""`benchmark`: every method under every protocol on every sample, resumable at any moment."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import torch

from xattn._device import find_device
from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.evaluation import _judges_mask as _judges_mask
from xattn.evaluation import _judges_model as _judges_model
from xattn.evaluation import _judges_sanity as _judges_sanity
from xattn.evaluation import _judges_text as _judges_text
from xattn.evaluation._labels import Explained
from xattn.evaluation._plan import Job, Plan, check_needs, remaining
from xattn.evaluation._rows import write_part
from xattn.evaluation._shapes import check_choice
from xattn.evaluation.datasets import Dataset, load_dataset
from xattn.evaluation.engines import Engine, find_engine
from xattn.evaluation.judges import Judge, find_judge
from xattn.evaluation.results import Results
from xattn.explain import MethodLike, choose_methods
from xattn.markov._numeric import plain

if TYPE_CHECKING:
    from xattn.models.model import Model
    from xattn.models.text_model import TextModel

_ABANDONED = 3600.0  # seconds after which an unfinished file is nobody's


def benchmark(
    model: "str | Model | TextModel",
    dataset: str | os.PathLike[str] | Dataset,
    methods: str | Iterable[MethodLike] | Mapping[str, MethodLike] | None = None,
    protocols: str | Judge | Iterable[str | Judge] = ("perturbation",),
    out: str | os.PathLike[str] = "xattn-results",
    *,
    engine: str | Engine = "local",
    seed: int = 0,
    seeds: int | Sequence[int] | None = None,
    limit: int | None = None,
    target: Explained = "predicted",
    chunk_size: int = 16,
    batch_size: int = 32,
    on_broken: str = "skip",
    device: str | None = None,
    progress: bool = False,
) -> Results:
    """Judge methods by protocols on a data set.

    The data are cut into chunks by their index; the rows of each method, protocol and chunk are written to `out` as
    soon as they are known, in a file whose path names all they depend on. Whatever ends a run, the same call goes on
    from there, and a changed model, data set, method, protocol, seed or version never meets old rows. On the same
    hardware, with equal threads and chunk and batch sizes, rows are equal bit by bit; otherwise up to rounding.

    Args:
        model: A name for `load`, or a loaded `Model` or `TextModel`; `Model(name, module, Preprocess(size))` wraps a
            module.
        dataset: A name or path for `load_dataset`, or a `Dataset`.
        methods: As in `explain`; None takes every method, and those that refuse the model are reported in
            `Results.refused`, while one asked for by name raises.
        protocols: Names from `JUDGES`, or configured ones: `JUDGES["perturbation"].configured(fill="blur")`.
        out: Folder for the rows.
        engine: "local", "ray" (needs the extra `distributed`), or an engine object.
        seed: Of methods and fills that draw random numbers.
        seeds: Several seeds, or their number, counted from `seed`: whatever draws random numbers is done for each, and
            tables give mean and standard deviation over them. The rest is done once.
        limit: At most this many samples, the first ones.
        target: Class to explain: the "predicted" one, or the data set's "label".
        chunk_size: Samples per chunk.
        batch_size: Largest number of rows of one forward call.
        on_broken: "skip" counts pictures and masks that cannot be used in `Results.skipped`, "raise" stops.
        device: Where to run; None leaves a loaded model where it is.
        progress: Whether to show a bar on the error stream.

    Raises:
        ArgumentError: An argument has a wrong value, the data do not serve a protocol, or `out` cannot be written.
        ArgumentTypeError: An argument has a wrong type.
        UnsupportedModelError: A method that was asked for does not apply to the model.
        MissingDependencyError: An optional package is needed.
        BrokenSampleError: A sample cannot be used and `on_broken` is "raise".
    """
    for name, value in (("limit", limit), ("chunk_size", chunk_size), ("batch_size", batch_size)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ArgumentError(f"{name}: expected a positive integer, got {value!r}")
    check_choice("target", target, get_args(Explained))
    check_choice("on_broken", on_broken, ("skip", "raise"))
    judges = _judges(protocols)
    chosen = choose_methods(methods)
    runs_on = find_engine(engine)
    data = dataset if isinstance(dataset, Dataset) else load_dataset(dataset)
    if not len(data):
        raise ArgumentError(f"dataset: {data.name!r} is empty")
    loaded = _model(model, device)
    check_needs(loaded, judges, data, target)
    folder = Path(out)
    _check_folder(folder)
    plan = Plan(
        loaded,
        data,
        chosen,
        judges,
        target,
        _seeds(seed, seeds),
        min(limit or len(data), len(data)),
        chunk_size,
        batch_size,
        on_broken == "skip",
        methods is None,
    )
    jobs = plan.jobs(folder)
    _run(plan, jobs, runs_on, progress)
    _sweep(jobs)
    return Results.gather(plan, jobs)


def _run(plan: Plan, jobs: Sequence[Job], engine: Engine, progress: bool) -> None:
    """Do and write what is not there yet."""
    left = remaining(jobs)
    done = sum(len(job.units) for job in jobs) - sum(len(job.units) for job in left)
    if not left:
        return
    with _plain_torch(plan.model.device.type), _bar(sum(len(job.units) for job in jobs), done, progress) as advance:
        for unit, part in engine.run(plan, left):
            write_part(unit.path, part)
            advance(f"{unit.method}: {unit.protocol}")


@contextmanager
def _plain_torch(device_type: str) -> Iterator[None]:
    """Rows do not depend on what is around the call: neither inference mode nor autocast, gradients, and float32."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), plain(device_type), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(default)


@contextmanager
def _bar(total: int, done: int, wanted: bool) -> Iterator[Callable[[str], None]]:
    """A bar with the time left, on the error stream."""
    if not wanted:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeLeft(), console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=total, completed=done)
        yield lambda what: bar.update(task, description=what, advance=1)


def _judges(protocols: str | Judge | Iterable[str | Judge]) -> tuple[Judge, ...]:
    given = [protocols] if isinstance(protocols, (str, Judge)) else list(protocols)
    judges = tuple(map(find_judge, given))
    names = [judge.name for judge in judges]
    if not names or len(set(names)) < len(names):
        raise ArgumentError(
            f"protocols: expected at least one and each name once, got {', '.join(names) or 'none'}; give a second "
            "configuration a name of its own, with dataclasses.replace(judge, name=...)"
        )
    return judges


def _seeds(seed: int, seeds: int | Sequence[int] | None) -> tuple[int, ...]:
    if seeds is None:
        return (seed,)
    found = tuple(range(seed, seed + seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not found or len(set(found)) < len(found) or not all(isinstance(one, int) for one in found):
        raise ArgumentError(f"seeds: expected a positive number of seeds or different integers, got {seeds!r}")
    return found


def _model(model: "str | Model | TextModel", device: str | None) -> "Model | TextModel":
    from xattn.models import load
    from xattn.models.model import Model
    from xattn.models.text_model import TextModel

    loaded: Model | TextModel
    if isinstance(model, str):
        loaded = load(model, device=device or "cpu")
    elif isinstance(model, (Model, TextModel)):
        loaded = model
        if device is not None:
            loaded.module.to(find_device(device))
    else:
        raise ArgumentTypeError(
            f"model: expected a name or a loaded Model, got {type(model).__name__}; "
            "Model(name, module, Preprocess((height, width))) wraps a module"
        )
    return loaded


def _check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written before any work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"out: cannot make the folder {str(folder)!r} ({error.strerror})") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ArgumentError(f"out: cannot write into {str(folder)!r}")


def _sweep(jobs: Sequence[Job]) -> None:
    """Remove what killed runs left unfinished; a younger file may be another process's."""
    for folder in {unit.path.parent for job in jobs for unit in job.units}:
        for file in folder.glob(".*.partial"):
            if time.time() - file.stat().st_mtime > _ABANDONED:
                file.unlink(missing_ok=True)
