"""Relevance handed on as it is: activations, normalisation, scaling."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from xattn.relevance.call import Call
from xattn.relevance.rules.stabilizer import PUBLISHED, Stabilizer


@dataclass(frozen=True)
class Identity:
    """R_in = R, all of it to the first operand.

    For elementwise functions (Bach et al. 2015), and for normalisation, whose statistics are taken for constants
    (Achtibat et al., ICML 2024, proposition 3.4).
    """

    def __call__(self, call: Call, relevance: Tensor) -> Sequence[Tensor | None]:
        """R, and nothing to further operands."""
        return (relevance, *(None for _ in call.inputs[1:]))


@dataclass(frozen=True)
class Reweigh:
    """R_in = x * (R / x): the identity up to the stabiliser, and 0 where x is exactly 0.

    The published code passes relevance through selections ("select") and branching points ("split") in this way.
    """

    stabilizer: Stabilizer = PUBLISHED

    def __call__(self, call: Call, relevance: Tensor) -> Sequence[Tensor | None]:
        """The share of the operand, which is also the result."""
        return (self.share(call.value, relevance),)

    def share(self, x: Tensor, relevance: Tensor) -> Tensor:
        """What is left of the relevance of x."""
        return self.stabilizer.divide(relevance, x).mul_(x)
