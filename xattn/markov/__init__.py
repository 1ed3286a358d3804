"""Attention matrices as Markov chains: pure functions, batched over leading dimensions.

A chain is a (..., N, N) tensor of attention after the softmax: A[i, j] is what token i (query) pays to token j (key),
and rows sum to one. A walk moves a row vector: v A is one step forward, from query to key; v B with
B = D^-1 A^T, D = diag(column sums of A), one step backward.
"""

from xattn.markov.bounce import bounce
from xattn.markov.chain import Chain, as_chain, backward, normalize_rows, teleport
from xattn.markov.cross import complete_chain
from xattn.markov.diagnose import Diagnosis, diagnose
from xattn.markov.eigen import SecondEigenvalue, second_eigenvalue
from xattn.markov.heads import fuse_heads, lambda2_weights
from xattn.markov.operator import AttentionOperator, rollout_row
from xattn.markov.rollout import Rollout, rollout
from xattn.markov.stationary import Stationary, stationary

__all__ = [
    "AttentionOperator",
    "Chain",
    "Diagnosis",
    "Rollout",
    "SecondEigenvalue",
    "Stationary",
    "as_chain",
    "backward",
    "bounce",
    "complete_chain",
    "diagnose",
    "fuse_heads",
    "lambda2_weights",
    "normalize_rows",
    "rollout",
    "rollout_row",
    "second_eigenvalue",
    "stationary",
    "teleport",
]
