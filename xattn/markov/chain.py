"""From an attention map to a Markov chain: validation, clean-up, teleport, and the chain walked backward."""

from dataclasses import dataclass
from numbers import Real
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from xattn._device import check_data
from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.markov._numeric import numeric, row_sums, tiny, wide_dtype

Direction = Literal["forward", "backward"]

ROW_SUM_TOLERANCE = 1e-2
"""How far a row sum may lie from 1 before it can no longer be rounding (bfloat16 softmax: 3e-3)."""


@dataclass(frozen=True)
class Chain:
    """A cleaned attention map.

    Attributes:
        matrix: (..., N, N), float32 or float64, every row non-negative and summing to one.
        dead_rows: (..., N), true where the map had no row (all zero, or all NaN as softmax leaves a fully masked
            query), so that the row of `matrix` is the personalization.
    """

    matrix: Tensor
    dead_rows: Tensor


class Checked(NamedTuple):
    """A validated map, not yet normalised: dead rows are zero, all others sum to about one."""

    weights: Tensor
    dead_rows: Tensor


def check_square(attention: Tensor, name: str = "chain") -> Tensor:
    """Return `attention` detached and at least float32, or raise if it is not a (..., N, N) float tensor."""
    attention = check_float(attention, name)
    if attention.ndim < 2 or attention.shape[-1] != attention.shape[-2] or attention.shape[-1] == 0:
        raise ArgumentError(f"{name}: expected shape (..., N, N), got {tuple(attention.shape)}")
    return attention


def check_float(values: Tensor, name: str) -> Tensor:
    """Return `values` detached and at least float32, or raise if they are not a floating tensor."""
    if not isinstance(values, Tensor):
        raise ArgumentTypeError(f"{name}: expected a torch.Tensor, got {type(values).__name__}")
    if not values.dtype.is_floating_point:
        raise ArgumentTypeError(f"{name}: expected a floating point tensor, got {values.dtype}")
    check_data(name, values)
    return values.detach() if values.dtype in (torch.float32, torch.float64) else values.detach().float()


def check_direction(direction: str) -> None:
    """Raise unless `direction` is one of the two words."""
    if direction not in ("forward", "backward"):
        raise ArgumentError(f"direction: expected 'forward' or 'backward', got {direction!r}")


def check_unit(value: float, name: str) -> None:
    """Raise unless `value` is a number in [0, 1]."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ArgumentTypeError(f"{name}: expected a number, got {type(value).__name__}")
    if not 0 <= value <= 1:
        raise ArgumentError(f"{name}: expected a number in [0, 1], got {value}")


def check_chain(attention: Tensor, name: str = "chain") -> Checked:
    """Apply the rules for dirty input to a (..., N, N) or (..., M, N) float tensor; see `as_chain`."""
    sums = attention.sum(-1)
    near_one = (sums - 1).abs() <= ROW_SUM_TOLERANCE
    # One host synchronisation decides whether the map is clean; only a suspicious one is looked at closer.
    if bool((near_one & (attention.amin(-1) >= 0)).all()):
        return Checked(attention, torch.zeros_like(near_one))
    dead = attention.isnan().all(-1) | (attention == 0).all(-1)
    weights = attention.masked_fill(dead.unsqueeze(-1), 0)
    _raise_if(~weights.isfinite().all(-1), f"{name}: expected finite entries, got NaN or inf")
    _raise_if(attention.isnan().all(-1).all(-1), f"{name}: expected finite entries, got a chain of nothing but NaN")
    _raise_if((weights < 0).any(-1), f"{name}: expected non-negative entries, got a negative one")
    _raise_if(
        ~(near_one | dead),
        f"{name}: expected rows that sum to 1 within {ROW_SUM_TOLERANCE} (attention after the softmax), got a row off",
        sums,
    )
    return Checked(weights, dead)


def _raise_if(bad: Tensor, message: str, values: Tensor | None = None) -> None:
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0])
        detail = "" if values is None else f" (it sums to {float(values[where]):.6g})"
        raise ArgumentError(f"{message} in row {where}{detail}")


@numeric
def normalize_rows(matrix: Tensor) -> Tensor:
    """Divide each row by its sum, taken in float64 where the device has it.

    Args:
        matrix: (..., M, N), non-negative.

    Returns:
        (..., M, N) in the type of `matrix` (half types become float32); a row of zeros stays zero.

    Raises:
        ArgumentTypeError: if `matrix` is no floating point tensor.
    """
    matrix = check_float(matrix, "matrix")
    sums = row_sums(matrix).unsqueeze(-1)
    return matrix / torch.where(sums > 0, sums, 1).to(matrix.dtype)


def distribution(
    values: Tensor | None, like: Tensor, name: str = "personalization", dtype: torch.dtype | None = None
) -> Tensor:
    """Validate and normalise a distribution over the N states of a (..., N, N) chain; uniform for None.

    It has the type of the chain unless `dtype` says otherwise.

    Raises:
        ArgumentTypeError: if `values` is no tensor.
        ArgumentError: if its last dimension is not N, or it is negative, not finite, or all zero somewhere.
    """
    states, dtype = like.shape[-1], dtype or like.dtype
    if values is None:
        return like.new_full((states,), 1 / states, dtype=dtype)
    if not isinstance(values, Tensor):
        raise ArgumentTypeError(f"{name}: expected a torch.Tensor or None, got {type(values).__name__}")
    if values.ndim == 0 or values.shape[-1] != states:
        raise ArgumentError(f"{name}: expected shape (..., {states}), got {tuple(values.shape)}")
    # Boolean masks and counts are welcome; the widest type is used before the sum so that halves lose nothing.
    values = values.detach().to(like.device, wide_dtype(like.device))
    sums = values.sum(-1, keepdim=True)
    if not bool((values.isfinite() & (values >= 0)).all()):
        raise ArgumentError(f"{name}: expected finite, non-negative entries")
    if not bool((sums > 0).all()):
        raise ArgumentError(f"{name}: expected a positive sum, got a vector of zeros")
    return (values / sums).to(dtype)


def fill_dead(matrix: Tensor, dead_rows: Tensor, personalization: Tensor) -> Tensor:
    """Replace the dead rows of a (..., N, N) matrix by the (..., N) distribution."""
    if not bool(dead_rows.any()):
        return matrix
    return torch.where(dead_rows.unsqueeze(-1), personalization.unsqueeze(-2), matrix)


@numeric
def as_chain(attention: Tensor, personalization: Tensor | None = None) -> Chain:
    """Clean an attention map into a row-stochastic matrix.

    Half inputs become float32. Rows are renormalised with sums in float64. A dead row (all zero, or all NaN) becomes
    the personalization and is flagged: the walk restarts there, as at a dangling page of PageRank.

    Args:
        attention: (..., N, N), attention after the softmax.
        personalization: where a dead row leads, (N,) or anything that broadcasts to (..., N); uniform for None.

    Returns:
        The chain and its dead rows.

    Raises:
        ArgumentTypeError: if `attention` is no floating point tensor.
        ArgumentError: if it is not square, has NaN (other than in dead rows), infinite or negative entries, or a row
            sum further than 1e-2 from one; or if the personalization is negative or zero.

    Example:
        >>> as_chain(torch.tensor([[0.5, 0.5], [0.0, 0.0]])).dead_rows
        tensor([False,  True])
    """
    weights, dead = check_chain(check_square(attention, "attention"), "attention")
    p = distribution(personalization, weights)
    broadcast_batch(attention=weights.shape[:-2], personalization=p.shape[:-1])
    return Chain(fill_dead(normalize_rows(weights), dead, p), dead)


@numeric
def teleport(chain: Tensor, alpha: float = 0.99, personalization: Tensor | None = None) -> Tensor:
    """The chain that restarts with probability 1 - alpha: G = alpha A + (1 - alpha) 1 p.

    Rows sum to one for any distribution p. The moduli of the other eigenvalues are alpha times those of A.

    Args:
        chain: (..., N, N) attention.
        alpha: probability of following the chain, in [0, 1].
        personalization: p, (N,) or anything that broadcasts to (..., N); uniform for None.

    Returns:
        (..., N, N).

    Raises:
        ArgumentError: see `as_chain`; or if alpha lies outside [0, 1].
    """
    check_unit(alpha, "alpha")
    matrix = as_chain(chain, personalization).matrix
    p = distribution(personalization, matrix)
    return normalize_rows(alpha * matrix + (1 - alpha) * p.unsqueeze(-2))


@numeric
def backward(chain: Tensor, personalization: Tensor | None = None) -> Tensor:
    """The chain walked from key to query: B = D^-1 A^T, D = diag(column sums of A).

    Args:
        chain: (..., N, N) attention.
        personalization: where a dead row of `chain` leads; see `as_chain`.

    Returns:
        (..., N, N). Rows sum to one, except that the row of a token nobody attends to is zero: a walk loses the
        mass that arrives there.

    Raises:
        ArgumentError: see `as_chain`.
    """
    return normalize_rows(as_chain(chain, personalization).matrix.mT)


def broadcast_batch(**leading: torch.Size) -> torch.Size:
    """The leading dimensions that all arguments broadcast to, or an error that names them."""
    try:
        return torch.Size(torch.broadcast_shapes(*leading.values()))
    except RuntimeError:
        shapes = ", ".join(f"{name} {tuple(shape)}" for name, shape in leading.items())
        raise ArgumentError(f"expected leading dimensions that broadcast, got {shapes}") from None


def normalise_mass(x: Tensor) -> Tensor:
    """Scale (..., N) non-negative vectors to sum to one."""
    return x / tiny(x.sum(-1, keepdim=True))


def is_lower_triangular(matrix: Tensor) -> Tensor:
    """Which matrices of a flat batch (B, N, N) are causal, (B,)."""
    causal = (matrix[:, 0, 1:] == 0).all(-1)
    # The first row settles most cases without a pass over the matrix.
    rows = causal.nonzero().squeeze(1)
    causal[rows] = (matrix[rows].triu(1) == 0).flatten(1).all(-1)
    return causal
