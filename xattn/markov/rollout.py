"""Attention rollout: the product of the chains of all layers."""

from collections.abc import Iterable

import torch
from torch import Tensor

from xattn.errors import ArgumentError
from xattn.markov._numeric import numeric
from xattn.markov.chain import as_chain, check_unit, normalize_rows
from xattn.markov.heads import Fusion, combine_heads


class Rollout:
    """Rollout that takes one layer at a time and keeps only the product, so memory is flat in depth.

    Per layer, from the first to the last: fuse the heads, discard, mix with the identity, renormalise the rows, and
    multiply from the left (S. Abnar and W. Zuidema, Quantifying Attention Flow in Transformers, ACL 2020, eq. 1):

        A_l = rows((1 - residual) fused_l + residual I),   R_l = A_l R_(l-1).

    Maps fused by "max" or "min" are not renormalised before the residual is added, as in the published
    vit-explain, so `residual` is the share of the identity for the other fusions only.

    Args:
        head_fusion: "mean", "max", "min", "lambda2", a head index or weights, as `fuse_heads`; None for maps without
            a head dimension.
        residual: weight of the identity, which stands for the skip connection, in [0, 1].
        discard: share of the entries of each fused map, over all its rows and columns, that are set to zero, the
            smallest first, in [0, 1). As in vit-explain the entry [0, 0], of the class token, is kept. A row that has
            lost all its entries keeps to itself (becomes the identity's).

    Raises:
        ArgumentError: if residual or discard lie outside their range.

    Example:
        >>> state = Rollout(residual=0.0)
        >>> for _ in range(2):
        ...     state.update(torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]))
        >>> state.row(0)
        tensor([1., 0.])
    """

    def __init__(
        self, head_fusion: Fusion | int | Tensor | None = "mean", residual: float = 0.5, discard: float = 0.0
    ) -> None:
        check_unit(residual, "residual")
        check_unit(discard, "discard")
        if discard == 1:
            raise ArgumentError("discard: expected a number in [0, 1), got 1")
        self.head_fusion, self.residual, self.discard = head_fusion, residual, discard
        self._matrix: Tensor | None = None

    def update(self, attention: Tensor) -> None:
        """Append a layer.

        Args:
            attention: (..., H, N, N), or (..., N, N) if `head_fusion` is None.

        Raises:
            ArgumentError: if the attention is dirty beyond repair (see `as_chain`) or of another shape than before.
        """
        step = layer_chain(attention, self.head_fusion, self.residual, self.discard)
        if self._matrix is None:
            self._matrix = step
            return
        if step.shape != self._matrix.shape:
            raise ArgumentError(
                f"attention: expected the shape of the earlier layers, {tuple(self._matrix.shape)} after fusing, "
                f"got {tuple(step.shape)}"
            )
        self._matrix = _multiply(step, self._matrix)

    @property
    def matrix(self) -> Tensor:
        """The product so far, (..., N, N): row i is what token i has gathered from each input token."""
        if self._matrix is None:
            raise ArgumentError("attentions: expected at least one layer, got none")
        return self._matrix

    def row(self, start: int) -> Tensor:
        """The row of one token, (..., N)."""
        states = self.matrix.shape[-1]
        if not -states <= start < states:
            raise ArgumentError(f"start: expected a token index below {states}, got {start}")
        return self.matrix[..., start, :]


def rollout(
    attentions: Iterable[Tensor],
    head_fusion: Fusion | int | Tensor | None = "mean",
    residual: float = 0.5,
    discard: float = 0.0,
) -> Tensor:
    """Attention rollout over layers; see `Rollout` for the equation and the arguments.

    Args:
        attentions: layers from first to last, each (..., H, N, N), or (..., N, N) if `head_fusion` is None. A
            generator is consumed one layer at a time.
        head_fusion: how heads are fused.
        residual: weight of the identity.
        discard: share of the smallest entries to set to zero.

    Returns:
        (..., N, N), rows summing to one.

    Raises:
        ArgumentError: if there is no layer, or see `Rollout`.

    Example:
        >>> rollout([torch.eye(2), torch.full((2, 2), 0.5)], head_fusion=None)
        tensor([[0.7500, 0.2500],
                [0.2500, 0.7500]])
    """
    state = Rollout(head_fusion, residual, discard)
    for attention in attentions:
        state.update(attention)
    return state.matrix


@numeric
def layer_chain(
    attention: Tensor, head_fusion: Fusion | int | Tensor | None, residual: float, discard: float
) -> Tensor:
    """The chain of one layer, A_l of `Rollout`, (..., N, N)."""
    fused = as_chain(attention).matrix if head_fusion is None else combine_heads(attention, head_fusion)
    if discard > 0:
        fused = _discard(fused, discard)
    mixed = (1 - residual) * fused
    mixed.diagonal(dim1=-2, dim2=-1).add_(residual)
    empty = (mixed == 0).all(-1)
    mixed.diagonal(dim1=-2, dim2=-1).add_(empty)
    return normalize_rows(mixed)


def _discard(fused: Tensor, share: float) -> Tensor:
    flat = fused.flatten(-2)
    count = int(flat.shape[-1] * share)
    smallest = flat.topk(count, largest=False).indices
    kept = flat.scatter(-1, smallest, 0)
    kept[..., 0] = flat[..., 0]
    return kept.reshape(fused.shape)


@numeric
def _multiply(step: Tensor, product: Tensor) -> Tensor:
    return normalize_rows(torch.matmul(step, product))
