"""How simple an explanation is: few pixels or many."""

import torch
from torch import Tensor

from xattn.evaluation._shapes import sum_channels


def sparseness(relevance: Tensor) -> Tensor:
    """Gini index of absolute relevance (Chalasani et al. 2020), (B,): 0 all equal, towards 1 one pixel only.

    NaN for maps that are zero or not finite.
    """
    values = sum_channels(relevance).flatten(1).double().abs().sort(dim=1).values
    n = values.shape[1]
    place = torch.arange(1, n + 1, dtype=values.dtype, device=values.device)
    return ((2 * place - n - 1) * values).sum(1) / (n * values.sum(1))


def complexity(relevance: Tensor) -> Tensor:
    """Entropy in nats of absolute relevance as a distribution (Bhatt et al. 2020), (B,): 0 one pixel, log n all equal.

    NaN for maps that are zero or not finite.
    """
    values = sum_channels(relevance).flatten(1).double().abs()
    entropy: Tensor = torch.special.entr(values / values.sum(1, keepdim=True))
    return entropy.sum(1)
