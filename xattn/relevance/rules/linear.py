"""Rules for maps that are linear in the explained operand: dense layers, convolutions, sums, constant products."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from xattn.errors import ArgumentError
from xattn.relevance.call import Call
from xattn.relevance.linear_map import LinearMap, linear_map
from xattn.relevance.rules.stabilizer import EXACT, PUBLISHED, SIGNED, Stabilizer


@dataclass(frozen=True)
class Epsilon:
    """R_i = x_i sum_j w_ij R_j / (z_j + epsilon sign(z_j)), z the result of the operation.

    Bach et al. 2015, equation 58. A bias is part of z and keeps its share. Serves every operation that is linear in
    each operand taken alone, also sums and averages over tokens.
    """

    stabilizer: Stabilizer = SIGNED

    def __call__(self, call: Call, relevance: Tensor) -> Sequence[Tensor | None]:
        """Operand times the transpose applied to R / z."""
        quotient = call.divide(self.stabilizer, relevance, call.value)
        return [x.detach() * share for x, share in zip(call.inputs, call.vjp(quotient), strict=True)]


@dataclass(frozen=True)
class AlphaBeta:
    """R = alpha * activating - (alpha - 1) * inhibiting share, biases left out.

    activating: products x_i w_ij > 0 share R_j in proportion, that is S = R / (x+ W+ + x- W-) and
    x+ (S W+) + x- (S W-); inhibiting: the same with W+ and W- exchanged (Bach et al. 2015, equation 60; as
    published with Chefer et al. 2021, `layers_ours`).

    Args:
        alpha: Weight of the activating share; 1 is the z-plus rule.
        separate: Give x+ W+ and x- W- each all of R, as the older published rules (`layers_lrp`) do: the total can
            double in every layer.
        stabilizer: How quotients are formed.
    """

    alpha: float = 1.0
    separate: bool = False
    stabilizer: Stabilizer = PUBLISHED

    def __call__(self, call: Call, relevance: Tensor) -> Sequence[Tensor | None]:
        """The share of the operand that is not the weight."""
        linear = linear_map(call)
        positive, negative = linear.weight.clamp(min=0), linear.weight.clamp(max=0)
        share = self._part(linear, relevance, positive, negative)
        if self.alpha != 1:
            inhibiting = self._part(linear, relevance, negative, positive)
            share = self.alpha * share - (self.alpha - 1) * inhibiting
        return (share,)

    def _part(self, linear: LinearMap, relevance: Tensor, for_positive: Tensor, for_negative: Tensor) -> Tensor:
        above, below = linear.x.clamp(min=0), linear.x.clamp(max=0)
        z_above, pull_above = linear.at(above, for_positive)
        z_below, pull_below = linear.at(below, for_negative)
        if self.separate:
            quotients = [self.stabilizer.divide(relevance, z) for z in (z_above, z_below)]
        else:
            quotients = [self.stabilizer.divide(relevance, z_above + z_below)] * 2
        return above.mul_(pull_above(quotients[0])).add_(below.mul_(pull_below(quotients[1])))


def z_plus(stabilizer: Stabilizer = PUBLISHED) -> AlphaBeta:
    """Only products x_i w_ij > 0 share relevance (Montavon et al. 2017, for operands of either sign)."""
    return AlphaBeta(1.0, stabilizer=stabilizer)


@dataclass(frozen=True)
class Gamma:
    """Positive products count 1 + gamma times for positive results, negative ones for negative results.

    R_i = sum_j (p_ij + gamma p_ij^s) R_j / (sum_k p_kj + gamma p_kj^s), p_ij = x_i w_ij and p^s the part of p with the
    sign of z_j = sum_k p_kj (Montavon et al. 2019, section 10.2.3, extended to operands of either sign).

    Args:
        gamma: Emphasis; 0 is the epsilon rule without bias.
        stabilizer: How quotients are formed.
    """

    gamma: float = 0.25
    stabilizer: Stabilizer = SIGNED

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise ArgumentError(f"gamma: expected zero or more, got {self.gamma}")

    def __call__(self, call: Call, relevance: Tensor) -> Sequence[Tensor | None]:
        """The share of the operand that is not the weight."""
        linear = linear_map(call)
        x, above, below = linear.x, linear.x.clamp(min=0), linear.x.clamp(max=0)
        more, less = linear.weight.clamp(min=0) * self.gamma, linear.weight.clamp(max=0) * self.gamma
        z, pull = linear.at(x, linear.weight)
        share = torch.zeros_like(x)
        for keep, up, down in ((z > 0, more, less), (z < 0, less, more)):
            z_up, pull_up = linear.at(above, up)
            z_down, pull_down = linear.at(below, down)
            quotient = self.stabilizer.divide(relevance * keep, z + z_up + z_down)
            share += x * pull(quotient) + above * pull_up(quotient) + below * pull_down(quotient)
        return (share,)


@dataclass(frozen=True)
class Flat:
    """R_j is shared evenly by all operands that result j reads, whatever their values (uniform rule)."""

    stabilizer: Stabilizer = EXACT

    def __call__(self, call: Call, relevance: Tensor) -> Sequence[Tensor | None]:
        """The transpose of the all-ones map applied to R / fan-in."""
        linear = linear_map(call)
        fan_in, pull = linear.at(torch.ones_like(linear.x), torch.ones_like(linear.weight))
        return (pull(self.stabilizer.divide(relevance, fan_in)),)
