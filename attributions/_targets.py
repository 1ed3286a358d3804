"""From what a model returns and what a caller calls `target` to one score per sample."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from xattn.errors import ArgumentError, ArgumentTypeError

Target: TypeAlias = int | tuple[int, ...] | Tensor | list[int] | list[tuple[int, ...]] | None

_LOGITS = ("logits", "logits_per_image")


def logits_of(output: object) -> Tensor | None:
    """The tensor of logits in a model's output: the output itself, or its `.logits`; None if it has none.

    Raises:
        ArgumentTypeError: For a tuple or list, where it cannot be known which part is meant.
    """
    if isinstance(output, Tensor):
        return output
    for name in _LOGITS:
        value = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    if isinstance(output, (tuple, list)):
        raise ArgumentTypeError(
            f"forward_func: expected a tensor of logits or an output with .logits, got a {type(output).__name__} of "
            f"{len(output)}; wrap the model, for example lambda x: model(x)[0]"
        )
    return None


def check_target_length(target: Target, batch: int) -> None:
    """Refuse a list or tensor of targets that is not one per sample.

    Raises:
        ArgumentError: If the number of targets is neither one nor the batch size.
        ArgumentTypeError: If it is none of the forms that captum knows.
    """
    if target is None or (isinstance(target, int) and not isinstance(target, bool)):
        return
    if isinstance(target, Tensor):
        if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
            raise ArgumentTypeError(f"target: expected integers, got a tensor of {target.dtype}")
        if target.numel() != 1 and target.shape != (batch,):
            raise ArgumentError(f"target: expected 1 or {batch} values, got a tensor of shape {tuple(target.shape)}")
    elif isinstance(target, list):
        if len(target) != batch:
            raise ArgumentError(f"target: expected one per sample ({batch}), got a list of {len(target)}")
        if not all(isinstance(t, (int, tuple)) and not isinstance(t, bool) for t in target):
            raise ArgumentTypeError("target: expected a list of integers or of tuples of integers")
    elif not (isinstance(target, tuple) and all(isinstance(t, int) for t in target)):
        raise ArgumentTypeError(f"target: expected an int, a tuple, a list or a tensor, got {type(target).__name__}")


def slice_target(target: Target, start: int, stop: int) -> Target:
    """The targets of samples start..stop-1."""
    if isinstance(target, list) or (isinstance(target, Tensor) and target.numel() > 1):
        return target[start:stop]
    return target


def required(logits: Tensor | None) -> Tensor:
    """The logits.

    Raises:
        ArgumentError: If the model returned none.
    """
    if logits is None:
        raise ArgumentError(
            "forward_func: expected logits to choose a target from, got an output without .logits; "
            "wrap the model so that it returns a tensor (B, classes); xattn.ZeroShot does so for CLIP and its kin"
        )
    return logits


def resolve_target(logits: Tensor, target: Target) -> Tensor:
    """Index of each sample's target, (B, D) for logits of shape (B, C_1, ..., C_D).

    None means the predicted class, and nothing is to be chosen for logits of shape (B,) or (B, 1).

    Raises:
        ArgumentError: If an index is out of range, or None is not enough to choose.
    """
    if logits.ndim == 0:
        raise ArgumentError("forward_func: expected one output per sample, (B,) or (B, classes), got a single number")
    batch, sizes = logits.shape[0], logits.shape[1:]
    check_target_length(target, batch)
    if target is None:
        if len(sizes) > 1:
            raise ArgumentError(
                f"target: the output has shape {tuple(logits.shape)}; expected an index for each of the "
                f"{len(sizes)} dimensions after the batch, got None"
            )
        return logits.argmax(-1, keepdim=True) if sizes else logits.new_zeros((batch, 0), dtype=torch.long)
    index = _as_index(target, batch, logits.device)
    if not sizes:
        raise ArgumentError(f"target: the output has one number per sample, {tuple(logits.shape)}; leave target out")
    if index.shape[1] != len(sizes):
        raise ArgumentError(
            f"target: the output has shape {tuple(logits.shape)}; expected {len(sizes)} indices per sample, "
            f"got {index.shape[1]}"
        )
    # Negative ones are refused, though they could count from the end: -1 is what many data sets write for "unknown".
    outside = ((index < 0) | (index >= torch.tensor(sizes, device=logits.device))).any(1)
    if bool(outside.any()):
        wrong = index[outside][0].tolist()
        raise ArgumentError(f"target: expected {_ranges(sizes)}, got {wrong[0] if len(wrong) == 1 else tuple(wrong)}")
    return index


def scores(logits: Tensor, index: Tensor) -> Tensor:
    """(B,) values of the logits at `index` (B, D), in the autograd graph."""
    rows = torch.arange(logits.shape[0], device=logits.device)
    return logits[(rows, *index.unbind(1))]


def _as_index(target: Any, batch: int, device: torch.device) -> Tensor:  # noqa: ANN401
    if isinstance(target, Tensor):
        return target.to(device, torch.long).reshape(-1, 1).expand(batch, 1)
    if isinstance(target, list):
        rows = [t if isinstance(t, tuple) else (t,) for t in target]
        if len({len(row) for row in rows}) > 1:
            raise ArgumentError("target: expected tuples of one length")
        return torch.tensor(rows, device=device)
    row = target if isinstance(target, tuple) else (target,)
    return torch.tensor([row], device=device).expand(batch, len(row))


def _ranges(sizes: Sequence[int]) -> str:
    return " and ".join(f"an index in 0..{size - 1}" for size in sizes) or "no index"
