"""Precision: which dtype sums are taken in, and keeping the caller's autocast and autograd out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")

CHUNK_ENTRIES = 2**24
SUM_ENTRIES = 2**15


def wide_dtype(device: torch.device) -> torch.dtype:
    """The most precise floating type of a device: float64 except on MPS, which has none."""
    return torch.float32 if device.type == "mps" else torch.float64


def widen(x: Tensor) -> Tensor:
    """`x` in the most precise type of its device."""
    return x.to(wide_dtype(x.device))


def where_precise(x: Tensor) -> Tensor:
    """`x` on a device that has float64: its own, or the CPU in place of MPS."""
    return x.cpu() if wide_dtype(x.device) != torch.float64 else x


def precise(x: Tensor) -> Tensor:
    """`x` in float64, on the CPU if its own device has none."""
    return where_precise(x).double()


def epsilon(x: Tensor) -> float:
    """Distance from 1 to the next number of the type of `x`."""
    return torch.finfo(x.dtype).eps


def has_rounded_matmul(x: Tensor) -> bool:
    """Whether float32 products on the device of `x` may be carried out with fewer bits (TF32 and alike)."""
    if x.device.type != "cuda" or x.dtype != torch.float32:
        return False
    # The older getter raises once the newer setting has been used.
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return precision == "tf32" if precision else torch.get_float32_matmul_precision() != "highest"


def tiny(x: Tensor) -> Tensor:
    """`x` kept away from zero, to divide by it."""
    return x.clamp(min=torch.finfo(x.dtype).tiny)


def row_sums(matrix: Tensor) -> Tensor:
    """Sums over the last dimension (..., N) -> (...), in the most precise type of the device."""
    wide = wide_dtype(matrix.device)
    if matrix.device.type != "cpu" or matrix.dtype == wide or matrix.numel() < SUM_ENTRIES:
        return matrix.sum(-1, dtype=wide)
    # sum(dtype=...) writes a converted copy of all; pieces that stay in the cache are four times faster.
    flat = matrix.reshape(-1, matrix.shape[-1])
    pieces = flat.split(max(1, SUM_ENTRIES // matrix.shape[-1]))
    return torch.cat([piece.to(wide).sum(-1) for piece in pieces]).reshape(matrix.shape[:-1])


def take_rows(values: Tensor, rows: Tensor) -> Tensor:
    """`values[rows]` for ascending rows, without a copy when these are all."""
    return values if len(rows) == len(values) else values[rows]


def chunks(rows: Tensor, states: int) -> tuple[Tensor, ...]:
    """Row indices in pieces small enough that the float64 copies of many large chains never exist at once."""
    return rows.split(max(1, CHUNK_ENTRIES // states**2)) if len(rows) else (rows,)


@contextmanager
def plain(device_type: str) -> Iterator[None]:
    """No autograd graph, and the caller's autocast set aside."""
    with torch.no_grad():
        if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
            with torch.autocast(device_type, enabled=False):
                yield
        else:
            yield


def numeric(function: Callable[P, T]) -> Callable[P, T]:
    """Run without an autograd graph, and at the precision of the input even under `torch.autocast`."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        values = [*args, *kwargs.values()]
        device = next((value.device.type for value in values if isinstance(value, Tensor)), "cpu")
        with plain(device):
            return function(*args, **kwargs)

    return wrapper
