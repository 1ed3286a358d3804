"""The second eigenvalue between two bounds, by repeated squaring of the deflated chain."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from xattn.markov._numeric import epsilon, tiny, widen


@dataclass(frozen=True)
class Bracket:
    """For B chains (B,): the estimate, that of one squaring before, and bounds that hold with rounding."""

    modulus: Tensor
    previous: Tensor
    lower: Tensor
    upper: Tensor

    @property
    def residual(self) -> Tensor:
        """The distance from the estimate to the farther bound."""
        return torch.maximum(self.modulus - self.lower, self.upper - self.modulus)

    def take(self, keep: Tensor) -> "Bracket":
        """The brackets of some rows."""
        return Bracket(self.modulus[keep], self.previous[keep], self.lower[keep], self.upper[keep])

    def meet(self, other: "Bracket") -> "Bracket":
        """What both brackets say together, with the estimate of the narrower one."""
        lower, upper = torch.maximum(self.lower, other.lower), torch.minimum(self.upper, other.upper)
        modulus = torch.where(other.residual < self.residual, other.modulus, self.modulus)
        return Bracket(torch.minimum(torch.maximum(modulus, lower), upper), self.previous, lower, upper)


def sink_of(matrix: Tensor) -> Tensor:
    """The token that receives most attention, (B,)."""
    return matrix.sum(-2).argmax(-1)


def deflate(matrix: Tensor) -> Tensor:
    """A - 1 a_s without column s, where a_s is the row of the token with the largest column sum.

    Subtracting 1 u, for any u that sums to one, only moves the eigenvalue 1 of A to 0 (A. Brauer, Duke Math. J. 19,
    1952). The choice of u decides the conditioning: with the mean row, heads that collapse on one sink lose all digits
    in float32. Row s of the difference is zero, so column s adds nothing to the spectrum either.
    """
    sink = sink_of(matrix)
    batch = torch.arange(len(matrix), device=matrix.device)
    deflated = matrix - matrix[batch, sink].unsqueeze(1)
    deflated[batch, :, sink] = 0
    return deflated


def deflate_mean(matrix: Tensor) -> Tensor:
    """A - 1 u with u the mean row: keeps a permutation normal, whose errors the sink's row lets grow."""
    return matrix - matrix.mean(-2, keepdim=True)


def bracket(matrix: Tensor, squarings: int, deflation: Callable[[Tensor], Tensor] = deflate) -> Bracket:
    """Bound |lambda_2| of row-stochastic (B, N, N).

    With C the deflated chain and L_j = log ||C^(2^j)||_F,

        max_k (|tr C^k| / (N - 1))^(1/k)  <=  |lambda_2|  <=  min_j exp(L_j / 2^j),

    k = 2^j and 2^j + 2^(j-1) (a complex pair cannot hide its phase from both). The best estimate is
    exp((L_J - L_(J-1)) / 2^(J-1)); errors made at squaring j are divided by 2^j.
    """
    states = matrix.shape[-1]
    eps = epsilon(matrix)
    power = deflation(matrix)
    norm = _norm(power)
    error = 4 * eps * _norm(matrix)
    root, count = states**0.5, torch.tensor(float(max(states - 1, 1)), dtype=norm.dtype, device=norm.device).log()
    upper = (norm + error).log()
    lower = ((_trace(power).abs() - root * error).clamp(min=0)).log() - count
    # C^(2^j) = exp(scale) (M + E) with ||M||_F = 1 and ||E||_F <= error.
    scale, error = tiny(norm).log(), error / tiny(norm)
    power = power / _column(tiny(norm))
    estimate = previous = torch.full_like(norm, -torch.inf)
    for j in range(1, squarings + 1):
        square = power @ power
        norm = _norm(square)
        # ||E M + M E + E E||_F, with ||M||_2^2 <= ||M||_1 ||M||_inf, and the rounding of the product.
        square_error = 2 * _spectral(power) * error + error.square() + states * eps
        # fmin and fmax pass over the NaN of a power that has vanished in rounding.
        upper = torch.fmin(upper, (2 * scale + (norm + square_error).log()) / 2**j)
        trace = (_trace(square).abs() - root * square_error).clamp(min=0).log() + 2 * scale - count
        mixed = widen(square * power.mT).sum((-1, -2)).abs()
        mixed_error = square_error * (1 + error) + norm * error + states * eps
        mixed = (mixed - mixed_error).clamp(min=0).log() + 3 * scale - count
        lower = torch.fmax(torch.fmax(lower, trace / 2**j), mixed / (3 * 2 ** (j - 1)))
        grown = 2 * scale + tiny(norm).log()
        previous, estimate = estimate, (grown - scale) / 2 ** (j - 1)
        scale, error = grown, square_error / tiny(norm)
        power = square / _column(tiny(norm)).to(square.dtype)
    upper = upper.exp().clamp(max=1)
    lower = torch.minimum(lower.exp(), upper)
    modulus, previous = (torch.minimum(torch.maximum(e.exp(), lower), upper) for e in (estimate, previous))
    return Bracket(modulus, previous, lower, upper)


def _norm(matrix: Tensor) -> Tensor:
    return widen(torch.linalg.matrix_norm(matrix))


def _spectral(matrix: Tensor) -> Tensor:
    absolute = matrix.abs()
    return (widen(absolute.sum(-1).amax(-1)) * widen(absolute.sum(-2).amax(-1))).sqrt().clamp(max=1)


def _trace(matrix: Tensor) -> Tensor:
    return widen(matrix.diagonal(dim1=-2, dim2=-1)).sum(-1)


def _column(values: Tensor) -> Tensor:
    return values[:, None, None]
