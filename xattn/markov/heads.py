"""One chain from several attention heads."""

from operator import index
from typing import Literal

import torch
from torch import Tensor

from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.markov._numeric import numeric, wide_dtype
from xattn.markov.chain import as_chain, check_square, normalize_rows
from xattn.markov.eigen import second_eigenvalue

Fusion = Literal["mean", "max", "min", "lambda2"]


@numeric
def lambda2_weights(attention: Tensor, rtol: float = 1e-3) -> Tensor:
    """The weights lambda2_h / sum_h lambda2_h of heads: those that forget slowly, in metastable sets, count most.

    Args:
        attention: (..., H, N, N).
        rtol: accuracy of the eigenvalues; see `second_eigenvalue`.

    Returns:
        (..., H), summing to one; uniform where every eigenvalue is zero.

    Raises:
        ArgumentError: see `second_eigenvalue`; or if there is no head dimension.
    """
    return _normalised(second_eigenvalue(_check_heads(attention), rtol).modulus)


@numeric
def fuse_heads(attention: Tensor, how: Fusion | int | Tensor = "mean") -> Tensor:
    """Fuse the heads of a layer into one chain.

    Args:
        attention: (..., H, N, N); each head is cleaned as by `as_chain`.
        how: "mean", "max" or "min" over heads, entry by entry; "lambda2", the average
            sum_h lambda2_h A_h / sum_h lambda2_h; the index of one head; or weights, (H,) or anything that broadcasts
            to (..., H), non-negative and normalised here (all zero: uniform).

    Returns:
        (..., N, N), rows renormalised. A row of zeros, which only "min" can leave, stays zero.

    Raises:
        ArgumentTypeError: if `how` has none of these types.
        ArgumentError: if `how` is an unknown word, a head that does not exist or an invalid weight, or the attention
            is dirty beyond repair (see `as_chain`).

    Example:
        >>> fuse_heads(torch.eye(2).expand(3, 2, 2), how="max")
        tensor([[1., 0.],
                [0., 1.]])
    """
    return normalize_rows(combine_heads(attention, how))


def combine_heads(attention: Tensor, how: Fusion | int | Tensor) -> Tensor:
    """`fuse_heads` before the rows are renormalised."""
    heads = as_chain(_check_heads(attention)).matrix
    if isinstance(how, Tensor):
        return _average(heads, _check_weights(how, heads))
    if isinstance(how, str):
        return _by_name(heads, how)
    try:
        head = index(how)
    except TypeError:
        raise ArgumentTypeError(f"how: expected a word, a head index or weights, got {type(how).__name__}") from None
    if not -heads.shape[-3] <= head < heads.shape[-3]:
        raise ArgumentError(f"how: expected a head index below {heads.shape[-3]}, got {head}")
    return heads.select(-3, head)


def _by_name(heads: Tensor, how: str) -> Tensor:
    match how:
        case "mean":
            return heads.mean(-3)
        case "max":
            return heads.amax(-3)
        case "min":
            return heads.amin(-3)
        case "lambda2":
            return _average(heads, lambda2_weights(heads))
    raise ArgumentError(f"how: expected 'mean', 'max', 'min', 'lambda2', a head index or weights, got {how!r}")


def _average(heads: Tensor, weights: Tensor) -> Tensor:
    return torch.einsum("...h,...hij->...ij", weights, heads)


def _check_heads(attention: Tensor) -> Tensor:
    attention = check_square(attention, "attention")
    if attention.ndim < 3 or attention.shape[-3] == 0:
        raise ArgumentError(f"attention: expected shape (..., H, N, N), got {tuple(attention.shape)}")
    return attention


def _check_weights(weights: Tensor, heads: Tensor) -> Tensor:
    count = heads.shape[-3]
    if weights.ndim == 0 or weights.shape[-1] != count:
        raise ArgumentError(f"how: expected weights of shape (..., {count}), got {tuple(weights.shape)}")
    weights = weights.detach().to(heads.device, wide_dtype(heads.device))
    if not bool((weights.isfinite() & (weights >= 0)).all()):
        raise ArgumentError("how: expected finite, non-negative weights")
    return _normalised(weights).to(heads.dtype)


def _normalised(weights: Tensor) -> Tensor:
    sums = weights.sum(-1, keepdim=True)
    return torch.where(sums > 0, weights / torch.where(sums > 0, sums, 1), 1 / weights.shape[-1])
