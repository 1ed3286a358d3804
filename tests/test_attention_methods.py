"""Raw attention, rollout and DINO attention against values from elsewhere."""

import json
from pathlib import Path

import pytest
import torch
from method_cases import case
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer

from xattn import AttentionTap
from xattn.attributions import AttentionRollout, DINOAttention, RawAttention
from xattn.attributions.attention import keep_mass
from xattn.errors import ArgumentError, UnsupportedModelError

REFERENCE = Path(__file__).parent / "reference" / "lrp_vit"


@pytest.fixture(scope="module")
def reference():
    meta = json.loads((REFERENCE / "meta.json").read_text())
    model = VisionTransformer(**meta["model"]["timm_VisionTransformer_kwargs"])
    model.load_state_dict(load_file(REFERENCE / "weights.safetensors"))
    inputs = load_file(REFERENCE / "inputs.safetensors")
    images = torch.stack([inputs["image0.normalised"], inputs["image1.normalised"]]).double()
    return model.double().eval(), images, load_file(REFERENCE / "expected_float64.safetensors")


def stacked(expected, key):
    return torch.stack([expected[f"{key}.image{i}"] for i in range(2)])


def error(actual, expected):
    return float((actual.flatten(1) - expected).abs().max() / expected.abs().max())


def test_raw_attention_is_the_reference(reference):
    model, images, expected = reference
    actual = RawAttention(model).attribute(images, resolution="patch")
    assert error(actual, stacked(expected, "orig.last_layer_attn")) < 1e-9


@pytest.mark.parametrize("start", [0, 1])
def test_rollout_is_the_reference(reference, start):
    model, images, expected = reference
    actual = AttentionRollout(model, start_layer=start).attribute(images, resolution="patch")
    assert error(actual, stacked(expected, f"baseline.attn_rollout.start{start}")) < 1e-9


def test_rollout_from_the_last_layer_is_that_layer_and_the_skip():
    this = case("cls")
    with AttentionTap(layers=-1) as tap, torch.no_grad():
        this.model(this.inputs)
    row = tap.maps[0].mean(1)[:, 0]
    expected = 0.5 * row
    expected[:, 0] += 0.5
    actual = AttentionRollout(this.model, start_layer=2).attribute(this.inputs, resolution="token")
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("start", [3, 7])
def test_start_layer_out_of_range(start):
    with pytest.raises(ArgumentError, match=r"start_layer: expected a layer in 0\.\.2"):
        AttentionRollout(case("cls").model, start_layer=start).attribute(case("cls").inputs)


@pytest.mark.parametrize("fusion", ["mean", "max", "min", 1])
@pytest.mark.parametrize("discard", [0.0, 0.6])
def test_rollout_keeps_a_distribution(fusion, discard):
    this = case("cls")
    rollout = AttentionRollout(this.model, head_fusion=fusion, discard=discard)
    rows = rollout.attribute(this.inputs, resolution="token").sum(-1)
    torch.testing.assert_close(rows, torch.ones(5), atol=1e-6, rtol=0)


def test_layers_and_heads_can_be_chosen():
    this = case("cls")
    with AttentionTap() as tap, torch.no_grad():
        this.model(this.inputs)
    rows = torch.stack(tap.maps, 1)[:, :, :, 0]  # (B, layers, heads, N)
    first = RawAttention(this.model, layers=0).attribute(this.inputs, resolution="token")
    torch.testing.assert_close(first, rows[:, 0].mean(1))
    both = RawAttention(this.model, layers=[0, -1], head_fusion=2).attribute(this.inputs, resolution="token")
    torch.testing.assert_close(both, rows[:, [0, 2], 2].mean(1))
    torch.testing.assert_close(RawAttention(this.model, layers="all").maps(this.inputs, resolution="token"), rows)


def test_mean_pooled_models_are_read_over_all_patches():
    this = case("average pooling")
    with AttentionTap(layers=-1) as tap, torch.no_grad():
        this.model(this.inputs)
    expected = tap.maps[0].mean(1).mean(1)
    torch.testing.assert_close(RawAttention(this.model).attribute(this.inputs, resolution="token"), expected)


def test_pooled_models_are_read_with_their_pooling_weights():
    this = case("attention pooling")
    with AttentionTap() as tap, torch.no_grad():
        this.model(this.inputs)
    last, pooling = tap.maps[-2].mean(1), tap.maps[-1].mean(1)
    expected = (pooling @ last).squeeze(1)
    torch.testing.assert_close(RawAttention(this.model).attribute(this.inputs, resolution="token"), expected)


@pytest.mark.parametrize(
    ("mass", "expected"),
    [(0.6, [0.0, 0.4, 0.3, 0.0]), (0.4, [0.0, 0.4, 0.0, 0.0]), (1.0, [0.1, 0.4, 0.3, 0.2]), (0.71, [0, 0.4, 0.3, 0.2])],
)
def test_the_fewest_patches_that_hold_the_mass(mass, expected):
    weights = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64)
    assert keep_mass(weights, mass).tolist() == expected


def test_dino_attention_is_the_mean_of_cut_heads():
    this = case("registers, 2x8")
    with AttentionTap(layers=-1) as tap, torch.no_grad():
        this.model(this.inputs)
    heads = tap.maps[0][:, :, 0, 5:]
    heads = heads / heads.sum(-1, keepdim=True)
    expected = torch.zeros_like(heads)
    for b in range(heads.shape[0]):
        for h in range(heads.shape[1]):
            kept = 0.0
            for patch in heads[b, h].argsort(descending=True):
                if kept >= 0.6:
                    break
                expected[b, h, patch] = heads[b, h, patch]
                kept += float(heads[b, h, patch])
    dino = DINOAttention(this.model)
    torch.testing.assert_close(dino.attribute(this.inputs, resolution="patch").flatten(1), expected.mean(1))
    torch.testing.assert_close(dino.maps(this.inputs)[:, 0].flatten(2), expected)


@pytest.mark.parametrize("layout", ["average pooling", "attention pooling"])
def test_dino_attention_needs_a_class_token(layout):
    with pytest.raises(UnsupportedModelError, match="needs a class token"):
        DINOAttention(case(layout).model).attribute(case(layout).inputs)
