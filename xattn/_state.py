"""Running a model without leaving a trace: evaluation mode, flags and random state as they were, also on errors."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

# timm and transformers switch recomputation on by these attributes; a recomputed matrix has no gradient.
_CHECKPOINTING = ("grad_checkpointing", "gradient_checkpointing")


def find_modules(forward_func: Callable[..., Any]) -> list[nn.Module]:
    """Outermost modules that a callable refers to: itself, attributes, bound object, partial, closure, globals."""
    found: dict[int, nn.Module] = {}
    _collect(forward_func, found, set())
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


def _cuda_devices(modules: list[nn.Module]) -> list[int]:
    devices = {p.device for module in modules for p in module.parameters(recurse=False)}
    return sorted({d.index for d in devices if d.type == "cuda" and d.index is not None})


def _collect(thing: object, found: dict[int, nn.Module], visited: set[int]) -> None:
    if id(thing) in visited:
        return
    visited.add(id(thing))
    if isinstance(thing, nn.Module):
        found[id(thing)] = thing
        return
    if isinstance(thing, (list, tuple)):
        parts: list[object] = list(thing)
    elif isinstance(thing, dict):
        parts = list(thing.values())
    elif isinstance(thing, functools.partial):
        parts = [thing.func, *thing.args, *thing.keywords.values()]
    elif inspect.ismethod(thing):
        parts = [thing.__self__, thing.__func__]
    elif inspect.isfunction(thing):
        variables = inspect.getclosurevars(thing)
        parts = [*variables.nonlocals.values(), *variables.globals.values(), *(thing.__defaults__ or ())]
        parts += [*(thing.__kwdefaults__ or {}).values(), getattr(thing, "__wrapped__", None)]
        parts = [part for part in parts if not inspect.ismodule(part) and not inspect.isclass(part)]
    elif isinstance(thing, (str, bytes, int, float, Tensor, type)) or inspect.ismodule(thing):
        return
    else:
        parts = [*getattr(thing, "__dict__", {}).values(), type(thing).__dict__.get("__call__")]
    for part in parts:
        _collect(part, found, visited)
