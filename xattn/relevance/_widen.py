"""Computing in a higher precision than a model has, without touching the model."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_CASTS = {"float", "half", "bfloat16"}


def widen(tensor: Tensor, precision: torch.dtype) -> Tensor:
    """The tensor in `precision` if it is floating point and narrower."""
    return tensor.to(precision) if _is_narrower(tensor.dtype, precision) else tensor


def narrow_type(tensor: Tensor) -> torch.dtype | None:
    """The tensor's type if it is narrower than float32, else None."""
    return tensor.dtype if _is_narrower(tensor.dtype, torch.float32) else None


def widen_arguments(
    func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any], precision: torch.dtype
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """A call in which every floating tensor, and every type that is asked for, is at least `precision`.

    Parameters are widened where they are used. The target of an in-place function stays what it is.
    """
    if name.startswith((".", "__set")):
        return func, args, kwargs
    if name in _CASTS and isinstance(args[0], Tensor):
        return torch.Tensor.to, (args[0], torch.promote_types(precision, torch.float32)), {}
    fixed = args[:1] if name.endswith("_") and not name.endswith("__") else ()
    wide = tuple(_widen_tree(arg, precision) for arg in args[len(fixed) :])
    return func, (*fixed, *wide), {key: _widen_tree(value, precision) for key, value in kwargs.items()}


def _widen_tree(tree: Any, precision: torch.dtype) -> Any:  # noqa: ANN401
    if isinstance(tree, Tensor):
        return widen(tree, precision)
    if isinstance(tree, torch.dtype):
        return precision if _is_narrower(tree, precision) else tree
    if type(tree) in (list, tuple):
        return type(tree)(_widen_tree(part, precision) for part in tree)
    return tree


def _is_narrower(dtype: torch.dtype, precision: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize < precision.itemsize
