"""TokenRank and the second eigenvalue of chains that exist as products only."""

from dataclasses import dataclass

import torch
from torch import Tensor

from xattn.markov._arnoldi import arnoldi
from xattn.markov._fixed_point import Solution, iterate
from xattn.markov._numeric import epsilon
from xattn.markov._operator_products import FusedProducts, Products
from xattn.markov.chain import normalise_mass
from xattn.markov.eigen import FLOOR, SecondEigenvalue
from xattn.markov.stationary import Stationary


@dataclass(frozen=True)
class _Forward:
    """Steps from query to key: v A."""

    products: Products

    def step(self, x: Tensor) -> Tensor:
        return self.products.transposed(x.unsqueeze(1)).squeeze(1)

    def __getitem__(self, rows: Tensor) -> "_Forward":
        return _Forward(self.products[rows])


@dataclass(frozen=True)
class _Backward:
    """Steps from key to query: v D^-1 A^T = A (v / D). What stands at a token that nobody attends to is lost."""

    products: Products
    received: Tensor

    def step(self, x: Tensor) -> Tensor:
        return self.products.forward(_divide(x, self.received).unsqueeze(1)).squeeze(1)

    def __getitem__(self, rows: Tensor) -> "_Backward":
        return _Backward(self.products[rows], self.received[rows])


def _divide(x: Tensor, received: Tensor) -> Tensor:
    return torch.where(received > 0, x / torch.where(received > 0, received, 1), 0)


def walk(products: Products, backward: bool) -> _Forward | _Backward:
    """One step in a direction."""
    return _Backward(products, products.received) if backward else _Forward(products)


def token_rank(
    products: FusedProducts, restart: Tensor, alpha: float, backward: bool, tol: float, max_iterations: int
) -> Stationary:
    """`stationary` by Anderson-accelerated iteration, flat: (B, N)."""
    steps = walk(products, backward)
    start = _uniform(restart, products.valid)
    found = iterate(steps, restart, start, alpha, tol, "bound", True, max_iterations)
    dead = torch.zeros_like(restart, dtype=torch.bool) if products.valid is None else ~products.valid
    return Stationary(
        found.state, found.iterations, found.error_bound, found.converged, dead, _lost_mass(steps, found, alpha, dead)
    )


def _uniform(like: Tensor, valid: Tensor | None) -> Tensor:
    ones = torch.ones_like(like)
    return normalise_mass(ones if valid is None else ones * valid)


def _lost_mass(steps: _Forward | _Backward, found: Solution, alpha: float, dead: Tensor) -> Tensor:
    if isinstance(steps, _Forward):
        return found.state.new_zeros(len(found.state))
    lost = alpha * (found.state * ((steps.received == 0) & ~dead)).sum(-1)
    return torch.where(lost > 0, lost / (lost + 1 - alpha), 0)


def second_eigenvalue(products: FusedProducts, rtol: float, block: int) -> SecondEigenvalue:
    """|lambda_2|, flat (B,): from the diagonal of causal chains, else by block Arnoldi, which takes products alone."""
    if products.causal:
        return _causal(products)
    ritz = arnoldi(_DeflatedProducts(products), block, rtol, rtol * FLOOR)
    modulus, residual = ritz.modulus, ritz.residual
    rows = ritz.limited.nonzero().squeeze(1)
    if len(rows) and products.query.dtype != torch.float64 and products.query.device.type != "mps":
        retried = arnoldi(_DeflatedProducts(products[rows].double()), block, rtol, rtol * FLOOR)
        modulus[rows], residual[rows] = retried.modulus.to(modulus), retried.residual.to(residual)
    dtype = products.query.dtype
    return SecondEigenvalue(
        modulus.clamp(0, 1).to(dtype), residual.to(dtype), torch.zeros_like(modulus, dtype=torch.bool)
    )


def _causal(products: FusedProducts) -> SecondEigenvalue:
    """A triangular chain has its eigenvalues on the diagonal; the first visible token pays everything to itself."""
    values = products.diagonal
    if products.valid is not None:
        values = values * products.valid
        first = products.valid.int().argmax(-1, keepdim=True)
    else:
        first = torch.zeros_like(values[:, :1], dtype=torch.long)
    modulus = values.scatter(-1, first, 0).amax(-1).clamp(max=1)
    return SecondEigenvalue(modulus, _rounding(products) * modulus, torch.ones_like(modulus, dtype=torch.bool))


def _rounding(products: FusedProducts) -> Tensor:
    """(B,) relative rounding of one entry exp(score - normaliser): that of the largest normaliser."""
    return 4 * epsilon(products.query) * (1 + products.normalisers.abs().amax(-1))


class _DeflatedProducts:
    """x -> A x - 1 (A x)_s without entry s, s the token that receives most attention: rows times the transpose.

    See `xattn.markov._squaring.deflate`; the transpose has the same eigenvalues and costs one plain attention.
    """

    def __init__(self, products: FusedProducts) -> None:
        received = products.received
        self.like = torch.zeros_like(received)
        self._products = products
        self._sink = received.argmax(-1)

    def apply(self, rows: Tensor) -> Tensor:
        sink = self._sink[:, None, None].expand(*rows.shape[:2], 1)
        found = self._products.forward(rows.scatter(-1, sink, 0))
        found = found - found.gather(-1, sink)
        return found if self._products.valid is None else found * self._products.valid.unsqueeze(1)

    def take(self, keep: Tensor) -> None:
        self._products, self._sink, self.like = self._products[keep], self._sink[keep], self.like[keep]
