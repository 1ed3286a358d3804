"""Direct solvers of pi = pi G on a flat batch: LU, one triangular solve, and the limit without teleport."""

import math

import torch
from torch import Tensor

from xattn.markov._fixed_point import Solution, contraction, restart_step
from xattn.markov._numeric import epsilon, has_rounded_matmul
from xattn.markov.chain import normalise_mass, normalize_rows

REFINEMENTS = 2
DOUBLINGS = 50


def solve_lu(matrix: Tensor, restart: Tensor, alpha: float, dtype: torch.dtype, tol: float) -> Solution:
    """Solve pi (I - alpha A) = (1 - alpha) p by LU in `dtype`, refined with the residual of the (wide) input.

    The system is a column diagonally dominant M-matrix, so LU is stable, float32 included; refining with a residual
    in float64 recovers what float32 lost. A residual in float32 would make it worse.
    """
    system = -alpha * matrix.mT
    system.diagonal(dim1=-2, dim2=-1).add_(1)
    # float32 cannot refine a system as ill-conditioned as the alphas near one make it.
    factor_dtype = dtype if 1 - alpha > 1e-3 and not has_rounded_matmul(restart.to(dtype)) else matrix.dtype
    lu, pivots = _factor(system.to(factor_dtype))
    right = ((1 - alpha) * restart).unsqueeze(-1)
    x = torch.zeros_like(right)
    for _ in range(1 + REFINEMENTS):
        residual = right - system @ x
        x = x + torch.linalg.lu_solve(lu, pivots, residual.to(factor_dtype)).to(x.dtype)
    return certify(x.squeeze(-1), matrix, restart, alpha, dtype, tol)


def _factor(system: Tensor) -> tuple[Tensor, Tensor]:
    """LU factors and pivots of a batch.

    On a CPU one by one, which takes no longer: torch 2.14.1 hangs in the factorisation of several matrices of more than
    some 150 rows once `torch.set_num_threads` has been called (oneMKL: "Parameter 6 was incorrect on entry to SLASWP").
    """
    if system.device.type != "cpu" or not len(system):
        return tuple(torch.linalg.lu_factor(system))
    factors = [torch.linalg.lu_factor(matrix) for matrix in system]
    return torch.stack([lu for lu, _ in factors]), torch.stack([pivots for _, pivots in factors])


def solve_triangular(
    matrix: Tensor, restart: Tensor, alpha: float, dtype: torch.dtype, tol: float, lower: bool
) -> Solution:
    """Solve pi (I - alpha A) = (1 - alpha) p for lower (or upper) triangular A, exact in O(N^2)."""
    system = -alpha * matrix.mT
    system.diagonal(dim1=-2, dim2=-1).add_(1)
    right = ((1 - alpha) * restart).unsqueeze(-1)
    x = torch.linalg.solve_triangular(system, right, upper=lower)
    return certify(x.squeeze(-1), matrix, restart, alpha, dtype, tol)


def certify(x: Tensor, matrix: Tensor, restart: Tensor, alpha: float, dtype: torch.dtype, tol: float) -> Solution:
    """Round a solution to `dtype` and bound its L1 error by ||x G - x|| / (1 - contraction) and the rounding."""
    # Zero rows lose mass in the linear system. Scaling its solution to one gives the chain that restarts there.
    x = normalise_mass(x.clamp(min=0))
    residual = (restart_step(x, matrix, alpha, restart) - x).abs().sum(-1)
    bound = (residual + _rounding(x)) / (1 - contraction(matrix, alpha))
    return _rounded(x, bound, dtype, tol)


def _rounding(x: Tensor) -> float:
    """L1 rounding of one product with x, whose sums of N terms err as a random walk does."""
    return (4 + math.sqrt(x.shape[-1])) * epsilon(x)


def _rounded(x: Tensor, bound: Tensor, dtype: torch.dtype, tol: float) -> Solution:
    answer = x.to(dtype)
    bound = (bound + (answer.to(x.dtype) - x).abs().sum(-1)).clamp(max=2)
    return Solution(answer, torch.zeros_like(bound, dtype=torch.long), bound, bound <= tol)


def solve_limit(matrix: Tensor, restart: Tensor, dtype: torch.dtype, tol: float) -> Solution:
    """The limit of pi for alpha -> 1: the stationary distribution that a walk from p approaches on (Cesaro) average.

    It is p times the limit of L^(2^k), L = (A + I) / 2, and exists for every chain, periodic and reducible ones
    included. With more than one closed class it depends on p and no finite error bound holds: the bound is then 2.
    With t_k >= the Dobrushin coefficient of L^k, ||x - pi|| <= ||x A - x|| / 2 sum_k t_k.
    """
    size = matrix.shape[-1]
    power = (matrix + torch.eye(size, dtype=matrix.dtype, device=matrix.device)) / 2
    # t falls at least as its own square; beyond rounding, the recursion knows it better than the matrix does.
    t, total = torch.ones_like(restart[:, 0]), torch.ones_like(restart[:, 0])
    for doubling in range(DOUBLINGS):
        t = torch.minimum(1 - power.amin(-2).sum(-1), t.square()).clamp(min=0)
        total = total + 2.0**doubling * t
        if doubling % 8 == 7 and not bool(t.any()):
            break
        power = normalize_rows(power @ power)
    x = normalise_mass((restart.unsqueeze(1) @ power).squeeze(1))
    residual = (restart_step(x, matrix, 1.0, restart) - x).abs().sum(-1)
    # The walk kept contracting to the end, so what the sum leaves out is beyond rounding.
    bound = torch.where(t < 0.5, (residual + _rounding(x)) / 2 * total, torch.inf)
    return _rounded(x, bound, dtype, tol)
