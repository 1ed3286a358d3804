"""The modulus of the second eigenvalue: how slowly a chain forgets where it started."""

from dataclasses import dataclass
from numbers import Real
from typing import Literal

import torch
from torch import Tensor

from xattn.errors import ArgumentError
from xattn.markov._arnoldi import arnoldi
from xattn.markov._deflated import COPY_STATES
from xattn.markov._numeric import chunks, epsilon, has_rounded_matmul, numeric, precise, take_rows, wide_dtype, widen
from xattn.markov._squaring import bracket, deflate_mean
from xattn.markov.chain import check_chain, check_square, distribution, fill_dead, is_lower_triangular, normalize_rows

Mode = Literal["default", "fast", "certified"]

DENSE_STATES = 100
"""Up to this size nothing iterative beats dense eigenvalues on a CPU."""
SQUARING_STATES = 2000
"""Up to this size an accelerator squares the chain, which takes matrix products and nothing else."""
KRYLOV_SHARE = 0.6
"""A Krylov space of more than this share of the states costs as much as the dense eigenvalues of its chain."""
SMALL, LARGE = {"default": (4, 2), "fast": (3, 3)}, {"default": (4, 1), "fast": (2, 1)}
"""How many vectors Arnoldi starts from and which power of the chain it works with, up to COPY_STATES and beyond."""
WIDE = 1e-3
"""Brackets with a larger residual get a second opinion, with another deflation."""
FLOOR = 1e-3
"""Error is judged relative to |lambda_2| + FLOOR."""


@dataclass(frozen=True)
class SecondEigenvalue:
    """|lambda_2| and what is known about it.

    Attributes:
        modulus: (...), in [0, 1].
        residual: (...), error: a proven bound with mode="certified", the rounding of the solver where `exact`, else a
            first-order estimate (residual of the invariant subspace times condition number).
        exact: (...), whether it comes from the diagonal or from dense eigenvalues in float64.
    """

    modulus: Tensor
    residual: Tensor
    exact: Tensor


@numeric
def second_eigenvalue(chain: Tensor, rtol: float = 1e-3, mode: Mode = "default") -> SecondEigenvalue:
    """Modulus of the second largest eigenvalue of A, counted with multiplicity: 1 for reducible or periodic chains.

    That of the teleporting chain G is alpha times as large. Causal chains have it on their diagonal, and small ones
    get dense eigenvalues; for others, block Arnoldi on the deflated chain (squaring, on an accelerator) is repeated in
    float64 where the condition number asks for it, and replaced by dense eigenvalues where it has not converged. It is
    deterministic and uses no global random state.

    Args:
        chain: (..., N, N) attention; see `as_chain` for the cleaning (dead rows become uniform).
        rtol: error to reach, relative to |lambda_2| + 1e-3.
        mode: "default" starts Arnoldi from four random vectors; "fast" from three, or two beyond some 500 tokens, which
            is up to 1.5 times faster and can in rare cases miss an eigenvalue that the start hardly contains;
            "certified" proves a bracket in float64 by 16 squarings, whatever `rtol`: `residual` is mostly below 1e-3,
            and up to 1e-1 for nearly defective chains, such as causal attention with its tokens in another order.

    Returns:
        A `SecondEigenvalue`.

    Raises:
        ArgumentTypeError: if the chain is no floating point tensor.
        ArgumentError: if the chain is dirty beyond repair (see `as_chain`), rtol is not positive or the mode unknown.

    Example:
        >>> second_eigenvalue(torch.tensor([[0.75, 0.25], [0.5, 0.5]])).modulus
        tensor(0.2500)
    """
    check_options(rtol, mode)
    weights, dead = check_chain(check_square(chain))
    weights = fill_dead(weights, dead, distribution(None, weights))
    batch, states = weights.shape[:-2], weights.shape[-1]
    flat = weights.reshape(-1, states, states)
    found = _Found.empty(flat)
    causal = is_lower_triangular(flat)
    _diagonal(flat, causal.nonzero().squeeze(1), found)
    rows = (~causal).nonzero().squeeze(1)
    if len(rows):
        _solve(flat, rows, rtol, mode, found)
    return SecondEigenvalue(
        found.modulus.to(weights.dtype).reshape(batch),
        # Rounding the modulus to the type of the chain must not leave the interval.
        (found.residual + epsilon(weights) * found.modulus).to(weights.dtype).reshape(batch),
        found.exact.reshape(batch),
    )


def check_options(rtol: float, mode: str) -> None:
    """Raise for an unknown mode or a tolerance that is not positive."""
    if mode not in ("default", "fast", "certified"):
        raise ArgumentError(f"mode: expected 'default', 'fast' or 'certified', got {mode!r}")
    if not isinstance(rtol, Real) or not rtol > 0:
        raise ArgumentError(f"rtol: expected a positive number, got {rtol!r}")


@dataclass(frozen=True)
class _Found:
    """Answers in the widest type, filled in row by row."""

    modulus: Tensor
    residual: Tensor
    exact: Tensor

    @classmethod
    def empty(cls, weights: Tensor) -> "_Found":
        zeros = weights.new_zeros(len(weights), dtype=wide_dtype(weights.device))
        return cls(zeros, zeros.clone(), torch.zeros_like(zeros, dtype=torch.bool))

    def put(self, rows: Tensor, modulus: Tensor, residual: Tensor, exact: bool = False) -> None:
        self.modulus[rows] = modulus.clamp(0, 1).to(self.modulus)
        self.residual[rows] = residual.to(self.residual)
        self.exact[rows] = exact


def _solve(weights: Tensor, rows: Tensor, rtol: float, mode: Mode, found: _Found) -> None:
    states, on_cpu = weights.shape[-1], weights.device.type == "cpu"
    if mode == "certified":
        _bracket(weights, rows, found)
    elif on_cpu and states <= DENSE_STATES:
        _dense(weights, rows, found)
    elif not on_cpu and states <= SQUARING_STATES:
        _last_resort(weights, _squaring(weights, rows, rtol, found), rtol, found)
    else:
        _last_resort(weights, _arnoldi(weights, rows, rtol, mode, found), rtol, found)


def _diagonal(weights: Tensor, rows: Tensor, found: _Found) -> None:
    """A causal chain has its eigenvalues on the diagonal; the first, 1, is token 0's."""
    values = normalize_rows(widen(weights[rows])).diagonal(dim1=-2, dim2=-1)[:, 1:]
    values = values.amax(-1) if values.shape[-1] else values.sum(-1)
    found.put(rows, values, 2 * epsilon(values) * values, exact=True)


def _dense(weights: Tensor, rows: Tensor, found: _Found) -> None:
    for part in chunks(rows, weights.shape[-1]):
        matrix = normalize_rows(precise(take_rows(weights, part)))
        try:
            moduli = torch.linalg.eigvals(matrix).abs().topk(2).values[:, 1]
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            # LAPACK gives up on some chains of rank one, and then on the whole batch.
            _dense_one_by_one(weights, part, found)
            continue
        found.put(part, moduli, torch.full_like(moduli, matrix.shape[-1] * epsilon(matrix)), exact=True)


def _dense_one_by_one(weights: Tensor, rows: Tensor, found: _Found) -> None:
    """The dense solver for those that it can solve, the bracket for the others."""
    if len(rows) == 1:
        _bracket(weights, rows, found)
        return
    for row in rows.split(1):
        _dense(weights, row, found)


def _bracket(weights: Tensor, rows: Tensor, found: _Found) -> None:
    for part in chunks(rows, weights.shape[-1]):
        matrix = normalize_rows(precise(take_rows(weights, part)))
        known = bracket(matrix, squarings=16)
        found.put(part, known.modulus, known.residual)
        wide = (known.residual > WIDE).nonzero().squeeze(1)
        if len(wide):
            both = known.take(wide).meet(bracket(take_rows(matrix, wide), squarings=16, deflation=deflate_mean))
            found.put(part[wide.to(part.device)], both.modulus, both.residual)


def _squaring(weights: Tensor, rows: Tensor, rtol: float, found: _Found) -> Tensor:
    """Twelve squarings in the type of the chain; returns the rows whose last two estimates disagree."""
    poor = []
    for part in chunks(rows, weights.shape[-1]):
        matrix = take_rows(weights, part)
        known = bracket(normalize_rows(widen(matrix) if has_rounded_matmul(matrix) else matrix), squarings=12)
        change = (known.modulus - known.previous).abs()
        found.put(part, known.modulus, change)
        poor.append(part[change > rtol * (known.modulus + FLOOR)])
    return torch.cat(poor)


def _arnoldi(weights: Tensor, rows: Tensor, rtol: float, mode: Mode, found: _Found) -> Tensor:
    """Arnoldi in the type of the chain, then in float64 where that does not resolve; returns the unconverged rows."""
    chain = take_rows(weights, rows)
    chain = widen(chain) if has_rounded_matmul(chain) else chain
    largest = int(KRYLOV_SHARE * chain.shape[-1])
    block, power = (SMALL if chain.shape[-1] <= COPY_STATES else LARGE)[mode]
    ritz = arnoldi(chain, block, rtol, rtol * FLOOR, largest, power)
    found.put(rows, ritz.modulus, ritz.residual)
    narrow = chain.dtype != wide_dtype(chain.device)
    limited = rows[ritz.limited]
    if not narrow or len(limited) == 0:
        return rows[~ritz.accepted]
    retried = arnoldi(widen(weights[limited]), block, rtol, rtol * FLOOR, largest, power)
    found.put(limited, retried.modulus, retried.residual)
    return torch.cat((rows[~(ritz.accepted | ritz.limited)], limited[~retried.accepted]))


def _last_resort(weights: Tensor, rows: Tensor, rtol: float, found: _Found) -> None:
    """Dense eigenvalues; on an accelerator, which is slow at them, only where a bracket is too wide."""
    if len(rows) and weights.device.type != "cpu":
        _bracket(weights, rows, found)
        rows = rows[found.residual[rows] > rtol * (found.modulus[rows] + FLOOR)]
    if len(rows):
        _dense(weights, rows, found)
