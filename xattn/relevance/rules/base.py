"""What a rule is."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from xattn.relevance.call import Call


class Rule(Protocol):
    """Shares out the relevance of one operation's result."""

    def __call__(self, call: Call, relevance: Tensor) -> Sequence[Tensor | None]:
        """A share for each of `call.inputs`; shares larger than the input are summed over broadcast dimensions.

        Args:
            call: The operation with its operands and result.
            relevance: What arrived, in the shape of `call.value`.
        """
