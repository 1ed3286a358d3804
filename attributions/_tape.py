"""The last operations of a forward call, written down so that they can run again on other tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class _Slot:
    """Stands for a tensor that came from the source: the `index`-th one."""

    index: int


@dataclass(frozen=True)
class _Call:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: range

    def sources(self) -> set[int]:
        return {slot.index for slot in _leaves((self.args, self.kwargs), _Slot)}


@dataclass(frozen=True)
class Program:
    """The operations between a source tensor (slot 0) and an output; calling it runs them on another source."""

    calls: tuple[_Call, ...]
    output: int
    autocast: torch.dtype | None

    def constants(self) -> list[Tensor]:
        """The tensors that it uses besides the source."""
        return [tensor for call in self.calls for tensor in _leaves((call.args, call.kwargs), Tensor)]

    def __call__(self, source: Tensor) -> Tensor:
        """Run the operations on `source`, under the autocast type that was on when they were seen."""
        values: dict[int, Any] = {0: source}
        with torch.autocast(source.device.type, self.autocast, enabled=self.autocast is not None):
            for call in self.calls:
                args, kwargs = _mapped((call.args, call.kwargs), lambda leaf: _filled(leaf, values))
                results = _leaves(call.function(*args, **kwargs), Tensor)
                values.update(zip(call.results, results, strict=False))  # split along tokens: fewer here
        result = values[self.output]
        assert isinstance(result, Tensor)
        return result


class Tape(TorchFunctionMode):
    """Writes down each torch function that works on what came from the source.

    Every `begin` starts anew, so what is left at the end of a forward call is what followed the last one. A skip
    connection that ends outside of the module it bridges (source + input of the module) moves the source behind it.

    Attributes:
        source: Where the operations start, None before the first `begin`.
        mixes: Whether the source was combined with tokens of another origin, so that it is not all that counts.
        paused: Nothing is written down while true.
    """

    def __init__(self) -> None:
        super().__init__()
        self.source: Tensor | None = None
        self.mixes = False
        self.paused = False
        self._bridged: Tensor | None = None
        self._calls: list[_Call] = []
        self._slots: dict[int, int] = {}
        self._alive: list[Tensor] = []  # slots go by identity, which only a living tensor keeps
        self._autocast: torch.dtype | None = None

    def begin(self, source: Tensor, bridged: Tensor | None = None) -> None:
        """Start at `source`, the output of a module; `bridged` is its input, to which it may still be added."""
        self.forget()
        self.source, self._bridged = source, bridged
        self._slots, self._alive = {id(source): 0}, [source]
        kind = source.device.type
        self._autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None

    def forget(self) -> None:
        """Drop everything, and all references to tensors."""
        self.source = self._bridged = self._autocast = None
        self.mixes = False
        self._calls, self._slots, self._alive = [], {}, []

    def program(self, output: Tensor) -> Program | None:
        """The operations that lead to `output`; None if it did not come from the source."""
        slot = self._slots.get(id(output))
        if slot is None:
            return None
        needed, calls = {slot}, list[_Call]()
        for call in reversed(self._calls):
            if needed.intersection(call.results):
                needed |= call.sources()
                calls.append(call)
        return Program(tuple(reversed(calls)), slot, self._autocast)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.source is None or self.paused:
            return result
        used, results = _leaves((args, kwargs), Tensor), _leaves(result, Tensor)
        if results and any(id(tensor) in self._slots for tensor in used):
            self._write(_Call(func, args, kwargs, range(len(self._alive), len(self._alive) + len(results))), results)
        return result

    def _write(self, call: _Call, results: list[Any]) -> None:
        others = [x for x in _leaves((call.args, call.kwargs), Tensor) if self._is_foreign(x)]
        if others:
            ends_skip = all(x is self._bridged for x in others) and results[0].shape == self._alive[0].shape
            if ends_skip:
                self.begin(results[0])
                return
            self.mixes = True
        args, kwargs = _mapped((call.args, call.kwargs), self._slot_of)
        self._calls.append(_Call(call.function, args, kwargs, call.results))
        for slot, tensor in zip(call.results, results, strict=True):
            self._slots[id(tensor)] = slot
            self._alive.append(tensor)

    def _is_foreign(self, tensor: Tensor) -> bool:
        """Whether these are tokens that did not come from the source; parameters and vectors are no tokens."""
        if id(tensor) in self._slots or isinstance(tensor, Parameter):
            return False
        return tensor.ndim > 2 and tensor.shape[:2] == self._alive[0].shape[:2]

    def _slot_of(self, leaf: object) -> object:
        return _Slot(self._slots[id(leaf)]) if id(leaf) in self._slots else leaf


def _filled(leaf: object, values: dict[int, Any]) -> object:
    return values[leaf.index] if isinstance(leaf, _Slot) else leaf


def _leaves(value: object, kind: type) -> list[Any]:
    """Everything of that kind in nested tuples, lists and dictionaries."""
    if isinstance(value, kind):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [leaf for part in parts for leaf in _leaves(part, kind)]


def _mapped(value: Any, change: Callable[[object], object]) -> Any:  # noqa: ANN401
    """The same nesting with every leaf changed."""
    if isinstance(value, dict):
        return {key: _mapped(part, change) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_mapped(part, change) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return change(value)
