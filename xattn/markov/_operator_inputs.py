"""The arguments of `AttentionOperator`, checked and made flat: one entry for each chain."""

from dataclasses import dataclass

import torch
from torch import Tensor

from xattn.errors import ArgumentError
from xattn.markov.chain import check_float, fill_dead, normalise_mass

UNDERFLOW = 1e3
"""exp(-UNDERFLOW) is zero in float64."""
HIDING = -5e3
"""Models hide keys by -inf or by a huge negative number; no real score comes near (see `xattn._sdpa.visible_keys`)."""


@dataclass(frozen=True)
class OperatorInputs:
    """Queries and keys of B chains.

    Attributes:
        batch: Leading dimensions, whose product is B.
        query: (B, N, d), scaled.
        key: (B, N, d), zero on padding.
        bias: (B, N) added to the scores of each key; None without.
        valid: (B, N) bool, false for padding; None without.
        dense_mask: (B, N, N) added to the scores; None without.
        is_causal: Whether later keys are hidden.
    """

    batch: torch.Size
    query: Tensor
    key: Tensor
    bias: Tensor | None
    valid: Tensor | None
    dense_mask: Tensor | None
    is_causal: bool

    @property
    def states(self) -> int:
        """N."""
        return self.query.shape[1]

    def matrix(self) -> Tensor:
        """(B, N, N); rows and columns of padding are zero, other rows without a key are uniform."""
        scores = self.query @ self.key.mT
        if self.bias is not None:
            scores = scores + self.bias.unsqueeze(1)
        if self.dense_mask is not None:
            scores = scores + self.dense_mask
        if self.is_causal:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(future, -torch.inf)
        if self.valid is not None:
            scores = scores.masked_fill(~self.valid.unsqueeze(1), -torch.inf)
        dead = (scores <= HIDING).all(-1)
        matrix = scores.masked_fill(dead.unsqueeze(-1), 0).softmax(-1)
        alive = torch.ones_like(dead) if self.valid is None else self.valid
        uniform = normalise_mass(alive.to(matrix.dtype))
        matrix = fill_dead(matrix, dead, uniform)
        return matrix if self.valid is None else matrix * alive.unsqueeze(-1) * alive.unsqueeze(-2)


def read_inputs(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None,
    key_padding: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> OperatorInputs:
    """See `AttentionOperator`."""
    query, key = check_float(query, "query"), check_float(key, "key")
    if enable_gqa and query.ndim > 2 and key.ndim > 2 and key.shape[-3] and query.shape[-3] % key.shape[-3] == 0:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    if query.shape != key.shape or query.ndim < 2 or query.numel() == 0:
        raise ArgumentError(
            "query, key: expected two tensors (..., N, d) of one shape (a chain needs as many keys as queries; "
            f"fewer key heads need enable_gqa), got {tuple(query.shape)} and {tuple(key.shape)}"
        )
    batch, states = query.shape[:-2], query.shape[-2]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    bias, dense = _mask(attn_mask, query)
    if key_padding is not None:
        hidden = torch.zeros(key_padding.shape, dtype=query.dtype, device=query.device)
        hidden = _over_keys(hidden.masked_fill(key_padding.to(query.device).bool(), -torch.inf), batch, states)
        bias = hidden if bias is None else bias + hidden
    compute = torch.promote_types(query.dtype, key.dtype)
    flat = (scale * query.to(compute)).reshape(-1, *query.shape[-2:]), key.to(compute).reshape(-1, *key.shape[-2:])
    return _hide(batch, *flat, bias, dense, is_causal)


def _mask(mask: Tensor | None, query: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """An additive mask over keys (B, N), or over pairs (B, N, N)."""
    if mask is None:
        return None, None
    batch, states = query.shape[:-2], query.shape[-2]
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill(~mask, -torch.inf)
    try:
        if mask.ndim == 1 or mask.shape[-2] == 1:
            return mask.to(query.dtype).expand(*batch, 1, states).reshape(-1, states), None
        return None, mask.to(query.dtype).expand(*batch, states, states).reshape(-1, states, states)
    except RuntimeError:
        raise ArgumentError(
            f"attn_mask: expected a shape that broadcasts to {(*batch, states, states)}, got {tuple(mask.shape)}"
        ) from None


def _over_keys(values: Tensor, batch: torch.Size, states: int) -> Tensor:
    """(N,), (B, N) or (..., N), the leading dimensions first, to one row for each chain."""
    missing = len(batch) + 1 - values.ndim
    if missing > 0 and values.ndim > 0:
        values = values.reshape(*values.shape[:-1], *[1] * missing, values.shape[-1])
    try:
        return values.expand(*batch, states).reshape(-1, states)
    except RuntimeError:
        raise ArgumentError(
            f"key_padding: expected ({states},), or (B, {states}) for chains {(*batch, states, states)}, "
            f"got {tuple(values.shape)}"
        ) from None


def _hide(
    batch: torch.Size,
    query: Tensor,
    key: Tensor,
    bias: Tensor | None,
    dense: Tensor | None,
    is_causal: bool,
) -> OperatorInputs:
    """Hidden keys become zero vectors with a bias that no score reaches: infinity would turn up as NaN in products."""
    seen = bias > HIDING if bias is not None else None
    if dense is not None:
        by_query = (dense > HIDING).any(-2)
        seen = by_query if seen is None else seen & by_query
    if seen is None or bool(seen.all()):
        return OperatorInputs(batch, query, key, bias, None, dense, is_causal)
    if not bool(seen.any(-1).all()):
        raise ArgumentError("attn_mask, key_padding: expected a token that is not padding in every sequence, got none")
    bias = torch.zeros_like(query[..., 0]) if bias is None else bias
    largest = query.norm(dim=-1).amax() * key.norm(dim=-1).amax() + bias.where(seen, 0).abs().amax()
    out_of_reach = -2 * largest - UNDERFLOW
    return OperatorInputs(
        batch, query, key * seen.unsqueeze(-1), bias.where(seen, out_of_reach), seen, dense, is_causal
    )
