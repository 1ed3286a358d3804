"""The second eigenvalue by adaptive block Arnoldi on a batch of deflated chains.

States are rows: products of a few rows with a batch of matrices run 2 to 10 times faster on a CPU than of the
matrices with columns.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from xattn.markov._numeric import epsilon, row_sums, tiny, widen
from xattn.markov._squaring import deflate, sink_of
from xattn.markov.chain import normalize_rows

CHECKPOINTS = {4: (4, 6, 8, 11, 15, 20, 27, 36, 48), 2: (5, 7, 10, 14, 19, 26, 36, 50, 70, 96)}
SQUARINGS = 12
COPY_STATES = 500
"""Up to this size a deflated copy is cheaper than deflating every product."""
SEED = 20


@dataclass(frozen=True)
class Ritz:
    """For B chains (B,): modulus, error estimate, whether it is below the tolerance and resolved by the type."""

    modulus: Tensor
    residual: Tensor
    accepted: Tensor
    limited: Tensor


class Deflated(Protocol):
    """Products of row blocks with B chains that have lost their eigenvalue 1 (or with their transposes).

    Attributes:
        like: (B, N) tensor of the type to work in.
    """

    like: Tensor

    def apply(self, rows: Tensor) -> Tensor:
        """(B, b, N) -> (B, b, N)."""

    def take(self, keep: Tensor) -> None:
        """Forget the other chains."""


class _DeflatedMatrix:
    """See `deflate`."""

    def __init__(self, weights: Tensor) -> None:
        self.like = weights[:, 0]
        self.sink: Tensor | None = None
        if weights.shape[-1] <= COPY_STATES:
            self.matrix = deflate(normalize_rows(weights))
            return
        # Rows are normalised on the fly too: v (D^-1 W) = (v D^-1) W.
        self.matrix, self.sink = weights, sink_of(weights)
        self.scale = (1 / row_sums(weights)).to(weights.dtype).unsqueeze(1)
        batch = torch.arange(len(weights), device=weights.device)
        self.sink_row = (weights[batch, self.sink] * self.scale[batch, :, self.sink]).unsqueeze(1)

    def apply(self, rows: Tensor) -> Tensor:
        """(B, b, N) -> (B, b, N)."""
        if self.sink is None:
            return torch.bmm(rows, self.matrix)
        product = torch.bmm(rows * self.scale, self.matrix) - rows.sum(-1, keepdim=True) * self.sink_row
        return product.scatter_(-1, self.sink[:, None, None].expand(*product.shape[:2], 1), 0)

    def take(self, keep: Tensor) -> None:
        self.matrix = self.matrix[keep]
        if self.sink is not None:
            self.sink, self.sink_row, self.scale = self.sink[keep], self.sink_row[keep], self.scale[keep]


class _Krylov:
    """V C = H V + (coupling to one more block), grown block by block."""

    def __init__(self, operator: Deflated, block: int) -> None:
        self.operator, self.block = operator, block
        batch, states = operator.like.shape
        # One start for every chain, from its own generator: an answer depends neither on the batch nor on the caller's
        # random state. Made on the CPU, it is the same on every device.
        noise = torch.randn(block, states, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)
        first = self.operator.apply(noise.to(operator.like).expand(batch, -1, -1))
        # The mean square of a Gaussian row times C is ||C||_F^2.
        self.norm = first.square().sum(-1).mean(-1).sqrt()
        self.basis = _orthonormalise(_orthonormalise(first, self.floor)[0], 0 * self.norm)[0]
        self.rows: list[Tensor] = []

    @property
    def floor(self) -> Tensor:
        """Below this norm a row is rounding: the space is invariant and does not grow in that direction."""
        return 4 * epsilon(self.norm) * self.norm

    def grow(self) -> None:
        """One product, orthogonalised against the basis and within itself, twice."""
        block = self.operator.apply(self.basis[:, -self.block :])
        known, block, coupling = self._orthogonalise(block, self.floor)
        again, block, correction = self._orthogonalise(block, torch.full_like(self.norm, 1e-3))
        self.rows.append(torch.cat((known + coupling @ again, coupling @ correction), -1))
        self.basis = torch.cat((self.basis, block), 1)

    def _orthogonalise(self, block: Tensor, floor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        known = block @ self.basis.mT
        block, coupling = _orthonormalise(block - known @ self.basis, floor)
        return known, block, coupling

    def ritz(self, rtol: float, atol: float) -> Ritz:
        """The dominant modulus of H, its residual and condition number, from repeated squaring: no eigen solver.

        After J squarings M = H^(2^J) / ||.|| spans the dominant invariant subspace, be it a complex pair or a tie.
        r = ||M[:, last block] coupling||_F is its residual and so the backward error of rho; kappa, the norm of the
        spectral projector, turns it into a forward error.
        """
        size = len(self.rows) * self.block
        padded = [pad(row, (0, size + self.block - row.shape[-1])) for row in self.rows]
        full = torch.cat(padded, 1)
        power, coupling = full[..., :size], full[:, -self.block :, size:]
        # The rounding of a product scales with the spectral norm of C, which that of H approaches: (sum s^8)^(1/8).
        gram = power @ power.mT
        spectral = widen(torch.linalg.matrix_norm(gram @ gram)).pow(0.25)
        norm = tiny(torch.linalg.matrix_norm(power))
        logs = [widen(norm).log()]
        power = power / norm[:, None, None]
        for _ in range(SQUARINGS):
            power = power @ power
            norm = tiny(torch.linalg.matrix_norm(power))
            logs.append(2 * logs[-1] + widen(norm).log())
            power = power / norm[:, None, None]
        previous, modulus = (
            ((b - a) / 2**j).exp()
            for j, a, b in zip((SQUARINGS - 2, SQUARINGS - 1), logs[-3:], logs[-2:], strict=False)
        )
        kappa = 1 / widen(norm)
        residual = kappa * widen(torch.linalg.matrix_norm(power[..., -self.block :] @ coupling))
        residual = residual + (modulus - previous).abs()
        rounding = kappa * epsilon(self.norm) * spectral
        allowed = rtol * modulus + atol
        converged, limited = residual <= allowed, 64 * rounding > allowed
        return Ritz(modulus, residual + rounding, converged & ~limited, converged & limited)

    def take(self, keep: Tensor) -> None:
        self.operator.take(keep)
        self.norm, self.basis = self.norm[keep], self.basis[keep]
        self.rows = [row[keep] for row in self.rows]


def _orthonormalise(block: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """Gram-Schmidt on the rows of (B, b, N): Q, R with block = R Q. Rows below the floor (B,) become zero."""
    rest, done, coefficients = block, [], []
    for i in range(block.shape[1]):
        row = rest[:, :1]
        norm = torch.linalg.vector_norm(row, dim=-1, keepdim=True)
        alive = norm > floor[:, None, None]
        row = torch.where(alive, row / tiny(norm), 0)
        rest = rest[:, 1:]
        against = rest @ row.mT
        rest = rest - against * row
        done.append(row)
        coefficients.append(pad(torch.cat((norm * alive, against), 1), (0, 0, i, 0)))
    return torch.cat(done, 1), torch.cat(coefficients, 2)


def arnoldi(chain: Tensor | Deflated, block: int, rtol: float, atol: float) -> Ritz:
    """|lambda_2| of (B, N, N) weights that the rows are yet to be normalised of, or of a deflated operator.

    Chains are tested at checkpoints and leave the batch, once a quarter is done. A chain is `limited` when it has
    converged but its condition number times rounding exceeds the tolerance: it needs a wider type.
    """
    operator = _DeflatedMatrix(chain) if isinstance(chain, Tensor) else chain
    batch, states = operator.like.shape
    krylov = _Krylov(operator, block)
    wide = widen(operator.like[:, 0])
    modulus, residual = torch.zeros_like(wide), torch.full_like(wide, torch.inf)
    accepted = torch.zeros_like(wide, dtype=torch.bool)
    limited = accepted.clone()
    live = torch.arange(batch, device=wide.device)
    # After this many blocks the space is everything.
    complete = -(-states // block)
    checkpoints = [c for c in CHECKPOINTS[block] if c < complete]
    if complete <= CHECKPOINTS[block][-1]:
        checkpoints.append(complete)
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
