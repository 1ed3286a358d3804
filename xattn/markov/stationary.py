"""TokenRank: the stationary distribution of an attention chain, with a bound on its error."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Literal

import torch
from torch import Tensor

from xattn.errors import ArgumentError
from xattn.markov._direct import certify, solve_limit, solve_lu, solve_triangular
from xattn.markov._fixed_point import Solution, iterate
from xattn.markov._numeric import chunks, has_rounded_matmul, numeric, wide_dtype
from xattn.markov.chain import (
    Direction,
    broadcast_batch,
    check_chain,
    check_direction,
    check_square,
    check_unit,
    distribution,
    fill_dead,
    is_lower_triangular,
    normalize_rows,
)

Method = Literal["auto", "lu", "anderson", "power"]
Stop = Literal["bound", "change"]

LU_STATES = 500
"""Up to this size one LU costs less than the products of an iteration at alpha = 0.99."""
MAX_ITERATIONS = 10_000


@dataclass(frozen=True)
class Stationary:
    """A stationary distribution and what is known about it.

    Attributes:
        distribution: (..., N), non-negative, sums to one.
        iterations: (...), products with the chain that were needed; 0 for the direct solvers.
        error_bound: (...), the L1 distance to the true distribution is not larger. It includes rounding, at most 2.
        converged: (...), whether the bound fell under `tol`, or, iterating, as close to it as the type allows.
        dead_rows: (..., N), rows without attention, which lead to the personalization.
        lost_mass: (...), probability that a walk with restarts ends, instead of by a restart, backward at a token that
            nobody attends to. It restarts there too. Zero forward.
    """

    distribution: Tensor
    iterations: Tensor
    error_bound: Tensor
    converged: Tensor
    dead_rows: Tensor
    lost_mass: Tensor


@dataclass(frozen=True)
class _Task:
    """A flat batch: row weights (B, N, N), dead rows (B, N), wide restart and start distributions (B, N)."""

    weights: Tensor
    dead: Tensor
    restart: Tensor
    start: Tensor
    alpha: float
    backward: bool

    def take(self, rows: Tensor) -> "_Task":
        return _Task(
            self.weights[rows], self.dead[rows], self.restart[rows], self.start[rows], self.alpha, self.backward
        )

    @property
    def states(self) -> int:
        return self.weights.shape[-1]

    def is_causal(self) -> Tensor:
        """Which chains of the batch are triangular, (B,). Walked backward, a dead row (then filled) spoils it."""
        causal = is_lower_triangular(self.weights)
        return causal & ~self.dead.any(-1) if self.backward else causal

    def chain(self, dtype: torch.dtype) -> Tensor:
        """The matrix to walk on; its zero rows restart."""
        matrix = normalize_rows(self.weights.to(dtype))
        if not self.backward:
            return matrix
        return normalize_rows(fill_dead(matrix, self.dead, self.restart.to(dtype)).mT)

    def full_chain(self, dtype: torch.dtype) -> Tensor:
        """The same with the zero rows filled in."""
        matrix = self.chain(dtype)
        return fill_dead(matrix, (matrix == 0).all(-1), self.restart.to(dtype))


@numeric
def stationary(
    chain: Tensor,
    alpha: float = 0.99,
    personalization: Tensor | None = None,
    direction: Direction = "forward",
    tol: float = 1e-6,
    method: Method = "auto",
    stop: Stop = "bound",
    *,
    start: Tensor | None = None,
    max_iterations: int = MAX_ITERATIONS,
) -> Stationary:
    """TokenRank: pi = pi G with G = alpha A + (1 - alpha) 1 p.

    Args:
        chain: (..., N, N) attention; see `as_chain` for the cleaning.
        alpha: probability of following the chain. At 1 the result is the limit alpha -> 1; the direct method, which
            "auto" then takes, finds it for periodic and reducible chains too.
        personalization: p, where the walk restarts: (N,) or anything that broadcasts to (..., N), normalised here;
            uniform for None.
        direction: "forward" walks from query to key, "backward" from key to query, on D^-1 A^T.
        tol: L1 error bound (or change, see `stop`) to reach.
        method: "lu" (with a triangular solve where the chain is causal), "anderson" or "power" iteration; "auto" is
            "lu" up to 500 tokens, for causal chains, and for alpha = 1, else "anderson".
        stop: "bound" iterates until the guaranteed error is below `tol`; "change" until the L1 change of one step is,
            as the published power method does, although the error can be alpha / (1 - alpha) times larger.
        start: where iterations start, as `personalization`; uniform for None.
        max_iterations: cap of the iterations.

    Returns:
        A `Stationary`, batched over the leading dimensions that all inputs broadcast to.

    Raises:
        ArgumentTypeError: if a tensor argument is no floating point tensor.
        ArgumentError: if the chain is dirty beyond repair (see `as_chain`), a distribution is negative or zero, or an
            option is unknown.

    Example:
        >>> chain = torch.tensor([[0.75, 0.25], [0.5, 0.5]])
        >>> stationary(chain, alpha=1.0).distribution
        tensor([0.6667, 0.3333])
    """
    _check_options(alpha, direction, tol, method, stop, max_iterations)
    weights, dead = check_chain(check_square(chain))
    wide = wide_dtype(weights.device)
    p = distribution(personalization, weights, dtype=wide)
    x = distribution(start, weights, "start", dtype=wide)
    batch = broadcast_batch(chain=weights.shape[:-2], personalization=p.shape[:-1], start=x.shape[:-1])
    states = weights.shape[-1]
    dead, p, x = (v.expand(*batch, states).reshape(-1, states) for v in (dead, p, x))
    weights = weights.expand(*batch, states, states).reshape(-1, states, states)
    task = _Task(weights, dead, p, x, alpha, direction == "backward")
    found = _solve(task, tol, method, stop, max_iterations)
    return Stationary(
        found.state.reshape(*batch, states),
        found.iterations.reshape(batch),
        found.error_bound.reshape(batch),
        found.converged.reshape(batch),
        task.dead.reshape(*batch, states),
        _lost_mass(task, found.state).reshape(batch),
    )


def _check_options(alpha: float, direction: str, tol: float, method: str, stop: str, max_iterations: int) -> None:
    check_unit(alpha, "alpha")
    check_direction(direction)
    if not isinstance(tol, Real) or not tol > 0:
        raise ArgumentError(f"tol: expected a positive number, got {tol!r}")
    if method not in ("auto", "lu", "anderson", "power"):
        raise ArgumentError(f"method: expected 'auto', 'lu', 'anderson' or 'power', got {method!r}")
    if stop not in ("bound", "change"):
        raise ArgumentError(f"stop: expected 'bound' or 'change', got {stop!r}")
    if stop == "change" and method != "power":
        raise ArgumentError(f"stop: 'change' is a rule of method='power', got method={method!r}")
    if not isinstance(max_iterations, int) or max_iterations < 1:
        raise ArgumentError(f"max_iterations: expected a positive integer, got {max_iterations!r}")


def _solve(task: _Task, tol: float, method: Method, stop: Stop, max_iterations: int) -> Solution:
    def fixed_point(part: _Task) -> Solution:
        return _iterate(part, tol, stop, method != "power", max_iterations)

    if method in ("anderson", "power"):
        return fixed_point(task)
    if task.alpha == 1:
        return _chunked(task, lambda part: _limit(part, tol))
    general = (lambda part: _lu(part, tol)) if method == "lu" or task.states <= LU_STATES else fixed_point
    causal = task.is_causal()
    groups = (causal, lambda part: _triangular(part, tol)), (~causal, general)
    if len(causal) == 0:
        return general(task)
    rows = [mask.nonzero().squeeze(1) for mask, _ in groups]
    # A batch of one kind, the usual case, is not copied.
    parts = [
        _chunked(task if len(own) == len(causal) else task.take(own), solve)
        for own, (_, solve) in zip(rows, groups, strict=True)
        if len(own)
    ]
    return _merge(parts, torch.cat(rows))


def _iterate(part: _Task, tol: float, stop: Stop, accelerate: bool, max_iterations: int) -> Solution:
    dtype, wide = part.weights.dtype, part.restart.dtype
    # Roundings in float32 decide which step first changes by less than 1e-6, so counts are taken in float64.
    work = wide if stop == "change" or has_rounded_matmul(part.weights) else dtype
    p, x = part.restart.to(work), part.start.to(work)
    found = iterate(part.full_chain(work), p, x, part.alpha, tol, stop, accelerate, max_iterations)
    # One product in float64 replaces any guess of what the roundings of the iteration have added up to.
    checked = _chunked(
        replace(part, start=found.state.to(wide)),
        lambda piece: certify(piece.start, piece.chain(wide), piece.restart, piece.alpha, dtype, tol),
    )
    converged = found.converged if stop == "change" else found.converged | checked.converged
    return replace(checked, iterations=found.iterations, converged=converged)


def _limit(part: _Task, tol: float) -> Solution:
    return solve_limit(part.full_chain(part.restart.dtype), part.restart, part.weights.dtype, tol)


def _lu(part: _Task, tol: float) -> Solution:
    return solve_lu(part.chain(part.restart.dtype), part.restart, part.alpha, part.weights.dtype, tol)


def _triangular(part: _Task, tol: float) -> Solution:
    matrix, dtype = part.chain(part.restart.dtype), part.weights.dtype
    return solve_triangular(matrix, part.restart, part.alpha, dtype, tol, lower=not part.backward)


def _chunked(task: _Task, solve: Callable[[_Task], Solution]) -> Solution:
    rows = torch.arange(len(task.weights), device=task.weights.device)
    pieces = chunks(rows, task.states)
    return solve(task) if len(pieces) == 1 else _merge([solve(task.take(piece)) for piece in pieces], rows)


def _merge(parts: list[Solution], rows: Tensor) -> Solution:
    order = rows.argsort()
    columns = zip(*((p.state, p.iterations, p.error_bound, p.converged) for p in parts), strict=True)
    return Solution(*(torch.cat(column)[order] for column in columns))


def _lost_mass(task: _Task, state: Tensor) -> Tensor:
    if not task.backward:
        return state.new_zeros(len(state))
    received = fill_dead(task.weights, task.dead, task.restart).sum(-2)
    lost = task.alpha * (state * (received == 0)).sum(-1)
    return torch.where(lost > 0, lost / (lost + 1 - task.alpha), 0)
