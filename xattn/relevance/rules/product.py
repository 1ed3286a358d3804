"""The rule for products of two operands that both depend on the input: attention times values, queries times keys."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from xattn.relevance.call import Call
from xattn.relevance.rules.stabilizer import PUBLISHED, Stabilizer


@dataclass(frozen=True)
class Bilinear:
    """For o = A v: S = R / o, R_A = A (S v^T) / 2 and R_v = v (A^T S) / 2.

    Chefer et al. 2021 as published, and with the signed stabiliser Achtibat et al. 2024, equation 15, whose
    R / (2 o + epsilon) is this with epsilon / 2.

    Args:
        stabilizer: How the quotient is formed.
        first: Share of the first operand, the attention in A v; 0 takes attention for a constant.
    """

    stabilizer: Stabilizer = PUBLISHED
    first: float = 0.5

    def __call__(self, call: Call, relevance: Tensor) -> Sequence[Tensor | None]:
        """Each operand times the transpose applied to R / o, in their shares."""
        pulled = call.vjp(call.divide(self.stabilizer, relevance, call.value))
        if len(pulled) == 1:  # x @ x
            return (pulled[0].mul(call.inputs[0].detach()).mul_(0.5),)
        shares = (self.first, 1 - self.first)
        return [g.mul_(x.detach()).mul_(part) for g, x, part in zip(pulled, call.inputs, shares, strict=True)]
