"""Attention computed in the open against torch's own kernel and against float64."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import ToyAttention, images
from torch import Tensor
from torch.nn import functional as F

from xattn import AttentionTap

BATCH, HEADS, QUERIES, KEYS, HEAD_WIDTH = 2, 4, 5, 7, 8


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def qkv(queries: int = QUERIES, keys: int = KEYS, kv_heads: int = HEADS, dtype: torch.dtype = torch.float32) -> Any:
    return (
        draw(BATCH, HEADS, queries, HEAD_WIDTH, seed=0, dtype=dtype),
        draw(BATCH, kv_heads, keys, HEAD_WIDTH, seed=1, dtype=dtype),
        draw(BATCH, kv_heads, keys, HEAD_WIDTH, seed=2, dtype=dtype),
    )


def tapped(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, AttentionTap]:
    with AttentionTap(batch_size=BATCH) as tap:
        output = F.scaled_dot_product_attention(*args, **kwargs)
    return output, tap.maps[0], tap


def bool_mask(*shape: int) -> Tensor:
    mask = draw(*shape, seed=5) > 0
    mask[..., 0] = True  # no dead row
    return mask


MASKS = {
    "none": None,
    "bool": bool_mask(BATCH, HEADS, QUERIES, KEYS),
    "bool_broadcast": bool_mask(BATCH, 1, 1, KEYS),
    "bool_2d": bool_mask(QUERIES, KEYS),
    "additive": draw(BATCH, 1, QUERIES, KEYS, seed=6),
    "additive_infinite": torch.zeros(BATCH, 1, 1, KEYS).masked_fill(~bool_mask(BATCH, 1, 1, KEYS), -torch.inf),
    "additive_smallest": torch.zeros(QUERIES, KEYS).masked_fill(
        ~bool_mask(QUERIES, KEYS), torch.finfo(torch.float32).min
    ),
}


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("mask", MASKS)
def test_equals_torch_with_masks_and_scales(mask, scale):
    args = qkv()
    expected = F.scaled_dot_product_attention(*args, attn_mask=MASKS[mask], scale=scale)
    output, attention, _ = tapped(*args, attn_mask=MASKS[mask], scale=scale)
    assert torch.allclose(output, expected, atol=1e-6)
    assert torch.allclose(attention @ args[2], expected, atol=1e-6)
    assert torch.allclose(attention.sum(-1), torch.ones(BATCH, HEADS, QUERIES), atol=1e-6)


@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (4, 6), (6, 4), (1, 6)])
@pytest.mark.parametrize("by_position", [True, False])
def test_equals_torch_with_causal_attention(queries, keys, by_position):
    args = qkv(queries, keys)
    call = ((*args, None, 0.0, True), {}) if by_position else (args, {"is_causal": True})
    expected = F.scaled_dot_product_attention(*call[0], **call[1])
    output, attention, tap = tapped(*call[0], **call[1])
    assert torch.allclose(output, expected, atol=1e-6)
    assert (attention.triu(1) == 0).all()
    assert tap.records[0].causal


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("is_causal", [True, False])
def test_equals_torch_with_grouped_heads(kv_heads, is_causal):
    args = qkv(6, 6, kv_heads)
    expected = F.scaled_dot_product_attention(*args, is_causal=is_causal, enable_gqa=True)
    output, attention, _ = tapped(*args, is_causal=is_causal, enable_gqa=True)
    assert torch.allclose(output, expected, atol=1e-6)
    assert attention.shape == (BATCH, HEADS, 6, 6)


@pytest.mark.parametrize("kind", ["bool", "additive"])
def test_dead_rows_are_zero_as_in_torch(kind):
    args, mask = qkv(), bool_mask(BATCH, HEADS, QUERIES, KEYS)
    mask[0, :, 2] = False
    mask[1, 1] = False
    if kind == "additive":
        mask = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    expected = F.scaled_dot_product_attention(*args, attn_mask=mask)
    output, attention, _ = tapped(*args, attn_mask=mask)
    assert torch.isfinite(expected).all()
    assert torch.allclose(output, expected, atol=1e-6)
    assert torch.isfinite(attention).all()
    assert (output[0, :, 2] == 0).all()
    assert (attention[0, :, 2] == 0).all()
    assert (attention[1, 1] == 0).all()
    assert torch.allclose(attention.sum(-1).amin(), torch.zeros(()))


def test_gradient_of_dead_rows_is_finite():
    query, key, value = (x.requires_grad_() for x in qkv())
    mask = bool_mask(BATCH, HEADS, QUERIES, KEYS)
    mask[0] = False
    output, _, _ = tapped(query, key, value, attn_mask=mask)
    gradients = torch.autograd.grad(output.square().sum(), (query, key, value))
    reference = torch.autograd.grad(
        F.scaled_dot_product_attention(query, key, value, attn_mask=mask).square().sum(), (query, key, value)
    )
    for got, want in zip(gradients, reference, strict=True):
        assert torch.isfinite(got).all()
        assert torch.allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_beyond_the_range_of_half_do_not_overflow(dtype):
    query, key, value = (x * 300 if i < 2 else x for i, x in enumerate(qkv(dtype=dtype)))
    exact = query.double() @ key.double().mT / math.sqrt(HEAD_WIDTH)
    assert exact.abs().max() > torch.finfo(torch.float16).max
    output, attention, _ = tapped(query, key, value)
    assert attention.dtype == torch.float32
    assert output.dtype == dtype
    assert torch.allclose(attention.double(), exact.softmax(-1), atol=1e-4)
    assert torch.allclose(output.double(), exact.softmax(-1) @ value.double(), atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_eager_softmax_in_half_precision_is_recorded_in_float32(dtype):
    torch.manual_seed(0)
    model = ToyAttention(fused=False).to(dtype)
    x = images()[:, 0, :24, :24].to(dtype)
    with torch.no_grad():
        expected = model(x)
        with AttentionTap() as tap:
            output = model(x)
    assert output.dtype == dtype
    assert torch.equal(output, expected)
    assert tap.maps[0].dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_gives_the_dtype_that_torch_gives(dtype):
    args = qkv(dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = F.scaled_dot_product_attention(*args)
        output, attention, _ = tapped(*args)
    assert output.dtype == expected.dtype
    assert attention.dtype == dtype
    exact = F.scaled_dot_product_attention(*(x.double() for x in args))
    assert torch.allclose(output.double(), exact, atol=2e-2)


def test_float64_stays():
    args = qkv(dtype=torch.float64)
    output, attention, _ = tapped(*args)
    assert output.dtype == attention.dtype == torch.float64
    assert torch.allclose(output, F.scaled_dot_product_attention(*args), atol=1e-13)


def test_dropout_is_applied_after_the_recorded_matrix():
    query, key, value = qkv(64, 64)
    torch.manual_seed(0)
    output, attention, _ = tapped(query, key, value, dropout_p=0.5)
    assert torch.allclose(attention.sum(-1), torch.ones(BATCH, HEADS, 64), atol=1e-5)
    assert not torch.allclose(output, attention @ value, atol=1e-2)
    torch.manual_seed(0)
    again, _, _ = tapped(query, key, value, dropout_p=0.5)
    assert torch.equal(output, again)
    draws = torch.stack([tapped(query, key, value, dropout_p=0.5)[0] for _ in range(200)])
    assert (draws.mean(0) - attention @ value).abs().mean() < 0.03  # unbiased


@pytest.mark.parametrize("shape", [(2, 5, 8), (6, 5, 8)])
def test_sequences_without_a_head_dimension(shape):
    query = draw(*shape)
    expected = F.scaled_dot_product_attention(query, query, query)
    output, attention, tap = tapped(query, query, query)
    assert torch.allclose(output, expected, atol=1e-6)
    assert attention.shape == (2, shape[0] // 2, 5, 5)
    assert tap.records[0].kind == "self"


@settings(deadline=None, max_examples=40)
@given(
    queries=st.integers(1, 6),
    keys=st.integers(1, 6),
    width=st.integers(1, 5),
    additive=st.booleans(),
    size=st.sampled_from([1e-3, 1.0, 50.0]),
    seed=st.integers(0, 10_000),
)
def test_any_mask_and_size(queries, keys, width, additive, size, seed):
    query, key, value = (draw(1, 2, n, width, seed=seed + i) * size for i, n in enumerate((queries, keys, keys)))
    mask = draw(1, 1, queries, keys, seed=seed + 7) > 0  # dead rows among them
    if additive:
        mask = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    with AttentionTap() as tap:
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    expected = F.scaled_dot_product_attention(
        *(x.double() for x in (query, key, value)), attn_mask=(mask.double() if additive else mask)
    )
    assert torch.allclose(output.double(), expected, atol=1e-4 * max(size, 1.0), rtol=1e-3)
    sums = tap.maps[0].sum(-1)
    dead = ~(mask == 0 if additive else mask).any(-1).expand(sums.shape)
    assert torch.allclose(sums, (~dead).float(), atol=1e-5)
