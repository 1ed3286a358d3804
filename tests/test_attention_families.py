"""Capture on every family: the model is left as it is, and the maps are the model's own."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tiny_models import (
    DEPTH,
    HEADS,
    WIDTH,
    hf_bert,
    hf_clip,
    hf_clip_text,
    hf_clip_vision,
    hf_dinov2,
    hf_gpt2,
    hf_swin,
    hf_vit,
    images,
    timm_deit_distilled,
    timm_dinov2,
    timm_swin,
    timm_vit,
    torch_encoder,
    torchvision_swin,
    torchvision_vit,
    words,
)
from torch import Tensor, nn

from xattn import AttentionTap
from xattn.attention import AttentionRecord

PADDING = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
EMBEDDINGS = torch.randn(2, 6, WIDTH, generator=torch.Generator().manual_seed(3))
HIDDEN = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])  # as nn.TransformerEncoder wants it


@dataclass(frozen=True)
class Family:
    """A model, how it is called, and the tokens of each stream of self-attention."""

    build: Callable[[], nn.Module]
    call: Callable[[nn.Module], Any]
    tokens: dict[str, int]
    readable: Tensor | None = field(default=None, compare=False)  # (B, N): outputs elsewhere are of no use


def _image(build: Callable[[], nn.Module], stream: str, tokens: int, size: int = 32) -> Family:
    return Family(build, lambda model: model(images(size=(size, size))), {stream: tokens})


FAMILIES = {
    "timm": _image(timm_vit, "blocks", 17),
    "timm_registers": _image(lambda: timm_vit(reg_tokens=4), "blocks", 21),
    "timm_average": _image(lambda: timm_vit(class_token=False, global_pool="avg"), "blocks", 16),
    "timm_pooling": _image(lambda: timm_vit(class_token=False, global_pool="map"), "blocks", 16),
    "timm_distilled": _image(timm_deit_distilled, "blocks", 18),
    "timm_dinov2": _image(timm_dinov2, "blocks", 5, 28),
    "timm_dinov2_registers": _image(lambda: timm_dinov2(registers=True), "blocks", 9, 28),
    "torchvision": _image(torchvision_vit, "encoder.layers", 17),
    "hf_vit": _image(hf_vit, "vit.layers", 17),
    "hf_vit_eager": _image(lambda: hf_vit("eager"), "vit.layers", 17),
    "hf_dinov2": _image(hf_dinov2, "encoder.layer", 17),
    "hf_dinov2_registers": _image(lambda: hf_dinov2(registers=True), "encoder.layer", 21),
    "hf_clip_vision": _image(hf_clip_vision, "encoder.layers", 17),
    "hf_clip_text": Family(hf_clip_text, lambda model: model(words()), {"encoder.layers": 7}),
    "hf_clip_text_padded": Family(
        hf_clip_text, lambda model: model(words(), PADDING), {"encoder.layers": 7}, PADDING.bool()
    ),
    "hf_clip": Family(
        hf_clip,
        lambda model: model(words(), images()),
        {"vision_model.encoder.layers": 17, "text_model.encoder.layers": 7},
    ),
    "hf_clip_many_texts": Family(
        hf_clip,
        lambda model: model(input_ids=words(4), pixel_values=images(1)),
        {"vision_model.encoder.layers": 17, "text_model.encoder.layers": 7},
    ),
    "hf_bert": Family(hf_bert, lambda model: model(words()), {"bert.encoder.layer": 7}),
    "hf_bert_padded": Family(hf_bert, lambda model: model(words(), PADDING), {"bert.encoder.layer": 7}),
    "hf_bert_keywords": Family(
        hf_bert, lambda model: model(input_ids=words(), attention_mask=PADDING), {"bert.encoder.layer": 7}
    ),
    "hf_gpt2": Family(hf_gpt2, lambda model: model(words()), {"transformer.h": 7}),
    "encoder": Family(torch_encoder, lambda model: model(EMBEDDINGS), {"layers": 6}),
    "encoder_norm_first": Family(lambda: torch_encoder(norm_first=True), lambda m: m(EMBEDDINGS), {"layers": 6}),
    "encoder_padded": Family(
        torch_encoder, lambda model: model(EMBEDDINGS, src_key_padding_mask=HIDDEN), {"layers": 6}, ~HIDDEN
    ),
    "encoder_sequence_first": Family(
        lambda: torch_encoder(batch_first=False), lambda model: model(EMBEDDINGS.transpose(0, 1)), {"layers": 6}
    ),
    # eight samples of four tokens: neither are four windows a sample, nor four heads
    "encoder_sequence_first_long_batch": Family(
        lambda: torch_encoder(batch_first=False),
        lambda model: model(EMBEDDINGS.flatten(0, 1)[:4, None].repeat(1, 8, 1)),
        {"layers": 4},
    ),
}


def primary(output: Any) -> Tensor:
    """The first tensor of an output: logits, or the last hidden state."""
    return output if isinstance(output, Tensor) else output[0]


def selfs(tap: AttentionTap) -> list[AttentionRecord]:
    return [record for record in tap.records if record.kind == "self"]


@pytest.mark.parametrize("name", FAMILIES)
def test_output_is_unchanged_and_every_layer_is_captured(name):
    family = FAMILIES[name]
    model = family.build()
    with torch.no_grad():
        expected = primary(family.call(model))
        with AttentionTap() as tap:
            output = primary(family.call(model))
    if family.readable is not None:
        expected, output = expected[family.readable], output[family.readable]
    assert torch.allclose(output, expected, atol=1e-5)
    captured = {stream: [r.attention.shape[-1] for r in selfs(tap) if r.stream == stream] for stream in family.tokens}
    assert captured == {stream: [tokens] * DEPTH for stream, tokens in family.tokens.items()}
    assert len(selfs(tap)) == DEPTH * len(family.tokens)
    assert tap.depth == dict.fromkeys(family.tokens, DEPTH)
    for record in tap.records:
        batch, heads, queries, keys = record.attention.shape
        assert heads == HEADS
        assert record.kind == "self" or (record.kind, queries) == ("pooling", 1)
        assert record.attention.dtype == torch.float32
        assert torch.allclose(record.attention.sum(-1), torch.ones(batch, heads, queries), atol=1e-5)
        assert (record.attention >= 0).all()
        assert keys > 1
        assert (record.attention.amax(-1) > 1.5 / keys).any(), "too uniform to tell one map from another"


HF_EAGER = {
    "vit": (hf_vit, lambda model, **kw: model(images(), **kw).attentions),
    "dinov2": (hf_dinov2, lambda model, **kw: model(images(), **kw).attentions),
    "dinov2_registers": (
        lambda implementation: hf_dinov2(implementation, registers=True),
        lambda model, **kw: model(images(), **kw).attentions,
    ),
    "clip_vision": (hf_clip_vision, lambda model, **kw: model(images(), **kw).attentions),
    "clip_text": (hf_clip_text, lambda model, **kw: model(words(), PADDING, **kw).attentions),
    "bert": (hf_bert, lambda model, **kw: model(words(), PADDING, **kw).attentions),
    "gpt2": (hf_gpt2, lambda model, **kw: model(words(), attention_mask=PADDING, **kw).attentions),
}


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", HF_EAGER)
def test_maps_equal_those_that_transformers_returns(name, implementation):
    build, attentions = HF_EAGER[name]
    reference, model = build("eager"), build(implementation)
    model.load_state_dict(reference.state_dict())
    with torch.no_grad():
        expected = attentions(reference, output_attentions=True)
        before = model.config._attn_implementation
        with AttentionTap() as tap:
            attentions(model)
    assert before == model.config._attn_implementation == implementation
    assert len(tap.maps) == len(expected) == DEPTH
    for got, want in zip(tap.maps, expected, strict=True):
        assert torch.allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("kwargs", [{}, {"reg_tokens": 4}, {"class_token": False, "global_pool": "map"}])
def test_timm_gives_the_same_maps_fused_and_unfused(kwargs):
    model, maps = timm_vit(**kwargs), []
    attentions = [m for m in model.modules() if hasattr(m, "fused_attn")]
    assert len(attentions) == DEPTH + ("global_pool" in kwargs)
    for fused in (True, False):
        for module in attentions:
            module.fused_attn = fused
        with AttentionTap() as tap:
            model(images())
        assert [module.fused_attn for module in attentions] == [fused] * len(attentions)
        maps.append(tap.maps)
    for fused_map, eager_map in zip(*maps, strict=True):
        assert torch.allclose(fused_map, eager_map, atol=1e-6)


def test_timm_maps_equal_the_matrix_that_unfused_blocks_hand_to_dropout():
    model, seen = timm_vit(), []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    model(images())
    for block in model.blocks:
        block.attn.fused_attn = True
        block.attn.attn_drop._forward_hooks.clear()
    with AttentionTap() as tap:
        model(images())
    for got, want in zip(tap.maps, seen, strict=True):
        assert torch.allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
def test_multihead_attention_maps_and_weights(wanted, batch_first, masked):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first).eval()
    x = EMBEDDINGS if batch_first else EMBEDDINGS.transpose(0, 1)
    kwargs = {"key_padding_mask": HIDDEN if masked else None}
    expected, per_head = module(x, x, x, average_attn_weights=False, **kwargs)
    with torch.no_grad(), AttentionTap() as tap:
        output, weights = module(x, x, x, need_weights=wanted, **kwargs)
    assert torch.allclose(output, expected, atol=1e-6)
    assert torch.allclose(tap.maps[0], per_head, atol=1e-6)
    if masked:
        assert (tap.records[0].valid_keys == ~HIDDEN).all()
    if wanted:
        assert torch.allclose(weights, per_head.mean(1), atol=1e-6)
    else:
        assert weights is None


def test_multihead_attention_per_head_weights_and_unbatched_input():
    torch.manual_seed(0)
    module = nn.MultiheadAttention(WIDTH, HEADS).eval()
    x = EMBEDDINGS[0]
    expected, weights = module(x, x, x, average_attn_weights=False)
    with AttentionTap() as tap:
        output, captured = module(x, x, x, average_attn_weights=False)
    assert torch.allclose(output, expected, atol=1e-6)
    assert captured.shape == weights.shape == (HEADS, 6, 6)
    assert torch.allclose(captured, weights, atol=1e-6)
    assert tap.maps[0].shape == (1, HEADS, 6, 6)
    assert tap.records[0].kind == "self"


def test_weights_that_the_module_returns_keep_its_dtype():
    module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).to(torch.bfloat16).eval()
    x = EMBEDDINGS.to(torch.bfloat16)
    with AttentionTap() as tap:
        output, weights = module(x, x, x)
    assert output.dtype == weights.dtype == torch.bfloat16
    assert tap.maps[0].dtype == torch.float32


def test_captured_matrix_times_values_is_the_output_of_the_attention():
    model, values = timm_vit(), []
    attn = model.blocks[0].attn
    attn.qkv.register_forward_hook(lambda module, args, output: values.append(output))
    attn.proj.register_forward_hook(lambda module, args, output: values.append(args[0]))
    with torch.no_grad(), AttentionTap(layers=0) as tap:
        model(images())
    qkv, mixed = values
    value = qkv.unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)[2]
    assert torch.allclose((tap.maps[0] @ value).transpose(1, 2).flatten(2), mixed, atol=1e-6)


@pytest.mark.parametrize("build", [timm_swin, torchvision_swin, hf_swin, lambda: hf_swin("eager")])
@pytest.mark.parametrize("batch", [1, 2])
def test_swin_is_captured_as_windows(build, batch):
    model, x = build(), images(batch)
    with torch.no_grad():
        expected = primary(model(x))
        with AttentionTap() as tap:
            output = primary(model(x))
    assert torch.allclose(output, expected, atol=1e-5)
    first, second = tap.records
    assert (first.kind, tuple(first.attention.shape)) == ("window", (4 * batch, 2, 16, 16))
    assert tuple(second.attention.shape) == (batch, 2, 16, 16)  # one window


def test_swin_called_by_keyword_is_still_windows():
    with AttentionTap() as tap:
        hf_swin()(pixel_values=images())
    assert tap.records[0].kind == "window"


def test_attention_pooling_is_told_from_layers():
    with AttentionTap(layers=-1) as tap:
        timm_vit(class_token=False, global_pool="map")(images())
    assert [(record.kind, record.path) for record in tap.records] == [
        ("self", "blocks.1.attn"),
        ("pooling", "attn_pool"),
    ]


def test_cross_attention_is_told_from_self_attention():
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True)
    model = nn.TransformerDecoder(layer, DEPTH).eval()
    with AttentionTap() as tap:
        model(EMBEDDINGS[:, :4], EMBEDDINGS)
    assert [record.kind for record in tap.records] == ["self", "cross"] * DEPTH


def test_cross_attention_between_sequences_of_equal_length():
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True)
    model = nn.TransformerDecoder(layer, DEPTH).eval()
    with AttentionTap() as tap:
        model(EMBEDDINGS.flip(1), EMBEDDINGS)
    assert [record.kind for record in tap.records] == ["self", "cross"] * DEPTH


def test_padding_and_causality_are_reported():
    with AttentionTap(layers=0) as bert:
        hf_bert()(words(), PADDING)
    with AttentionTap(layers=0) as free:
        hf_bert()(words())
    with AttentionTap(layers=0) as gpt:
        hf_gpt2()(words(), attention_mask=PADDING)  # the mask carries causality and padding at once
    assert (bert.records[0].valid_keys == PADDING.bool()).all()
    assert not bert.records[0].is_causal
    assert free.records[0].valid_keys is None or free.records[0].valid_keys.all()
    assert (gpt.records[0].valid_keys == PADDING.bool()).all()
    assert gpt.records[0].is_causal


def test_what_is_in_the_padding_changes_nothing():
    ids = words()
    other = torch.where(PADDING.bool(), ids, ids.flip(1) % 50 + 5)
    assert (ids != other).any()
    with torch.no_grad(), AttentionTap() as first:
        logits = hf_bert()(ids, PADDING).logits
    with torch.no_grad(), AttentionTap() as second:
        assert torch.equal(hf_bert()(other, PADDING).logits, logits)
    seen = PADDING.bool()[:, None, :, None].expand(first.maps[0].shape)
    for one, two in zip(first.maps, second.maps, strict=True):
        assert torch.equal(one[seen], two[seen])
        assert (one[1, :, :, 5:] == 0).all()
