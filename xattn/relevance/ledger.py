"""What is noted while relevance propagates: where it was lost, and how far rounding may have decided its way."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from xattn.relevance.call import Call

# Weights that were rounded to half precision err independently and average out: this part of their rounding moves maps
# as much as rounding in the sums does, measured on the two image models of the package.
_FROM_WEIGHTS = 0.06
_NUMBERED = re.compile(r"(^|_)\d+$")  # "blocks.3", "encoder_layer_3"


class Ledger:
    """Notes of one relevance pass.

    Args:
        sum_per_sample: Sums over all but the batch dimension.
        max_per_sample: Maxima, likewise.

    Attributes:
        absorbed: For each kind of operation (B,) relevance that arrived and was not handed on; negative where more
            left than came. Kept while `accounting`. What started is what arrived at the input, plus these, plus what
            constants joined to the sequence (class and register tokens) kept.
        largest: For each layer, and each module outside of layers, (B,) largest absolute relevance that arrived at an
            operation in it, from the output to the input. Kept while `accounting`.
        accounting: Whether to keep `absorbed` and `largest`.
        weights: The half precision type that the weights come in and that counts for `sums`, None without one.
        sums: Per sample, how much rounding entered where terms cancel, relative to the relevance there; zero before
            any pass, and in float64 unless `weights` are narrow. A division of R by a sum z of terms of size t adds
            the mean of eps t / |z|, weighted by the shares |R| t / |z|.
        flips: Per sample, the largest risk that a rescaled branch has the wrong sign: `sums` so far times
            sum|a| / |sum a|.
    """

    def __init__(self, sum_per_sample: Callable[[Tensor], Tensor], max_per_sample: Callable[[Tensor], Tensor]) -> None:
        self._sum, self._max = sum_per_sample, max_per_sample
        self.accounting = False
        self.weights: torch.dtype | None = None
        self.clear()

    def clear(self) -> None:
        """Start a new pass."""
        self.absorbed: dict[str, Tensor] = {}
        self.largest: dict[str, Tensor] = {}
        self.sums = torch.zeros(1)
        self.flips = torch.zeros(1)

    def enter(self, call: "Call", arriving: Tensor, shares: Sequence[Tensor | None]) -> None:
        """Note what a rule did with the relevance that arrived."""
        if not self.accounting:
            return
        left = sum((self._sum(share).flatten() for share in shares if share is not None), torch.zeros(()))
        lost = self._sum(arriving).flatten() - left
        self.absorbed[call.kind] = self.absorbed.get(call.kind, 0.0) + lost
        layer, size = _layer_of(call.path), self._max(arriving.abs()).flatten()
        self.largest[layer] = torch.maximum(self.largest.get(layer, size), size)

    def divided(self, relevance: Tensor, by: Tensor, size: Tensor | None = None) -> None:
        """Note a division of relevance by a signed sum.

        Args:
            relevance: What is divided.
            by: The sum.
            size: Sum of the terms' sizes; None takes the mean size of `by`.
        """
        eps = self._rounding(by.dtype)
        if eps == 0.0:
            return
        magnitude = by.abs()
        if size is None:
            size = self._sum(magnitude) / (magnitude.numel() / self._sum(magnitude).numel())
            cancelled = (size / magnitude).masked_fill_(magnitude == 0, 0.0)
        else:
            least = size * torch.finfo(by.dtype).eps  # terms that leave nothing leave what rounding hides
            cancelled = (size / torch.maximum(magnitude, least)).nan_to_num_(0.0)
        shares = relevance.abs().mul_(cancelled)
        weighted = self._sum(cancelled.mul_(shares)) / self._sum(shares).clamp(min=1e-30)
        self.sums = self.sums.to(by.device) + eps * weighted.flatten()

    def totalled(self, shares: Tensor, total: Tensor) -> None:
        """Note that shares were rescaled by the sign of their total."""
        if self._rounding(total.dtype) == 0.0:
            return
        cancelled = self._sum(shares.abs()) / total.abs().clamp(min=1e-30)
        self.flips = torch.maximum(self.flips.to(total.device), self.sums * cancelled.flatten())

    def _rounding(self, dtype: torch.dtype) -> float:
        """Relative rounding of what is computed in `dtype`; that of float64 counts for nothing."""
        own = 0.0 if dtype == torch.float64 else torch.finfo(dtype).eps
        return own if self.weights is None else max(own, _FROM_WEIGHTS * torch.finfo(self.weights).eps)


def _layer_of(path: str) -> str:
    """The path up to its first numbered part ("blocks.3" of "blocks.3.attn"), else its first part."""
    parts = path.split(".")
    last = next((i for i, part in enumerate(parts) if _NUMBERED.search(part)), 0)
    return ".".join(parts[: last + 1])
