"""Multi-bounce attention: where a walk stands after n steps."""

from operator import index

import torch
from torch import Tensor

from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.markov._numeric import numeric
from xattn.markov.chain import Direction, as_chain, backward, broadcast_batch, check_direction, check_unit, distribution


@numeric
def bounce(
    chain: Tensor,
    start: Tensor | int,
    n: int,
    direction: Direction = "forward",
    alpha: float = 1.0,
    film: bool = False,
) -> Tensor:
    """Walk n steps from a start distribution: v A^n.

    One step forward from a token is its row (what it attends to); one step backward is its normalised column
    (who attends to it). Teleport is off unless `alpha` is below one; it then leads to a uniform token.

    Args:
        chain: (..., N, N) attention; see `as_chain` for the cleaning.
        start: distribution over tokens, (N,) or anything that broadcasts to (..., N) and is normalised here, or the
            index of one token. Extra leading dimensions are several starts.
        n: number of steps, zero or more.
        direction: "forward" follows attention from query to key, "backward" from key to query.
        alpha: probability of following the chain in each step.
        film: return all steps from 0 to n.

    Returns:
        (..., N), or (..., n + 1, N) for a film. It sums to one, less the mass lost backward at tokens that nobody
        attends to.

    Raises:
        ArgumentError: if n is negative, the start is no distribution or the chain no chain.

    Example:
        >>> bounce(torch.tensor([[0.0, 1.0], [0.5, 0.5]]), 0, 2)
        tensor([0.5000, 0.5000])
    """
    check_direction(direction)
    check_unit(alpha, "alpha")
    steps = check_steps(n)
    matrix = as_chain(chain).matrix if direction == "forward" else backward(chain)
    x = as_start(start, matrix)
    batch = broadcast_batch(chain=matrix.shape[:-2], start=x.shape[:-1])
    x = x.expand(*batch, x.shape[-1])
    uniform = 1 / x.shape[-1]
    frames = [x]
    for _ in range(steps):
        # einsum, unlike matmul, does not copy the chain for every start that is broadcast against it.
        x = torch.einsum("...i,...ij->...j", x, matrix)
        if alpha < 1:
            x = alpha * x + (1 - alpha) * uniform * frames[-1].sum(-1, keepdim=True)
        frames = [*frames, x] if film else [x]
    return torch.stack(frames, -2) if film else x.clone()


def check_steps(n: int) -> int:
    """`n` as an integer that is not negative."""
    try:
        steps = index(n)
    except TypeError:
        raise ArgumentTypeError(f"n: expected an integer, got {type(n).__name__}") from None
    if steps < 0:
        raise ArgumentError(f"n: expected zero or more steps, got {steps}")
    return steps


def as_start(start: Tensor | int, like: Tensor) -> Tensor:
    """A distribution, or the index of one token as a distribution (N,) of the type of `like`, (..., N)."""
    if isinstance(start, Tensor):
        return distribution(start, like, "start")
    states = like.shape[-1]
    if not isinstance(start, int) or isinstance(start, bool):
        raise ArgumentTypeError(f"start: expected a torch.Tensor or a token index, got {type(start).__name__}")
    if not -states <= start < states:
        raise ArgumentError(f"start: expected a token index below {states}, got {start}")
    x = like.new_zeros(states)
    x[start] = 1
    return x
