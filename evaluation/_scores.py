"""From logits to one score per row, and from a forward function to logits in bounded batches."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from xattn.attributions._forward import check_types
from xattn.attributions._targets import Target, logits_of, resolve_target
from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.evaluation._shapes import check_integer
from xattn.evaluation._shared import Shared

Score: TypeAlias = Literal["probability", "accuracy", "logit", "log_odds"]
SCORES: tuple[str, ...] = get_args(Score)

# Quantities that the 2021 scripts record; differences are of the maximum over classes, after minus before.
PUBLISHED_SCORES = ("hit", "dissimilarity", "logit_difference", "probability_difference")


def score_of(name: str, logits: Tensor, target: Tensor, clean: Tensor) -> Tensor:
    """One score per sample and step; a single output is the log-odds of its class against one other.

    Args:
        name: "probability": softmax of the target, 0..1. "accuracy" or "hit": 1 where the target is the arg-max.
            "logit": the target's logit. "log_odds": log p / (1 - p). "dissimilarity": log of p(target) over the
            second largest probability. "logit_difference", "probability_difference": change of the maximum over
            classes, whichever class that is.
        logits: (B, S, C).
        target: (B,) class indices.
        clean: (B, C) logits of the clean inputs.

    Returns:
        (B, S) scores.

    Raises:
        ArgumentError: If a logit is NaN or infinite.
    """
    check_logits(logits)
    if logits.shape[2] == 1:
        logits, clean = F.pad(logits, (0, 1)), F.pad(clean, (0, 1))
    index = target.view(-1, 1, 1).expand(-1, logits.shape[1], 1)
    own = logits.gather(2, index).squeeze(2)
    if name == "logit":
        return own
    if name == "probability":
        return logits.softmax(2).gather(2, index).squeeze(2)
    if name in ("accuracy", "hit"):
        return (logits.argmax(2) == target.unsqueeze(1)).to(logits.dtype)
    if name == "log_odds":
        return own - logits.scatter(2, index, -torch.inf).logsumexp(2)
    if name == "dissimilarity":
        return own - logits.topk(2, dim=2).values[..., 1]
    if name == "logit_difference":
        return logits.amax(2) - clean.amax(1, keepdim=True)
    return logits.softmax(2).amax(2) - clean.softmax(1).amax(1, keepdim=True)


def call_logits(forward: Callable[..., Any], inputs: Tensor) -> Tensor:
    """Logits (rows, classes) of one forward call, float32 at least.

    Raises:
        ArgumentTypeError: If the output holds no logits.
        ArgumentError: If they do not have one row per input.
    """
    try:
        logits = logits_of(forward(inputs))
    except RuntimeError as error:
        check_types(inputs, error)
        raise
    if logits is None:
        raise ArgumentTypeError("forward: expected logits or an output with .logits; wrap the model accordingly")
    logits = logits.unsqueeze(1) if logits.ndim == 1 else logits
    if logits.ndim != 2 or logits.shape[0] != inputs.shape[0] or not logits.shape[1]:
        raise ArgumentError(
            f"forward: expected logits ({inputs.shape[0]}, classes), got shape {tuple(logits.shape)}; "
            "wrap the model so that it returns one row per sample"
        )
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def batched_logits(forward: Callable[..., Any], inputs: Tensor, batch_size: int) -> Tensor:
    """Logits (B, C) from calls with at most `batch_size` rows.

    Raises:
        ArgumentError: If `batch_size` is not positive, or the model's answer is of no use.
        ArgumentTypeError: If `batch_size` is no integer, or the model gives no logits.
    """
    check_integer("batch_size", batch_size, 1)
    # A model may work in place, and these rows are others' too. `Shared` knows them by their place in memory.
    parts = inputs.split(batch_size) if isinstance(forward, Shared) else inputs.clone().split(batch_size)
    return check_logits(torch.cat([call_logits(forward, part) for part in parts]))


def check_logits(logits: Tensor) -> Tensor:
    """The logits, if they are of use.

    Raises:
        ArgumentError: If one is NaN or infinite; minus infinity stands for a class that is ruled out.
    """
    if bool((logits.isnan() | logits.isposinf()).any()):
        raise ArgumentError(
            "forward: expected numbers as its output, got NaN or infinity; its weights or inputs overflow"
        )
    return logits


def resolve_class(logits: Tensor, target: Target) -> Tensor:
    """(B,) class indices; None means the predicted class.

    Raises:
        ArgumentError: If a target is out of range or not one per sample.
    """
    return resolve_target(logits, target).squeeze(1)
