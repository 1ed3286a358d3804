"""What rows depend on, as short digests: a model's weights and settings, and what the caller's own code does."""

import hashlib
import inspect
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from xattn.evaluation.datasets import digest
from xattn.models.model import Model
from xattn.models.text_model import TextModel

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_CODE = (FunctionType, staticmethod, classmethod, property)


def short_hash(facts: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits of a JSON-like mapping."""
    return digest(json.dumps(facts, sort_keys=True, default=repr))


def model_hash(model: Model | TextModel) -> str:
    """Sixteen hexadecimal digits that change with weights, their type, settings, own code, preprocessing or classes."""
    state = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.module.state_dict().items()):
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        state.update(_content(tensor))
    for name, module in model.module.named_modules():
        state.update(f"{name} {_settings(module)} ".encode())
    reading = (model.transform, model.layout) if isinstance(model, Model) else (model.tokenizer.pieces,)
    state.update(repr((model.classes, *reading)).encode())
    return state.hexdigest()


def code_hash(*things: object) -> str:
    """Sixteen hexadecimal digits that change with what functions, classes and objects of the caller's do.

    They cover instructions and constants, the values of closures, defaults, attributes and global names, and the
    caller's functions and classes among these. What packages define counts by its name alone, and so do modules of
    torch, for which there is `model_hash`.
    """
    return digest(*(_described(thing, {}) for thing in things))


def _settings(module: nn.Module) -> str:
    """Numbers, words and flags that a module keeps beside its weights, and the code of a class of the caller's."""
    plain = {k: v for k, v in sorted(vars(module).items()) if _is_plain(v) and k not in ("training", "name_or_path")}
    return f"{type(module).__qualname__} {plain!r} {_described(type(module), {})}"


def _described(thing: Any, seen: dict[int, object]) -> str:  # noqa: ANN401
    """As text; `seen` holds what is described already."""
    if isinstance(thing, _PLAIN):
        return repr(thing)
    if isinstance(thing, (Tensor, np.ndarray)):
        return f"{thing.dtype} {tuple(thing.shape)} {hashlib.blake2b(_content(thing), digest_size=8).hexdigest()}"
    if isinstance(thing, (tuple, frozenset)):
        parts = [_described(one, seen) for one in thing]
        return str(parts if isinstance(thing, tuple) else sorted(parts))
    if isinstance(thing, CodeType):
        return f"{thing.co_code.hex()} {thing.co_names} {_described(thing.co_consts, seen)}"
    if id(thing) in seen:
        return "seen"
    seen[id(thing)] = thing
    if isinstance(thing, Mapping):
        return _listed(((str(key), thing[key]) for key in sorted(thing, key=str)), seen)
    if isinstance(thing, (list, set)):
        return _described(tuple(thing) if isinstance(thing, list) else frozenset(thing), seen)
    if inspect.ismethod(thing):
        return _described((thing.__func__, thing.__self__), seen)
    if isinstance(thing, (staticmethod, classmethod)):
        return _described(thing.__func__, seen)
    if isinstance(thing, property):
        return _described((thing.fget, thing.fset), seen)
    return _described_own(thing, seen)


def _described_own(thing: Any, seen: dict[int, object]) -> str:  # noqa: ANN401
    """A function, class or object: in full if it is the caller's, else by name."""
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(thing, (nn.Module, ModuleType)) or not _is_own(kind.__module__):
        return name
    if isinstance(thing, FunctionType):
        return name + _described(thing.__code__, seen) + _listed(_variables(thing), seen)
    if isinstance(thing, type):
        own = [vars(base) for base in thing.__mro__ if _is_own(base.__module__)]
        members = ((key, part[key]) for part in own for key in sorted(part) if _is_member(key, part[key]))
        return name + _listed(members, seen)
    return name + _described(type(thing), seen) + _listed(sorted(getattr(thing, "__dict__", {}).items()), seen)


def _listed(named: Iterable[tuple[str, Any]], seen: dict[int, object]) -> str:
    return str([f"{name}: {_described(value, seen)}" for name, value in named])


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Defaults, closure, and globals that the code names, or that of functions inside it."""
    yield "defaults", (function.__defaults__, function.__kwdefaults__)
    codes, names = [function.__code__], set[str]()
    for code in codes:
        names |= set(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closure = {name: cell.cell_contents for name, cell in cells if cell != CellType()}
    reached = {name: function.__globals__[name] for name in names & set(function.__globals__)} | closure
    for name, value in sorted(reached.items()):
        yield name, value
        if isinstance(value, ModuleType) and _is_own(value.__name__):
            yield from ((f"{name}.{used}", vars(value)[used]) for used in sorted(names & set(vars(value))))


def _content(values: "Tensor | np.ndarray[Any, Any]") -> memoryview | bytes:
    """The bytes of an array."""
    if isinstance(values, np.ndarray):
        return values.tobytes()
    flat = values.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""


def _is_member(key: str, value: object) -> bool:
    """Whether an entry of a class says what it does, unlike what Python notes there of names and lines."""
    return isinstance(value, _CODE) or not (key.startswith("__") and key.endswith("__"))


def _is_plain(value: object) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, (tuple, list)) and all(map(_is_plain, value)))


def _is_own(module: str | None) -> bool:
    """Whether a module is the caller's: no part of xattn, of Python or of an installed package."""
    top = (module or "").partition(".")[0]
    if not module or top == "xattn" or top in sys.stdlib_module_names:
        return False
    path = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" not in path and "dist-packages" not in path
