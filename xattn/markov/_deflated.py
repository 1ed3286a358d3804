"""Chains that have lost their eigenvalue 1, as products with blocks of rows."""

from typing import Protocol

import torch
from torch import Tensor

COPY_STATES = 500
"""Up to this size a deflated copy is cheaper than deflating every product."""


class Deflated(Protocol):
    """Products of row blocks with B chains that have lost their eigenvalue 1 (or with their transposes).

    Attributes:
        like: (B, N) tensor of the type to work in.
    """

    like: Tensor

    def apply(self, rows: Tensor) -> Tensor:
        """(B, b, N) -> (B, b, N)."""

    def take(self, keep: Tensor) -> None:
        """Forget the other chains."""


class DeflatedMatrix:
    """D^-1 W - 1 a_s, D the row sums of W; see `deflate`. Small ones are copied, for large ones v C is put together."""

    def __init__(self, weights: Tensor) -> None:
        self.like = weights[:, 0]
        self.scale = (1 / weights.sum(-1)).unsqueeze(1)
        self.sink = torch.bmm(self.scale, weights).squeeze(1).argmax(-1)
        batch = torch.arange(len(weights), device=weights.device)
        self.sink_row = (weights[batch, self.sink] * self.scale[batch, :, self.sink]).unsqueeze(1)
        self.copied = weights.shape[-1] <= COPY_STATES
        if self.copied:
            self.matrix = torch.addcmul(-self.sink_row, weights, self.scale.mT)
            self.matrix[batch, :, self.sink] = 0
            return
        self.matrix = weights
        self.kept: list[Tensor] | None = None

    def apply(self, rows: Tensor) -> Tensor:
        """(B, b, N) -> (B, b, N)."""
        if self.copied:
            return torch.bmm(rows, self.matrix)
        product = self._product(rows * self.scale) - rows.sum(-1, keepdim=True) * self.sink_row
        return product.scatter_(-1, self.sink[:, None, None].expand(*product.shape[:2], 1), 0)

    def _product(self, rows: Tensor) -> Tensor:
        if self.kept is None:
            return torch.bmm(rows, self.matrix)
        return torch.stack([row @ matrix for row, matrix in zip(rows, self.kept, strict=True)])

    def take(self, keep: Tensor) -> None:
        if self.copied:
            self.matrix = self.matrix[keep]
            return
        self.sink, self.sink_row, self.scale = self.sink[keep], self.sink_row[keep], self.scale[keep]
        if self.matrix.device.type != "cpu":
            self.matrix = self.matrix[keep]
            return
        # Copying the large matrices of the chains that are left takes longer than a CPU saves by one batched product.
        kept = self.kept or list(self.matrix)
        self.kept = [kept[index] for index in keep.nonzero().squeeze(1).tolist()]
