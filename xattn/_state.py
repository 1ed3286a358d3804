"""Running a model without leaving a trace: evaluation mode, flags and random state as they were, also on errors."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import CellType, CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

# timm and transformers switch recomputation on by these attributes; a recomputed matrix has no gradient.
_CHECKPOINTING = ("grad_checkpointing", "gradient_checkpointing")


def find_modules(forward_func: Callable[..., Any]) -> list[nn.Module]:
    """Outermost modules that a callable refers to: itself, attributes, bound object, partial, closure, globals."""
    found: dict[int, nn.Module] = {}
    _collect(forward_func, found)
    inner = {id(child) for module in found.values() for child in module.modules() if child is not module}
    return [module for key, module in found.items() if key not in inner]


@contextmanager
def undisturbed(forward_func: Callable[..., Any]) -> Iterator[None]:
    """Evaluation mode without recomputation and replication; everything is as before when the context ends.

    Restored are each module's training flag, checkpointing flags, `DataParallel` devices and the random state of
    the processors in use.
    """
    modules = list(dict.fromkeys(m for root in find_modules(forward_func) for m in root.modules()))
    with ExitStack() as undo:
        undo.enter_context(torch.random.fork_rng(devices=_cuda_devices(modules)))
        for module in modules:
            if module.training:
                _set(undo, module, "training", False)
            for flag in _CHECKPOINTING:
                if getattr(module, flag, False) is True:
                    _set(undo, module, flag, False)
            if isinstance(module, nn.DataParallel):
                # Replicas run in other threads, where no function mode is active; without devices it calls its module.
                _set(undo, module, "device_ids", [])
        yield


def first_tensor_device(forward_func: Callable[..., Any]) -> torch.device | None:
    """Device of the model's parameters, None if it has none or several."""
    devices = {p.device for module in find_modules(forward_func) for p in module.parameters()}
    return devices.pop() if len(devices) == 1 else None


def _set(undo: ExitStack, module: nn.Module, name: str, value: object) -> None:
    undo.callback(setattr, module, name, getattr(module, name))
    setattr(module, name, value)


def outside_inference(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tensors that were born in inference mode have no gradient: their copies take their place."""
    return tuple(a.clone() if isinstance(a, Tensor) and a.is_inference() else a for a in arguments)


def _cuda_devices(modules: list[nn.Module]) -> list[int]:
    devices = {p.device for module in modules for p in module.parameters(recurse=False)}
    return sorted({d.index for d in devices if d.type == "cuda" and d.index is not None})


def _collect(thing: object, found: dict[int, nn.Module]) -> None:
    """Walk over everything that `thing` refers to, without recursion: object graphs can be deep."""
    waiting, visited = [thing], set[int]()
    while waiting:
        thing = waiting.pop()
        if id(thing) in visited:
            continue
        visited.add(id(thing))
        if isinstance(thing, nn.Module):
            found[id(thing)] = thing
        else:
            waiting += reversed(_parts(thing))


def _parts(thing: object) -> list[object]:
    if isinstance(thing, (str, bytes, int, float, Tensor, type)) or inspect.ismodule(thing):
        return []
    if isinstance(thing, (list, tuple)):
        return list(thing)
    if isinstance(thing, dict):
        return list(thing.values())
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if inspect.ismethod(thing):
        return [thing.__self__, thing.__func__]
    if inspect.isfunction(thing):
        return _variables(thing)
    slots = [name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ())]
    call = type(thing).__call__ if callable(thing) else None
    attributes = [*getattr(thing, "__dict__", {}).values(), *(getattr(thing, name, None) for name in slots)]
    return [*attributes, *([call] if inspect.isfunction(call) else [])]


def _variables(function: FunctionType) -> list[object]:
    """Closure, globals and defaults of a function; globals also of the functions and comprehensions inside it."""
    codes, names = [function.__code__], dict[str, None]()
    for code in codes:
        names |= dict.fromkeys(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    variables = [function.__globals__[name] for name in names if name in function.__globals__]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [*cells, *variables, *defaults, getattr(function, "__wrapped__", None)]
