"""Gradient-weighted attention against the reference values, and its failures."""

import json
from pathlib import Path

import pytest
import torch
from method_cases import case
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from xattn.attributions import AttentionGradCAM, GenericAttention, GradientRollout
from xattn.errors import ArgumentError, UnsupportedModelError

REFERENCE = Path(__file__).parent / "reference" / "lrp_vit"
TARGETS = ["target_pred", "target_other"]


@pytest.fixture(scope="module")
def reference():
    meta = json.loads((REFERENCE / "meta.json").read_text())
    model = VisionTransformer(**meta["model"]["timm_VisionTransformer_kwargs"])
    model.load_state_dict(load_file(REFERENCE / "weights.safetensors"))
    inputs = load_file(REFERENCE / "inputs.safetensors")
    images = torch.stack([inputs["image0.normalised"], inputs["image1.normalised"]]).double()
    targets = {name: [meta["targets"][f"image{i}"][name] for i in range(2)] for name in TARGETS}
    return model.double().eval(), images, targets, load_file(REFERENCE / "expected_float64.safetensors")


def compare(explainer, reference, key, which):
    """Largest error over both images, explained as a batch and one by one."""
    _, images, targets, expected = reference
    batch = explainer.attribute(images, targets[which], resolution="patch").flatten(1)
    for i in range(2):
        wanted = expected[f"{key}.{which}.image{i}"].flatten()
        single = explainer.attribute(images[i : i + 1], targets[which][i], resolution="patch").flatten()
        for actual in (batch[i], single):
            assert float((actual - wanted).abs().max() / wanted.abs().max().clamp_min(1e-300)) < 1e-9


@pytest.mark.parametrize("which", TARGETS)
def test_attention_gradcam_is_the_reference(reference, which):
    compare(AttentionGradCAM(reference[0]), reference, "baseline.attn_gradcam_unnormalised", which)


@pytest.mark.parametrize("which", TARGETS)
def test_generic_attention_is_the_reference(reference, which):
    compare(GenericAttention(reference[0]), reference, "generic.vit_notebook", which)


@pytest.mark.parametrize("which", TARGETS)
@pytest.mark.parametrize(("start", "key"), [(0, "start0"), (1, "start1"), (-1, "startlast")])
def test_generic_attention_from_a_layer_is_the_clip_notebook(reference, which, start, key):
    explainer = GenericAttention(reference[0], start_layer=start)
    compare(explainer, reference, f"generic.clip_notebook.{key}", which)


def test_gradient_rollout_by_hand(reference):
    model, images, targets, _ = reference
    intermediates = load_file(REFERENCE / "intermediates.safetensors")
    for i in range(2):
        product = torch.eye(17, dtype=torch.float64)
        attention = intermediates[f"image{i}.attn"].double()
        gradient = intermediates[f"target_pred.image{i}.attn_grad"].double()
        for a, g in zip(attention, gradient, strict=True):
            factor = torch.eye(17) + (a * g).mean(0).clamp_min(0)
            product = factor / factor.sum(-1, keepdim=True) @ product
        actual = GradientRollout(model).attribute(images[i : i + 1], targets["target_pred"][i], resolution="token")[0]
        torch.testing.assert_close(actual, product[0], atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("method", [GenericAttention, GradientRollout])
@pytest.mark.parametrize("start", [3, -4])
def test_start_layer_out_of_range(method, start):
    with pytest.raises(ArgumentError, match=r"start_layer: expected a layer in -3\.\.2"):
        method(case("cls").model, start_layer=start).attribute(case("cls").inputs)


class Constant(nn.Module):
    """Attention runs, and the answer ignores it."""

    def __init__(self, model, how):
        super().__init__()
        self.model, self.how = model, how

    def forward(self, images):
        logits = self.model(images)
        return logits.detach() * self.how.to(logits) + 0 * logits if self.how is not None else torch.zeros(5, 3)


def test_a_score_without_gradient_is_refused_by_name():
    this = case("cls")
    with pytest.raises(UnsupportedModelError, match=r"'model.blocks.2.attn' is zero everywhere"):
        AttentionGradCAM(Constant(this.model, torch.ones(()))).attribute(this.inputs)


def test_checkpointed_models_give_the_map_of_the_others():
    this = case("cls")
    expected = GenericAttention(this.model).attribute(this.inputs)
    this.model.set_grad_checkpointing(True)
    try:
        actual = GenericAttention(this.model).attribute(this.inputs)
        assert this.model.grad_checkpointing is True
    finally:
        this.model.set_grad_checkpointing(False)
    torch.testing.assert_close(actual, expected)
