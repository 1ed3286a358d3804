"""The rule of AttnLRP for softmax."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from xattn.relevance.call import Call


@dataclass(frozen=True)
class SoftmaxTaylor:
    """R_i = x_i (R_i - s_i sum_j R_j) for s = softmax(x): its first-order expansion.

    Achtibat et al. 2024, proposition 3.1. What the expansion's constant term stands for is not handed on, so the sum
    over i differs from the sum of R. Hidden scores get 0.
    """

    def __call__(self, call: Call, relevance: Tensor) -> Sequence[Tensor | None]:
        """The share of the scores."""
        dim = call.args[1] if len(call.args) > 1 else call.kwargs["dim"]
        scores, weights = call.inputs[0].detach(), call.value
        share = scores * (relevance - weights * relevance.sum(dim, keepdim=True))
        return (share.masked_fill_(weights == 0, 0.0),)
