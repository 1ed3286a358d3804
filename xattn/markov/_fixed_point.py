"""Power iteration, plain or Anderson-accelerated, for pi = pi G on a flat batch of chains."""

from collections import deque
from dataclasses import dataclass, fields
from typing import Literal, Protocol, Self, TypeAlias

import torch
from torch import Tensor

from xattn.markov._numeric import epsilon, tiny, widen
from xattn.markov.chain import normalise_mass

HISTORY = 6
SYNC_EVERY = 8
PATIENCE = 50
ROUNDINGS = 4
"""Relative roundings that one step costs: of the chain, of its row sums, of the product, of the restart."""


class Steps(Protocol):
    """One step of B chains whose matrices do not exist."""

    def step(self, x: Tensor) -> Tensor:
        """(B, N) -> (B, N)."""

    def __getitem__(self, rows: Tensor) -> Self:
        """The chains of some rows."""


Walked: TypeAlias = Tensor | Steps


@dataclass(frozen=True)
class Solution:
    """Distributions (B, N), iterations (B,), error bounds in L1 (B,), convergence (B,)."""

    state: Tensor
    iterations: Tensor
    error_bound: Tensor
    converged: Tensor


@dataclass
class _Walks:
    """The walks still under way: one row of each tensor per walk."""

    row: Tensor
    matrix: Walked
    restart: Tensor
    limit: Tensor
    state: Tensor
    answer: Tensor
    change: Tensor
    best: Tensor
    age: Tensor
    steps: Tensor
    active: Tensor

    def take(self, keep: Tensor) -> "_Walks":
        return _Walks(**{field.name: getattr(self, field.name)[keep] for field in fields(self)})

    def advance(self, alpha: float) -> Tensor:
        """One step of G from `state`; records it for the walks that had not stopped, and stops those that now may."""
        g = restart_step(self.state, self.matrix, alpha, self.restart)
        change = (g - self.state).abs().sum(-1).to(self.change.dtype)
        self.answer = torch.where(self.active.unsqueeze(-1), g, self.answer)
        self.change = torch.where(self.active, change, self.change)
        self.steps = self.steps + self.active
        improved = change < 0.999 * self.best
        self.best = torch.where(improved, change, self.best)
        self.age = torch.where(improved, 0, self.age + 1)
        self.active = self.active & (change >= self.limit) & (self.age < PATIENCE)
        return g


def restart_step(x: Tensor, matrix: Walked, alpha: float, restart: Tensor) -> Tensor:
    """X G for (B, N) distributions: what the chain does not carry on, by teleport or at a zero row, restarts.

    Restarting the remainder, and not 1 - alpha, keeps the sum at one to the last bit; without it
    float32 rows that sum to 1 + 1e-6 stall the iteration at some thousand tokens.
    """
    step = torch.bmm(x.unsqueeze(1), matrix).squeeze(1) if isinstance(matrix, Tensor) else matrix.step(x)
    carried = alpha * step
    return carried + (1 - carried.sum(-1, keepdim=True)).clamp(min=0) * restart


def contraction(matrix: Tensor, alpha: float) -> Tensor:
    """A factor by which one step of G shrinks, at least, the L1 distance of two distributions, (B,).

    alpha times one minus the Doeblin coefficient sum_j min_i A_ij, so it may lie below one at alpha = 1 too.
    """
    return alpha * (1 - widen(matrix.amin(-2)).sum(-1)).clamp(0, 1)


def iterate(
    matrix: Walked,
    restart: Tensor,
    start: Tensor,
    alpha: float,
    tol: float,
    stop: Literal["bound", "change"],
    accelerate: bool,
    max_iterations: int,
) -> Solution:
    """Iterate x <- x G for B chains, (B, N, N) or their `Steps`, until every walk has stopped.

    A walk stops when its error bound (or its last change, in L1) is below `tol` or below what the type can resolve;
    when the change has not improved for 50 steps; or after `max_iterations`. Walks never interact, so what one
    returns does not depend on its batch; finished ones leave it once they are a quarter.
    """
    # Without a matrix there is no Doeblin coefficient to be had for less than a pass over all scores.
    factor = contraction(matrix, alpha) if isinstance(matrix, Tensor) else alpha * torch.ones_like(widen(start[:, 0]))
    floor = ROUNDINGS * epsilon(start) / (1 - factor)
    goal = (tol - floor).clamp(min=0)
    # ||x_k - pi|| <= factor / (1 - factor) ||x_k - x_(k-1)||
    amplify = factor / (1 - factor)
    noise = ROUNDINGS / 4 * epsilon(start) / tiny(factor)
    limit = torch.full_like(floor, tol) if stop == "change" else torch.maximum(goal / tiny(amplify), noise)
    unset = torch.full_like(floor, torch.inf)
    count = torch.zeros_like(floor, dtype=torch.long)
    row = torch.arange(len(floor), device=floor.device)
    everyone = torch.ones_like(row, dtype=torch.bool)
    walks = _Walks(row, matrix, restart, limit, start, start, unset, unset, count, count, everyone)
    mixer = _Anderson() if accelerate else None
    state, change, steps = start.clone(), unset.clone(), count.clone()
    for step in range(1, max_iterations + 1):
        g = walks.advance(alpha)
        walks.state = mixer.mix(walks.state, g) if mixer else g
        if step % SYNC_EVERY and step < max_iterations:
            continue
        remaining = int(walks.active.sum())
        if step == max_iterations or remaining <= 0.75 * len(walks.row):
            state[walks.row], change[walks.row], steps[walks.row] = walks.answer, walks.change, walks.steps
            if remaining == 0:
                break
            keep = walks.active
            walks = walks.take(keep)
            if mixer:
                mixer.take(keep)
    bound = torch.where(change == 0, 0, amplify * change)
    converged = change < tol if stop == "change" else (bound <= torch.maximum(goal, floor)) & floor.isfinite()
    return Solution(state, steps, (bound + floor).clamp(max=2), converged)


class _Anderson:
    """Anderson mixing: the combination of the last steps whose residual is least, per walk.

    H. Walker and P. Ni, Anderson acceleration for fixed-point iterations, SIAM J. Numer. Anal. 49 (2011), eq. 2.2.
    """

    def __init__(self) -> None:
        self.steps: deque[tuple[Tensor, Tensor]] = deque(maxlen=HISTORY)

    def mix(self, x: Tensor, g: Tensor) -> Tensor:
        """The next state (B, N) after the step from x to g."""
        self.steps.append((g, g - x))
        if len(self.steps) == 1:
            return g
        steps = torch.stack([g for g, _ in self.steps], 1).diff(dim=1)
        residuals = torch.stack([r for _, r in self.steps], 1).diff(dim=1)
        norms = tiny(residuals.norm(dim=-1, keepdim=True))
        residuals, steps = residuals / norms, steps / norms
        # Normalised differences and a ridge keep the tiny least-squares problem solvable when they line up.
        wide = widen(residuals)
        ridge = 1e-10 if g.dtype == torch.float64 else 1e-6
        gram = wide @ wide.mT + ridge * torch.eye(wide.shape[1], dtype=wide.dtype, device=wide.device)
        weights = torch.linalg.solve(gram, (wide @ widen(g - x).unsqueeze(-1)))
        mixed = g - (weights.to(g.dtype) * steps).sum(1)
        return normalise_mass(mixed.clamp(min=0))

    def take(self, keep: Tensor) -> None:
        """Forget the walks that have left."""
        self.steps = deque(((g[keep], r[keep]) for g, r in self.steps), maxlen=HISTORY)
