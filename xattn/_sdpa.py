"""Scaled dot-product attention computed in the open, so that its matrix can be seen and differentiated."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def explicit_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    see: Callable[[Tensor, Tensor | None], Tensor],
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` with its matrix.

    Scores and softmax are computed in float32 at least, whatever the inputs and autocast say. A row that is
    masked completely is zero, as in torch's own kernels.

    Args:
        query: (batch, heads, queries, width); the other arguments too are those of the original.
        key: (batch, heads, keys, width).
        value: (batch, heads, keys, value width).
        attn_mask: Bool (true takes part) or additive.
        dropout_p: Probability of dropout on the matrix.
        is_causal: Hide later keys.
        scale: Factor of the scores, width ** -0.5 by default.
        enable_gqa: Whether several query heads share a key head.
        see: Called with the matrix (batch, heads, queries, keys), before dropout, and the visible keys
            ((batch, keys) bool, None without a mask). The matrix it returns is the one that is used.
    """
    device = query.device.type
    autocast = torch.is_autocast_enabled(device) and query.dtype != torch.float64  # which autocast leaves alone
    out_dtype = torch.get_autocast_dtype(device) if autocast else query.dtype
    compute = torch.promote_types(query.dtype, torch.float32)
    if enable_gqa:  # each key head serves a group of query heads
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], dim=-3)
    with torch.autocast(device, enabled=False):
        query, key, value = (x.to(compute) for x in (query, key, value))
        scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        scores = _masked(scores, attn_mask, is_causal)
        attention = _softmax(scores) if is_causal or attn_mask is not None else scores.softmax(-1)
        attention = see(attention, None if attn_mask is None else visible_keys(scores))
        if dropout_p > 0:
            attention = F.dropout(attention, dropout_p)
        return (attention @ value).to(out_dtype)


def visible_keys(scores: Tensor) -> Tensor:
    """(batch, keys) bool: the keys that at least one query of one head may see.

    Models hide keys with -inf or with a huge negative number (-10,000 in old BERTs, the smallest float elsewhere);
    no real score comes near either.
    """
    visible = (scores > -5e3).any(-2)
    return visible.flatten(1, -2).any(1) if visible.ndim > 2 else visible


def _masked(scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    if attn_mask is None:
        return scores
    if attn_mask.dtype == torch.bool:
        return scores.masked_fill(~attn_mask, -torch.inf)
    return scores + attn_mask.to(scores.dtype)


def _softmax(scores: Tensor) -> Tensor:
    """Softmax over keys; a row without any key is zero, not NaN."""
    dead = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0)
