"""The second eigenvalue by adaptive block Arnoldi on a batch of deflated chains.

States are rows: products of a few rows with a batch of matrices run 2 to 10 times faster on a CPU than of the
matrices with columns.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from xattn.markov._deflated import Deflated, DeflatedMatrix
from xattn.markov._numeric import epsilon, tiny, widen

GROWTH = 1.35
"""From one test to the next the Krylov space grows by this factor, or by one step."""
LARGEST = 192
"""Dimensions of the largest Krylov space: what does not converge in it is left to other algorithms."""
SQUARINGS = 12
SEED = 20


@dataclass(frozen=True)
class Ritz:
    """For B chains (B,): modulus, error estimate, whether it is below the tolerance and resolved by the type."""

    modulus: Tensor
    residual: Tensor
    accepted: Tensor
    limited: Tensor


class _Krylov:
    """V C^p = H V + (coupling to one more block), grown block by block.

    Attributes:
        norm: (B,), ||C^p||_F, estimated.
        gain: (B,), how much longer a row has become in a product, 1/4 at least: C is a difference with a chain of norm
            1 or more, whose roundings are left when C itself is next to nothing.
    """

    def __init__(self, operator: Deflated, block: int, steps: int, power: int) -> None:
        self.operator, self.block, self.power = operator, block, power
        batch, states = operator.like.shape
        # One start for every chain, from its own generator: an answer depends neither on the batch nor on the caller's
        # random state. Made on the CPU, it is the same on every device.
        noise = torch.randn(block, states, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)
        self.gain = operator.like.new_full((batch,), 0.25)
        first = self._product(noise.to(operator.like).expand(batch, -1, -1) / states**0.5) * states**0.5
        # The mean square of a Gaussian row times a matrix is its squared Frobenius norm.
        self.norm = first.square().sum(-1).mean(-1).sqrt()
        self.space: Tensor = first.new_empty(batch, (steps + 1) * block, states)
        self.rows: list[Tensor] = []
        first, coupling = _orthonormalise(first, self.floor)
        self.space[:, :block] = _orthonormalise(first, self.floor, coupling)[0]

    @property
    def basis(self) -> Tensor:
        """Orthonormal rows (B, size, N): the part of the reserved space that is filled."""
        return self.space[:, : (len(self.rows) + 1) * self.block]

    @property
    def floor(self) -> Tensor:
        """Below this norm a row is rounding: the space is invariant and does not grow in that direction."""
        return widen(self.norm).mul(4 * epsilon(self.norm))

    def _product(self, rows: Tensor) -> Tensor:
        for factor in range(self.power):
            rows = self.operator.apply(rows)
            if factor == 0:
                self.gain = torch.maximum(self.gain, torch.linalg.vector_norm(rows, dim=-1).amax(-1))
        return rows

    def grow(self) -> None:
        """One product, orthogonalised against the basis and within itself, twice."""
        basis = self.basis
        block = self._product(basis[:, -self.block :])
        known = block @ basis.mT
        block, coupling = _orthonormalise(torch.baddbmm(block, known, basis, alpha=-1), self.floor)
        again = block @ basis.mT
        block, correction = _orthonormalise(torch.baddbmm(block, again, basis, alpha=-1), self.floor, coupling)
        known = known + coupling.to(again) @ again
        self.rows.append(torch.cat((known, (coupling @ correction).to(known)), -1))
        self.space[:, len(self.rows) * self.block :][:, : self.block] = block

    def ritz(self, rtol: float, atol: float) -> Ritz:
        """The dominant modulus of C from that of H, its residual and condition number, by squaring: no eigen solver.

        After J squarings M = H^(2^J) / ||.|| spans the dominant invariant subspace, be it a complex pair or a tie.
        r = ||M[:, last block] coupling||_F is its residual and so the backward error of rho; kappa, the norm of the
        spectral projector, turns it into a forward error.
        """
        size = len(self.rows) * self.block
        padded = [pad(row, (0, size + self.block - row.shape[-1])) for row in self.rows]
        full = torch.cat(padded, 1)
        power, coupling = full[..., :size], full[:, -self.block :, size:]
        # The rounding of a product scales with the norm of C^p, which that of H approaches, (sum s^8)^(1/8), or with
        # those of its factors.
        gram = power @ power.mT
        spectral = torch.maximum(widen(torch.linalg.matrix_norm(gram @ gram)).pow(0.25), widen(self.gain) ** self.power)
        norm = tiny(torch.linalg.matrix_norm(power))
        power, log, logs = power / norm[:, None, None], widen(norm).log(), []
        for squaring in range(1, SQUARINGS + 1):
            power, log = power @ power, 2 * log
            # Two squarings in a row cannot leave the range of the type.
            if squaring % 2 == 0 or squaring == SQUARINGS - 1:
                norm = tiny(torch.linalg.matrix_norm(power))
                power, log = power / norm[:, None, None], log + widen(norm).log()
                logs.append(log)
        before, previous, last = logs[-3:]
        previous, modulus = (
            ((previous - before) / 2 ** (SQUARINGS - 2)).exp(),
            ((last - previous) / 2 ** (SQUARINGS - 1)).exp(),
        )
        kappa = 1 / widen(norm)
        residual = kappa * widen(torch.linalg.matrix_norm(power[..., -self.block :] @ coupling))
        residual = residual + (modulus - previous).abs()
        rounding = kappa * epsilon(self.norm) * spectral
        modulus, residual, rounding = self._root(modulus, residual, rounding)
        allowed = rtol * modulus + atol
        converged, limited = residual <= allowed, 64 * rounding > allowed
        return Ritz(modulus, residual + rounding, converged & ~limited, converged & limited)

    def _root(self, modulus: Tensor, *errors: Tensor) -> list[Tensor]:
        """The modulus of C from that of C^p, and the errors that it has then: |x^(1/p) - y^(1/p)| <= |x - y|^(1/p)."""
        root = modulus ** (1 / self.power)
        slope = tiny(self.power * root ** (self.power - 1))
        return [root, *(torch.minimum(error / slope, error ** (1 / self.power)) for error in errors)]

    def take(self, keep: Tensor) -> None:
        self.operator.take(keep)
        space, used = self.space, (len(self.rows) + 1) * self.block
        self.space = space.new_empty(int(keep.sum()), *space.shape[1:])
        self.space[:, :used] = space[keep, :used]
        self.norm, self.gain = self.norm[keep], self.gain[keep]
        self.rows = [row[keep] for row in self.rows]


def _orthonormalise(block: Tensor, floor: Tensor, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """QR of the rows of (B, b, N): Q in the type of `block` and lower triangular, wide R, with block = R Q.

    The first of two calls leaves rows short that may be dependent on others. The second, which gets the R of the first,
    finishes: a row that is below the floor (B,) becomes zero.
    """
    if block.device.type == "cpu":
        # LAPACK is 2 to 9 times faster than the small products of a Cholesky QR, but makes something up for the
        # direction of a dependent row, and takes it out of the rows that follow.
        columns, upper = torch.linalg.qr(block.mT)
        lower = widen(upper.mT)
        lengths = lower.diagonal(dim1=1, dim2=2).abs()
        if before is not None:
            lengths = lengths * before.diagonal(dim1=1, dim2=2).abs()
        if bool((lengths > floor.unsqueeze(1)).all()):
            return columns.mT, lower
    return _cholesky_qr(block, floor, before)


def _cholesky_qr(block: Tensor, floor: Tensor, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The same by the Gram matrix of the rows; the squared norms in it cannot tell short rows from dependent ones."""
    wide = widen(block)
    gram = wide @ wide.mT
    norms = gram.diagonal(dim1=1, dim2=2)
    if before is None:
        least = torch.maximum(4096 * epsilon(gram) * norms, (1e-2 * floor).square().unsqueeze(1))
        lower = torch.linalg.cholesky_ex(gram + torch.diag_embed(tiny(least))).L
        keep = torch.ones_like(norms)
    else:
        lower, keep = _cholesky(gram, (floor.unsqueeze(1) / tiny(before.diagonal(dim1=1, dim2=2).abs())).square())
    inverse = torch.linalg.inv_ex(lower + torch.diag_embed(1 - keep)).inverse
    return ((inverse * keep.unsqueeze(2)) @ wide).to(block), lower


def _cholesky(gram: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """L with L L^T = gram (B, b, b), and 1 for the rows above `least` (B, b); the columns of the others are zero."""
    columns, keep = [], []
    for i in range(gram.shape[1]):
        pivot = gram[:, i, i]
        keep.append((pivot > least[:, i]).to(gram))
        column = gram[:, i:, i] * (keep[i] / tiny(pivot).sqrt()).unsqueeze(1)
        columns.append(pad(column, (i, 0)))
        gram = gram - columns[i].unsqueeze(2) * columns[i].unsqueeze(1)
    return torch.stack(columns, 2), torch.stack(keep, 1)


def arnoldi(
    chain: Tensor | Deflated, block: int, rtol: float, atol: float, largest: int | None = None, power: int = 1
) -> Ritz:
    """|lambda_2| of (B, N, N) weights that the rows are yet to be normalised of, or of a deflated operator.

    Chains are tested at checkpoints and leave the batch, once a quarter is done. Those that have not converged in a
    Krylov space of dimension `largest` are given up. A chain is `limited` when it has converged but its condition
    number times rounding exceeds the tolerance: it needs a wider type. With `power` p the space is that of C^p, which
    is smaller for as many products: worthwhile where products cost less than keeping the space orthogonal.
    """
    operator = DeflatedMatrix(chain) if isinstance(chain, Tensor) else chain
    batch, states = operator.like.shape
    wide = widen(operator.like[:, 0])
    modulus, residual = torch.zeros_like(wide), torch.full_like(wide, torch.inf)
    accepted = torch.zeros_like(wide, dtype=torch.bool)
    limited = accepted.clone()
    live = torch.arange(batch, device=wide.device)
    checkpoints = _checkpoints(states, block, largest, power)
    krylov = _Krylov(operator, block, checkpoints[-1], power)
    for step in range(1, checkpoints[-1] + 1):
        krylov.grow()
        if step not in checkpoints:
            continue
        found = krylov.ritz(rtol, atol)
        done = accepted | limited
        # An answer once given stands: a Krylov space continued past its breakdown grows rounding.
        fresh = ~done[live]
        rows = live[fresh]
        modulus[rows], residual[rows] = found.modulus[fresh], found.residual[fresh]
        accepted[rows], limited[rows] = found.accepted[fresh], found.limited[fresh]
        keep = ~(accepted | limited)[live]
        remaining = int(keep.sum())
        if remaining == 0:
            break
        if remaining < 0.75 * len(live):
            krylov.take(keep)
            live = live[keep]
    return Ritz(modulus, residual, accepted, limited)


def _checkpoints(states: int, block: int, largest: int | None, power: int) -> list[int]:
    """Steps to test after."""
    step = 2 if power > 1 else 4
    complete = -(-states // block)  # after this many blocks the space is everything
    most = min(complete, LARGEST // block, complete if largest is None else max(largest // block, step))
    steps = []
    while step < most:
        steps.append(step)
        step = max(step + 1, round(GROWTH * step))
    return [*steps, most]
