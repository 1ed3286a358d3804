"""The rule for the first convolution, whose operand lies in a box: pixels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from xattn.relevance.call import Call
from xattn.relevance.linear_map import linear_map


@dataclass(frozen=True)
class ZBox:
    """zB rule: S = R / (X W - L W+ - H W- + epsilon), R_in = X (S W^T) - L (S W+^T) - H (S W-^T).

    Montavon et al. 2017, equation 15, with plain division as in the published code of Chefer et al. 2021.

    Args:
        low: Smallest value of a pixel; None takes each image's own.
        high: Largest value of a pixel; None takes each image's own.
        epsilon: Added to the denominator.
    """

    low: float | None = None
    high: float | None = None
    epsilon: float = 1e-9

    def __call__(self, call: Call, relevance: Tensor) -> Sequence[Tensor | None]:
        """The share of the pixels."""
        linear = linear_map(call)
        x = linear.x
        z, pull = linear.at(x, linear.weight)
        low = _bound(x, self.low, x.flatten(1).amin(1))
        high = _bound(x, self.high, x.flatten(1).amax(1))
        z_low, pull_low = linear.at(low, linear.weight.clamp(min=0))
        z_high, pull_high = linear.at(high, linear.weight.clamp(max=0))
        quotient = relevance / (z - z_low - z_high + self.epsilon)
        return (x * pull(quotient) - low * pull_low(quotient) - high * pull_high(quotient),)


def _bound(x: Tensor, given: float | None, own: Tensor) -> Tensor:
    if given is not None:
        return torch.full_like(x, given)
    return own.reshape(-1, *(1 for _ in x.shape[1:])).expand_as(x).contiguous()
