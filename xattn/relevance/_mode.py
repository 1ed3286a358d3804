"""The function mode that turns each operation on the way from the input into a `Call`."""

import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from xattn._trace import ModuleTrace
from xattn.relevance._widen import narrow_type, widen, widen_arguments
from xattn.relevance.call import Call, Operation, replace_tensors
from xattn.relevance.operations import STRUCTURAL, UNKNOWN, function_name, kind_of, out_of_place

if TYPE_CHECKING:
    from xattn.relevance.recording import Recording

_COMPOSED = {F.normalize}  # written in terms of other functions: those are recorded
_CLOSED = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


class RecordingMode(TorchFunctionMode):
    """Sees every torch function that a model calls; see `Recording`."""

    def __init__(self, recording: "Recording", trace: ModuleTrace) -> None:
        super().__init__()
        self._recording = recording
        self._trace = trace
        self._made: dict[int, tuple[Tensor, str, Call | None]] = {}  # tensors on the path and what made them
        self._convolved = False

    def forget(self) -> None:
        """Let go of the forward's tensors when it is over."""
        self._made.clear()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        name = function_name(func)
        positional, keywords = replace_tensors((tuple(args), kwargs or {}), _as_constant)
        if name == "embedding":
            return self._embed(func, positional, keywords)
        func, args, kwargs = widen_arguments(func, name, positional, keywords, self._recording.precision)
        operands = _on_path((args, kwargs))
        if not operands or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        if func in _COMPOSED:
            with self:
                return _opened(func)(*args, **kwargs)
        if kwargs.get("inplace") or out_of_place(name) is not None:
            return self._in_place(name, func, args, kwargs)
        return self._record(name, func, args, kwargs, operands)

    def _record(
        self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Tensor]
    ) -> Any:  # noqa: ANN401
        """Run an operation as a call, or as it is where the gradient carries relevance."""
        kind = kind_of(name, args, kwargs, _depends, self._origin)
        if kind == "conv" and not self._convolved:
            kind, self._convolved = "input_conv", True
        if kind in ("structural", "select", UNKNOWN):
            result = func(*args, **kwargs)
            made = _on_path(result)
            if not made or any(result is x for x in operands):  # such as dropout in evaluation mode
                return result
            self._count(operands)
            if kind == "structural":
                self._note(made, operands)
                return result
            if kind == "select" or not isinstance(result, Tensor):
                return _rebuild(
                    result, lambda x: self._apply(kind, torch.clone, name, (x,), {}, [x]) if x.requires_grad else x
                )
        else:
            self._count(operands)
        return self._apply(kind, func, name, args, kwargs, operands)

    def _apply(
        self,
        kind: str,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[Tensor],
    ) -> Tensor:
        unique = list({id(x): x for x in operands}.values())
        origins = tuple(map(self._origin, unique))
        call = Call(self._recording, kind, func, name, self._trace.path, args, kwargs, origins)
        result: Tensor = Operation.apply(call, *unique)
        self._made[id(result)] = (result, kind, call)
        return result

    def _in_place(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """Compute the result beside the operand and copy it over, so that calls keep what they have read."""
        plain = name if kwargs.get("inplace") else str(out_of_place(name))
        kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
        aside = func if plain == name else getattr(Tensor, plain, None)
        if aside is None or plain in STRUCTURAL:  # such as zero_: torch's own graph is right
            return func(*args, **kwargs)
        target: Tensor = args[0]
        before = target.clone()
        self._note([before], [target])
        made = self._made[id(target)][2] if id(target) in self._made else None
        if made is not None:
            made.keep(before.detach())
        args = (before, *args[1:])
        result = self._record(plain, aside, args, kwargs, _on_path((args, kwargs)))
        target.copy_(result)
        self._made[id(target)] = (target, self._origin(result) or "", None)
        return target

    def _embed(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The embedding of the explained token ids is where their relevance arrives."""
        recording = self._recording
        embedded = func(*args, **kwargs)
        result = widen(embedded, recording.precision)
        ids = args[0] if args else kwargs["input"]
        if recording.ids is None or recording.input is not None or not torch.equal(ids, recording.ids):
            return result
        recording.narrow = narrow_type(embedded)
        recording.input = result.detach().requires_grad_()
        return recording.input

    def _origin(self, operand: object) -> str | None:
        return self._made[id(operand)][1] if id(operand) in self._made else None

    def _count(self, operands: list[Tensor]) -> None:
        for operand in operands:
            call = self._made[id(operand)][2] if id(operand) in self._made else None
            if call is not None:
                call.uses += 1

    def _note(self, results: list[Tensor], operands: list[Tensor]) -> None:
        """A moved tensor is still what made it."""
        origin = next((o for o in map(self._origin, operands) if o is not None), None)
        for result in results:
            if origin is not None and id(result) not in self._made:
                self._made[id(result)] = (result, origin, None)


def _on_path(tree: Any) -> list[Tensor]:  # noqa: ANN401
    found: list[Tensor] = []
    _rebuild(tree, found.append)
    return [x for x in found if x.requires_grad]


def _depends(operand: object) -> bool:
    return isinstance(operand, Tensor) and operand.requires_grad


def _rebuild(result: Any, change: Callable[[Tensor], Any]) -> Any:  # noqa: ANN401
    """`replace_tensors`, for torch's named tuples too."""
    if isinstance(result, tuple) and type(result) is not tuple:
        return tuple(replace_tensors(list(result), change))
    return replace_tensors(result, change)


def _as_constant(tensor: Tensor) -> Tensor:
    """Parameters have no relevance, and tensors born in inference mode no gradient."""
    if isinstance(tensor, nn.Parameter):
        tensor = tensor.detach()
    return tensor.clone() if tensor.is_inference() else tensor


def _opened(func: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a torch function that believes no mode is active, so that it runs its own body under the mode."""
    assert isinstance(func, types.FunctionType)
    names = {**func.__globals__, **{name: lambda *_: False for name in _CLOSED}}
    return types.FunctionType(func.__code__, names, argdefs=func.__defaults__)
