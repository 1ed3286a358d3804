"""Division that survives denominators near zero."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Stabilizer(Protocol):
    """A way to divide relevance by what produced it."""

    def divide(self, relevance: Tensor, by: Tensor) -> Tensor:
        """`relevance / by`, finite."""


@dataclass(frozen=True)
class Guarded:
    """a / (b + epsilon), 0 where b is 0: epsilon is added whatever the sign of b.

    The published implementation of Chefer et al., CVPR 2021. Negative b of the size of epsilon are pushed across zero.
    """

    epsilon: float = 1e-9

    def divide(self, relevance: Tensor, by: Tensor) -> Tensor:
        """The guarded quotient."""
        shifted = by + self.epsilon
        shifted.masked_fill_(shifted == 0, self.epsilon)
        return (relevance / shifted).masked_fill_(by == 0, 0.0)


@dataclass(frozen=True)
class Signed:
    """a / (b + epsilon sign(b)), 0 where b is 0: the denominator never comes nearer to zero than epsilon.

    Epsilon rule of Bach et al., PLOS ONE 2015.
    """

    epsilon: float = 1e-6

    def divide(self, relevance: Tensor, by: Tensor) -> Tensor:
        """The stabilised quotient."""
        away = by + self.epsilon * torch.sign(by)
        return (relevance / away.masked_fill_(by == 0, 1.0)).masked_fill_(by == 0, 0.0)


PUBLISHED = Guarded()
SIGNED = Signed()
EXACT = Signed(0.0)
