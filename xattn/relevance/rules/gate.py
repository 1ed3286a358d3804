"""Rules for elementwise products of two operands that both depend on the input, such as gated layers."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from xattn.relevance.call import Call


@dataclass(frozen=True)
class Uniform:
    """R is shared evenly: half to each factor of a product (Achtibat et al. 2024, proposition 3.2)."""

    def __call__(self, call: Call, relevance: Tensor) -> Sequence[Tensor | None]:
        """R / n each."""
        return [relevance / len(call.inputs)] * len(call.inputs)


@dataclass(frozen=True)
class KeepValue:
    """All relevance goes to the factor that is gated, none to the gate.

    The gate is the factor that `gates` made; where neither or both are, each factor gets an even part of it.

    Args:
        gates: Kinds of operation whose results are gates.
    """

    gates: tuple[str, ...] = ("activation",)

    def __call__(self, call: Call, relevance: Tensor) -> Sequence[Tensor | None]:
        """R to the factors that are no gates."""
        values = [origin not in self.gates for origin in call.origins]
        if not any(values):
            values = [True] * len(values)
        return [relevance / sum(values) if value else None for value in values]
