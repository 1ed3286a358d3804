"""What a method costs: forward and backward passes, and the memory it needs at most, counted while it runs."""

import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from xattn.errors import PrecisionWarning

CAPTION = (
    "one scene of the demo model; peak: all tensors alive at a time but weights and input; forward: the model alone"
)


@dataclass(frozen=True)
class Cost:
    """Counts of one call.

    Attributes:
        forwards: Calls of the model.
        backwards: Backward passes from its answer.
        peak_bytes: Most memory at a time in tensors that the call made, the result included; weights and inputs are
            not counted.
    """

    forwards: int
    backwards: int
    peak_bytes: int

    def cells(self) -> tuple[str, str, str]:
        """The three numbers for a table, memory in MiB."""
        return str(self.forwards), str(self.backwards), f"{self.peak_bytes / 2**20:.1f}"


def measure(function: Callable[[], object], model: nn.Module) -> Cost:
    """Count what one call of `function` does with `model`.

    Args:
        function: Run once; what it returns is dropped.
        model: The module whose calls and backward passes count.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> measure(lambda: layer(torch.ones(1, 2)).sum().backward(), layer).backwards
        1
    """
    passes = [0, 0]
    with _counted(model, passes), _Memory() as memory:
        function()
    return Cost(passes[0], passes[1], memory.peak)


def measure_methods() -> dict[str, Cost]:
    """Cost of a plain forward pass ("forward") and of every registered method, for one scene of the demo model."""
    from xattn.attributions import methods
    from xattn.models import load
    from xattn.models.scenes import Scenes

    model = load("demo")
    batch = model.preprocess(Scenes("test", 1)[0].image)[None]

    def plain() -> Tensor:
        with torch.no_grad():
            return model.module(batch)  # type: ignore[no-any-return]

    costs = {"forward": measure(plain, model.module)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)  # nobody reads these maps
        for name, method in methods.items():
            costs[name] = measure(partial(method(model, layout=model.layout).attribute, batch), model.module)
    return costs


@contextmanager
def _counted(model: nn.Module, passes: list[int]) -> Iterator[None]:
    """Count the calls of a module, and the gradients that arrive at what it returns."""

    def arrived(_: Tensor) -> None:
        passes[1] += 1

    def left(module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        if module is not model:
            return
        passes[0] += 1
        answer = next((leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad), None)
        if answer is not None:
            answer.register_hook(arrived)

    handle = register_module_forward_hook(left)
    try:
        yield
    finally:
        handle.remove()


class _Memory(TorchDispatchMode):
    """Follows the storages of all tensors made inside, until each is freed.

    Attributes:
        peak: Most bytes alive at a time.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._alive = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        given = {_storage_key(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and _storage_key(leaf) not in given:
                self._add(leaf.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        self._alive += storage.nbytes()
        self.peak = max(self.peak, self._alive)
        weakref.finalize(storage, self._free, key, storage.nbytes()).atexit = False

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._alive -= size


def _storage_key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
