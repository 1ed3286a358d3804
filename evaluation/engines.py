"""Where the chunks are worked on: in this process, or by Ray actors on one machine or many. The rows are the same."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from xattn.errors import ArgumentError, ArgumentTypeError, MissingDependencyError
from xattn.evaluation._plan import Job, Plan, Unit
from xattn.evaluation._rows import Part
from xattn.evaluation._worker import Worker

Done: TypeAlias = tuple[Unit, Part]


class Engine(Protocol):
    """Runs the jobs of a plan and hands back what is done, in any order; the caller writes it."""

    def run(self, plan: Plan, jobs: Sequence[Job]) -> Iterator[Done]:
        """Units with their rows, as they are finished."""


class LocalEngine:
    """One chunk after the other in this process."""

    def run(self, plan: Plan, jobs: Sequence[Job]) -> Iterator[Done]:
        """Units with their rows, as they are finished."""
        worker = Worker(plan)
        for job in jobs:
            yield from worker.run(job)


class RayEngine:
    """Ray actors with one model each; a worker that dies is replaced and its chunk done again.

    Files of a data set must be readable under the same path on every machine; rows are written by the caller alone.

    Args:
        address: Of a running cluster, or "auto"; None starts one on this machine.
        workers: Number of actors; None takes one per GPU if there are any, else one per processor, no more than
            there are chunks.
        threads: Processor threads of each actor.
        runtime_env: As `ray.init` takes it: what workers need to import methods and data sets of your own.
    """

    def __init__(
        self,
        address: str | None = None,
        workers: int | None = None,
        threads: int = 1,
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise ArgumentError(f"workers: expected a positive number, got {workers}")
        if threads < 1:
            raise ArgumentError(f"threads: expected a positive number, got {threads}")
        self.address, self.workers, self.threads = address, workers, threads
        self.runtime_env = dict(runtime_env or {})

    def run(self, plan: Plan, jobs: Sequence[Job]) -> Iterator[Done]:
        """Units with their rows, as chunks are finished."""
        ray = import_ray()
        own = not ray.is_initialized()
        if own:
            options = {"log_to_driver": False, "configure_logging": False, "runtime_env": self.runtime_env}
            ray.init(address=self.address, **options)
        try:
            yield from self._run(ray, plan, jobs)
        finally:
            if own:
                ray.shutdown()

    def _run(self, ray: Any, plan: Plan, jobs: Sequence[Job]) -> Iterator[Done]:  # noqa: ANN401
        gpus = int(ray.cluster_resources().get("GPU", 0))
        cpus = int(ray.cluster_resources().get("CPU", 1))
        number = min(self.workers or (gpus or max(1, cpus // self.threads)), len(jobs))
        actor = ray.remote(
            num_cpus=self.threads, num_gpus=1 if gpus >= number else 0, max_restarts=-1, max_task_retries=-1
        )(_Actor)
        shared = ray.put(plan)
        idle = [actor.remote(shared, self.threads) for _ in range(number)]
        waiting, running = list(reversed(jobs)), dict[Any, Any]()
        try:
            while waiting or running:
                while waiting and idle:
                    worker = idle.pop()
                    running[worker.run.remote(waiting.pop())] = worker
                (ready, *_), _ = ray.wait(list(running), num_returns=1)
                idle.append(running.pop(ready))
                yield from _result(ray, ready)
        finally:
            for worker in [*idle, *running.values()]:
                ray.kill(worker)


class _Actor:
    """A worker in a process of its own."""

    def __init__(self, plan: Plan, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        if torch.cuda.is_available():
            plan.model.module.to("cuda")
        self.worker = Worker(plan)

    def run(self, job: Job) -> list[Done]:
        """Everything of one chunk."""
        return list(self.worker.run(job))


def find_engine(engine: str | Engine) -> Engine:
    """An engine by its name.

    Raises:
        ArgumentError: If there is none of that name.
        ArgumentTypeError: If it is neither a name nor an engine.
        MissingDependencyError: If its package is missing.
    """
    if isinstance(engine, str):
        if engine == "local":
            return LocalEngine()
        if engine == "ray":
            import_ray()
            return RayEngine()
        raise ArgumentError(f"engine: expected local, ray or an engine; got {engine!r}")
    if not hasattr(engine, "run"):
        raise ArgumentTypeError(f"engine: expected a name or an object with run(plan, jobs), got {engine!r}")
    return engine


def import_ray() -> Any:  # noqa: ANN401
    """The ray package.

    Raises:
        MissingDependencyError: Without it.
    """
    try:
        import ray
    except ImportError:
        raise MissingDependencyError("engine: \"ray\" needs ray; pip install 'xattn[distributed]'") from None
    return ray


def _result(ray: Any, ready: Any) -> list[Done]:  # noqa: ANN401
    """What an actor returned; its error is raised as it was raised there."""
    try:
        done: list[Done] = ray.get(ready)
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        raise (cause if isinstance(cause, Exception) else error) from None
    return done
