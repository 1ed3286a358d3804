"""Cross-attention as a chain: a rectangular map completed to a square one."""

from torch import Tensor

from xattn.errors import ArgumentError
from xattn.markov._numeric import numeric
from xattn.markov.chain import check_chain, check_float, fill_dead, normalize_rows


@numeric
def complete_chain(cross_attention: Tensor) -> Tensor:
    """Complete an attention map from M queries to N keys to a chain over all M + N tokens.

    The queries come first. They lead to the keys as the map says; a key has no row of its own, so it becomes a dummy
    state with a uniform transition to every state (queries and keys alike, which keeps the chain aperiodic):

        [[0, A], [u, u]]  with  u = 1 / (M + N).

    The last N entries of a distribution over the result belong to the keys, the first M to the queries.

    Args:
        cross_attention: (..., M, N), rows summing to one. A dead row becomes uniform over the keys.

    Returns:
        (..., M + N, M + N).

    Raises:
        ArgumentTypeError: if the map is no floating point tensor.
        ArgumentError: if it is no (..., M, N) map of rows that sum to one; see `as_chain`.

    Example:
        >>> complete_chain(torch.ones(2, 1))
        tensor([[0.0000, 0.0000, 1.0000],
                [0.0000, 0.0000, 1.0000],
                [0.3333, 0.3333, 0.3333]])
    """
    name = "cross_attention"
    attention = check_float(cross_attention, name)
    if attention.ndim < 2 or 0 in attention.shape[-2:]:
        raise ArgumentError(f"{name}: expected shape (..., M, N), got {tuple(attention.shape)}")
    weights, dead = check_chain(attention, name)
    *batch, queries, keys = weights.shape
    total = queries + keys
    square = weights.new_full((*batch, total, total), 1 / total)
    square[..., :queries, :queries] = 0
    square[..., :queries, queries:] = fill_dead(normalize_rows(weights), dead, weights.new_full((keys,), 1 / keys))
    return square
