"""The methods on the model families: batched, in every precision, with a convergence delta, nothing disturbed."""

import warnings

import pytest
import tiny_models as tiny
import torch
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from xattn.attributions import LRP, AttnLRP, PartialLRP, RelevanceRollout, TransInterp
from xattn.errors import PrecisionWarning
from xattn.relevance import RULE_SETS, attnlrp
from xattn.relevance.ledger import Ledger

METHODS = (LRP, AttnLRP, PartialLRP, TransInterp, RelevanceRollout)
SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 5}


def eva() -> nn.Module:
    """EVA-02: rotary embeddings, SwiGLU with a norm."""
    return tiny.seeded(Eva, **SIZES, swiglu_mlp=True, scale_mlp=True, use_rot_pos_emb=True, ref_feat_shape=(4, 4))


IMAGE_MODELS = {
    "timm ViT": tiny.timm_vit,
    "timm DINOv2 (layer scale, registers)": lambda: tiny.timm_dinov2(registers=True, init_values=0.5),
    "timm DeiT, distilled": tiny.timm_deit_distilled,
    "timm EVA-02 (rotary, gated)": eva,
    "timm SigLIP (attention pooling)": lambda: tiny.seeded(
        VisionTransformer, **SIZES, class_token=False, global_pool="map"
    ),
    "timm, average pooling, query norm": lambda: tiny.seeded(
        VisionTransformer, **SIZES, class_token=False, global_pool="avg", qk_norm=True
    ),
    "torchvision ViT": tiny.torchvision_vit,
    "transformers ViT": tiny.hf_vit,
    "transformers ViT, eager": lambda: tiny.hf_vit("eager"),
}


def images(model_name: str, batch: int = 3) -> Tensor:
    return tiny.images(batch, (28, 28) if "DINOv2" in model_name else (32, 32))


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_families_in_a_batch_and_alone(name, method):
    explain = method(IMAGE_MODELS[name](), precision="float64")
    x = images(name)
    relevance, delta = explain.attribute(x, [0, 1, 2], return_convergence_delta=True)
    assert relevance.shape == x.shape
    assert delta.shape == (3,)
    assert relevance.isfinite().all()
    assert delta.isfinite().all()
    assert relevance.flatten(1).std(1).min() > 0
    alone, own = explain.attribute(x[1:2], 1, return_convergence_delta=True)
    assert distance(relevance[1:2], alone) < 1e-6
    assert distance(delta[1:2], own) < 1e-6
    assert distance(explain.attribute(x, 3), relevance) > 1e-3  # another class, another map


@pytest.mark.parametrize("rules", sorted(RULE_SETS))
@pytest.mark.parametrize("name", ["timm EVA-02 (rotary, gated)", "transformers ViT"])
def test_every_rule_set_reaches_the_pixels(name, rules):
    relevance, delta = LRP(IMAGE_MODELS[name](), rules=rules, precision="float64").attribute(
        images(name), 0, return_convergence_delta=True
    )
    assert relevance.isfinite().all()
    started = images(name).new_ones(3) if rules in ("lrp", "transinterp") else None
    if started is not None:
        torch.testing.assert_close(delta.float(), relevance.flatten(1).sum(1) - started, rtol=1e-4, atol=1e-4)


def text_model(name: str) -> nn.Module:
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        DistilBertConfig,
        DistilBertForSequenceClassification,
    )

    if name == "distilbert":
        small = DistilBertConfig(vocab_size=60, dim=24, n_layers=2, n_heads=2, hidden_dim=48, num_labels=5)
        return tiny.seeded(DistilBertForSequenceClassification, small)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    implementation = "eager" if "eager" in name else "sdpa"
    config = BertConfig(vocab_size=60, num_labels=5, attn_implementation=implementation, **sizes)
    return tiny.seeded(BertForSequenceClassification, config)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["bert", "bert eager", "distilbert"])
def test_words_and_exact_zeros_on_padding(name, method):
    model = text_model(name)
    ids, mask = tiny.words(2, 7), torch.ones(2, 7, dtype=torch.long)
    mask[1, 4:] = 0
    explain = method(model, precision="float64")
    relevance = explain.attribute(ids, 1, mask)
    assert relevance.shape == (2, 7)
    assert relevance.dtype == torch.float32
    assert (relevance[1, 4:] == 0).all()
    assert relevance[:, :4].abs().min() > 0 or method in (TransInterp, PartialLRP, RelevanceRollout)
    other = ids.clone()
    other[1, 4:] = 9
    assert torch.equal(explain.attribute(other, 1, mask), relevance)
    short = explain.attribute(ids[1:, :4], 1, mask[1:, :4])
    assert distance(relevance[1:, :4], short) < 1e-6


def test_causal_text_with_an_activation_that_is_written_out():
    from transformers import GPT2Config, GPT2ForSequenceClassification

    config = GPT2Config(n_embd=24, n_layer=2, n_head=2, n_positions=32, vocab_size=60, num_labels=5, pad_token_id=0,
                        bos_token_id=1, eos_token_id=2)  # fmt: skip
    model = tiny.seeded(GPT2ForSequenceClassification, config)
    ids = tiny.words(2, 6)
    for method in METHODS:
        relevance = method(lambda x: model(input_ids=x).logits, precision="float64").attribute(ids, 1)
        assert relevance.shape == (2, 6)
        assert relevance.isfinite().all()
        assert relevance.abs().max() > 0


def test_cosine_logits_of_an_image_text_model():
    model = tiny.timm_vit()
    texts = torch.nn.functional.normalize(torch.randn(4, 24, generator=torch.Generator().manual_seed(3)), dim=-1)

    def logits(x: Tensor) -> Tensor:
        image = model.forward_features(x)[:, 0]
        image = image / image.norm(dim=-1, keepdim=True)
        return 100 * image @ texts.T

    for method in METHODS:
        relevance = method(logits, precision="float64").attribute(tiny.images(2), 1)
        assert relevance.isfinite().all()
        assert relevance.abs().max() > 0


@pytest.mark.filterwarnings("ignore::xattn.errors.PrecisionWarning")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_half_precision_is_float32_on_the_same_weights(method, dtype):
    x, model = tiny.images(2).to(dtype), tiny.timm_vit().to(dtype)
    half = method(model).attribute(x, 0, resolution="patch")
    full = method(model.float()).attribute(x.float(), 0, resolution="patch")
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, full, atol=1e-5 * float(full.abs().max()), rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_frozen_models_and_callers_without_gradients(method):
    x = tiny.images(2)
    expected = method(tiny.timm_vit()).attribute(x, 0)
    frozen = tiny.timm_vit().requires_grad_(False)
    assert torch.equal(method(frozen).attribute(x, 0), expected)
    with torch.no_grad():
        assert torch.equal(method(frozen).attribute(x, 0), expected)
    with torch.inference_mode():
        born_there = tiny.images(2)
        assert torch.equal(method(tiny.timm_vit()).attribute(born_there, 0), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(method(frozen).attribute(x, 0), expected)


@pytest.mark.parametrize("method", METHODS)
def test_the_model_is_left_as_it_was(method):
    model, x = tiny.timm_vit(), tiny.images(2)
    model.train()
    model.blocks[0].eval()
    flags = [m.training for m in model.modules()]
    model.head.weight.grad = torch.ones_like(model.head.weight)
    other = tiny.timm_vit()
    before = other(x)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    method(model, precision="float64").attribute(x, 0)
    with pytest.raises(ValueError, match="target"):
        method(model).attribute(x, 77)
    assert [m.training for m in model.modules()] == flags
    assert (model.head.weight.grad == 1).all()
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(p.requires_grad and p.dtype == torch.float32 for p in model.parameters())
    assert torch.equal(other(x), before)


def test_attnlrp_starts_with_the_logit_and_loses_what_the_delta_says():
    model, x = tiny.timm_vit().double(), tiny.images(2, dtype=torch.float64)
    relevance, delta = AttnLRP(model).attribute(x, 1, return_convergence_delta=True)
    torch.testing.assert_close(delta, relevance.flatten(1).sum(1) - model(x)[:, 1], rtol=1e-9, atol=1e-9)


def test_attnlrp_stays_bounded_over_depth_where_the_published_rules_explode():
    model = tiny.timm_vit(depth=12).double()
    x = tiny.images(2, dtype=torch.float64)
    score = model(x)[:, 0].abs()
    assert (AttnLRP(model).attribute(x, 0).flatten(1).sum(1).abs() / score).max() < 10
    assert LRP(model).attribute(x, 0).flatten(1).abs().sum(1).min() > 1e3


def test_gamma_and_epsilon_matter():
    model, x = tiny.timm_vit().double(), tiny.images(1, dtype=torch.float64)
    default = AttnLRP(model).attribute(x, 0)
    assert distance(AttnLRP(model, rules=attnlrp(gamma=0.05)).attribute(x, 0), default) > 1e-3
    assert distance(AttnLRP(model, rules=attnlrp(epsilon=0.1)).attribute(x, 0), default) > 1e-3


def test_start_layer_and_layer():
    model, x = tiny.timm_vit().double(), tiny.images(2, dtype=torch.float64)
    whole = TransInterp(model).attribute(x, 0, resolution="patch")
    late = TransInterp(model, start_layer=1).attribute(x, 0, resolution="patch")
    assert distance(whole, late) > 1e-3
    only = RelevanceRollout(model, rules="lrp", start_layer=1).attribute(x, 0, resolution="patch")
    torch.testing.assert_close(only, PartialLRP(model).attribute(x, 0, resolution="patch"))
    assert distance(PartialLRP(model, layer=0).attribute(x, 0, resolution="patch"), only) > 1e-3
    with pytest.raises(ValueError, match=r"start_layer: expected a layer in 0\.\.1, got 2"):
        TransInterp(model, start_layer=2).attribute(x, 0)
    with pytest.raises(ValueError, match="start_layer: expected zero or more, got -1"):
        TransInterp(model, start_layer=-1)
    with pytest.raises(TypeError, match="start_layer: expected an integer, got float"):
        TransInterp(model, start_layer=1.0)
    with pytest.raises(ValueError, match="precision: expected"):
        LRP(model, precision="float16")


def test_a_model_that_cuts_gradients_is_refused():
    model = tiny.timm_vit()
    with pytest.raises(ValueError, match="output was not computed from the inputs"):
        LRP(lambda x: model(x).detach()).attribute(tiny.images(1), 0)


def cancelling(channels: int) -> tuple[nn.Module, Tensor]:
    """A model whose last residual sum cancels in some channels of an image's class token, up to rounding."""
    torch.manual_seed(10)
    model = VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=4, num_heads=4, num_classes=10).eval()
    x, seen = torch.randn(4, 3, 32, 32), []
    handle = model.blocks[-1].register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad():
        model(x)
        model.blocks[-1].mlp.fc2.bias[:channels] -= seen[0][0, 0, :channels]
    handle.remove()
    return model, x


def test_warns_where_float32_is_not_to_be_trusted():
    model, x = cancelling(8)
    with pytest.warns(PrecisionWarning, match='TransInterp.*precision="float64"') as caught:
        wrong = TransInterp(model).attribute(x, 0, resolution="patch")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        right = TransInterp(model, precision="float64").attribute(x, 0, resolution="patch")
        AttnLRP(cancelling(0)[0]).attribute(x, 0)
    assert distance(wrong, right) > 0.01


def test_terms_that_leave_exactly_nothing_count_as_cancelled_and_no_terms_do_not():
    ledger = Ledger(lambda t: t.sum(1), lambda t: t.amax(1))
    ledger.divided(torch.ones(2, 2), by=torch.tensor([[0.0, 1], [0, 1]]), size=torch.tensor([[1.0, 1], [0, 1]]))
    torch.testing.assert_close(ledger.sums, torch.tensor([1.0, torch.finfo(torch.float32).eps]))


def test_delta_comes_with_captums_protocol():
    model, x = tiny.timm_vit(), tiny.images(3)
    explain = LRP(model, precision="float64")
    assert explain.has_convergence_delta()
    assert explain.has_convergence_delta() is True
    (relevance,), delta = explain.attribute((x,), 0, return_convergence_delta=True, internal_batch_size=2)
    assert torch.equal(relevance, explain.attribute(x, 0))
    assert delta.shape == (3,)
