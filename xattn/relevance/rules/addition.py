"""The rule for sums of two terms: residual connections and position embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from xattn.relevance.call import Call
from xattn.relevance.rules.stabilizer import PUBLISHED, Stabilizer

_REVERSED = ("rsub", "__rsub__")


@dataclass(frozen=True)
class Add:
    """For z = x + y: S = R / z, a = x S, b = y S; the share of a constant term is dropped.

    With `normalize` the totals are then moved (Chefer et al. 2021, equation 10, as published): with A = sum a,
    B = sum b, T = sum R, a becomes a ((|A| / (|A| + |B|)) T) / A, and likewise b. Sums run over each sample; the
    published code sums over the whole batch. Where A and B differ in sign, both shrink, and the branch that
    disagrees with T changes sign.

    Args:
        normalize: Rescale each branch.
        stabilizer: How quotients are formed.
    """

    normalize: bool = False
    stabilizer: Stabilizer = PUBLISHED

    def __call__(self, call: Call, relevance: Tensor) -> Sequence[Tensor | None]:
        """The shares of the terms that depend on the input."""
        quotient = call.divide(self.stabilizer, relevance, call.value, [term for term, _ in terms(call)])
        parts = [(term, quotient * term.detach() * sign) for term, sign in terms(call)]
        if self.normalize:
            shares = self._normalized([share for _, share in parts], relevance, call)
            parts = [(term, share) for (term, _), share in zip(parts, shares, strict=True)]
        return [sum_of([share for term, share in parts if term is x]) for x in call.inputs]

    def _normalized(self, shares: list[Tensor], relevance: Tensor, call: Call) -> list[Tensor]:
        sums = [call.recording.sum_per_sample(share) for share in shares]
        for share, s in zip(shares, sums, strict=True):
            call.recording.ledger.totalled(share, s)
        total = call.recording.sum_per_sample(relevance)
        size = sum_of([s.abs() for s in sums])
        divide = self.stabilizer.divide
        return [share * divide(divide(s.abs(), size) * total, s) for share, s in zip(shares, sums, strict=True)]


def terms(call: Call) -> list[tuple[Tensor, float]]:
    """The terms of a sum or difference with their signs."""
    other = call.args[1] if len(call.args) > 1 else call.kwargs["other"]
    alpha = float(call.kwargs.get("alpha", 1))
    first = -1.0 if call.name in _REVERSED else 1.0
    second = -alpha if call.name in ("sub", "__sub__", "subtract") else alpha
    return [(call.args[0], first), (other, second)]


def sum_of(parts: list[Tensor]) -> Tensor:
    """Sum of one tensor or more."""
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)
