"""Gradients with respect to captured matrices, against finite differences and un-checkpointed models."""

import pytest
import torch
from tiny_models import (
    CLASSES,
    DEPTH,
    WIDTH,
    ToyAttention,
    ToyBlock,
    hf_bert,
    hf_clip,
    hf_dinov2,
    hf_gpt2,
    hf_vit,
    images,
    timm_dinov2,
    timm_swin,
    timm_vit,
    torch_encoder,
    torchvision_vit,
    words,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from xattn import AttentionTap
from xattn.attributions._forward import run_forward
from xattn.errors import XattnError


class Perturb(TorchFunctionMode):
    """Adds `change` to the matrix of the `layer`-th attention; knows nothing of the tap."""

    def __init__(self, layer: int, change: Tensor) -> None:
        super().__init__()
        self.countdown, self.change = layer, change

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        query, key, value = args[:3]
        attention = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
        if self.countdown == 0:
            attention = attention + self.change
        self.countdown -= 1
        return attention @ value


FLOAT64_MODELS = {
    "timm": lambda: timm_vit(depth=3),
    "hf": lambda: hf_vit(num_hidden_layers=3),
}


@pytest.mark.parametrize("name", FLOAT64_MODELS)
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_gradient_equals_finite_differences(name, layer):
    model = FLOAT64_MODELS[name]().double()
    x = images(1, dtype=torch.float64)

    def logit() -> Tensor:
        output = model(x)
        return getattr(output, "logits", output)[0, 3]

    with AttentionTap() as tap:
        value = logit()
    (gradient,) = torch.autograd.grad(value, tap.maps[layer])
    assert gradient.shape == tap.maps[layer].shape
    generator = torch.Generator().manual_seed(4)
    for _ in range(3):
        direction = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
        step = 1e-5
        with torch.no_grad(), Perturb(layer, step * direction):
            above = logit()
        with torch.no_grad(), Perturb(layer, -step * direction):
            below = logit()
        numeric = (above - below) / (2 * step)
        assert torch.allclose((gradient * direction).sum(), numeric, rtol=1e-6, atol=1e-9)
        assert numeric.abs() > 1e-5


def test_single_entries_equal_finite_differences():
    torch.manual_seed(0)
    model = nn.Sequential(ToyBlock(8), ToyBlock(8), nn.Flatten(), nn.Linear(3 * 8, 1)).double()
    x = torch.randn(1, 3, 8, dtype=torch.float64)
    with AttentionTap() as tap:
        value = model(x).sum()
    gradients = torch.autograd.grad(value, tap.maps)
    for layer, gradient in enumerate(gradients):
        numeric = torch.zeros_like(gradient)
        for index in torch.cartesian_prod(*(torch.arange(n) for n in gradient.shape)):
            change = torch.zeros_like(gradient)
            change[tuple(index)] = 1e-5
            with torch.no_grad(), Perturb(layer, change):
                above = model(x).sum()
            with torch.no_grad(), Perturb(layer, -change):
                below = model(x).sum()
            numeric[tuple(index)] = (above - below) / 2e-5
        assert torch.allclose(gradient, numeric, atol=1e-8)


class OneHead(nn.Module):
    """Attention without a head dimension, or with heads folded into the batch; class name and softmax say so."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(8, 24)
        self.attention = self.SelfAttention()

    class SelfAttention(nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return torch.bmm(F.softmax(input=torch.bmm(query, key.mT), dim=-1), value)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).flatten(1, 2)
        return self.attention(*parts).sum((1, 2)).unflatten(0, (-1, self.heads)).sum(1)


@pytest.mark.parametrize("heads", [1, 2])
def test_folded_heads_are_upstream_of_the_output(heads):
    torch.manual_seed(0)
    model, x = OneHead(heads).double(), torch.randn(3, 5, 8, dtype=torch.float64)
    with AttentionTap() as tap:
        output = model(x)
    assert tap.maps[0].shape == (3, heads, 5, 5)
    (gradient,) = torch.autograd.grad(output.sum(), tap.maps[0])
    value = model.qkv(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)[2]
    expected = value.sum(-1)[..., None, :].expand(gradient.shape)  # d sum(A V) / dA[i, j] = sum_d V[j, d]
    assert torch.allclose(gradient, expected, atol=1e-12)


def test_multihead_attention_called_as_a_function():
    """Its name says nothing, and the weights that torch would return are not upstream of its output."""

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            inner, x = self.inner, x.transpose(0, 1)
            weights = (inner.in_proj_weight, inner.in_proj_bias, None, None, False, 0.0)
            output, _ = F.multi_head_attention_forward(
                x, x, x, 8, 2, *weights, inner.out_proj.weight, inner.out_proj.bias, need_weights=True
            )
            return output.transpose(0, 1)

    torch.manual_seed(0)
    model, x = Mixer().eval(), torch.randn(3, 5, 8)
    expected = model(x)
    with AttentionTap() as tap:
        output = model(x)
    assert torch.allclose(output, expected, atol=1e-6)
    assert tap.maps[0].shape == (3, 2, 5, 5)
    assert tap.records[0].kind == "self"
    (gradient,) = torch.autograd.grad(output.square().sum(), tap.maps[0])
    assert gradient.abs().amax((-2, -1)).min() > 0


GRADIENT_MODELS = {
    "timm": (timm_vit, images),
    "timm_pooling": (lambda: timm_vit(class_token=False, global_pool="map"), images),
    "torchvision": (torchvision_vit, images),
    "hf": (hf_vit, images),
    "hf_eager": (lambda: hf_vit("eager"), images),
    "dinov2": (timm_dinov2, lambda: images(size=(28, 28))),
    "bert": (hf_bert, words),
    "gpt2": (hf_gpt2, words),
    "encoder": (torch_encoder, lambda: torch.randn(2, 6, WIDTH)),
    "encoder_norm_first": (lambda: torch_encoder(norm_first=True), lambda: torch.randn(2, 6, WIDTH)),
}


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    with AttentionTap(require_grad=True) as tap:
        output = model(x)
    logits = getattr(output, "logits", output)
    weights = torch.linspace(-1, 1, logits.numel()).reshape(logits.shape)
    return list(torch.autograd.grad((logits * weights).sum(), tap.maps))


@pytest.mark.parametrize("name", GRADIENT_MODELS)
def test_frozen_models_have_the_same_gradients_in_all_layers(name):
    build, make = GRADIENT_MODELS[name]
    model, x = build(), make()
    expected = gradients(model, x)
    model.requires_grad_(False)
    frozen = gradients(model, x)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert len(frozen) == len(expected) >= DEPTH
    for got, want in zip(frozen, expected, strict=True):
        assert want.abs().max() > 0
        torch.testing.assert_close(got, want, atol=1e-5 * float(want.abs().max()), rtol=0)


def test_a_tap_without_gradients_asks_for_none():
    with torch.no_grad(), AttentionTap(require_grad=True) as tap:
        timm_vit()(images())
    assert not any(matrix.requires_grad for matrix in tap.maps)


def timm_checkpointing(model: nn.Module) -> None:
    model.set_grad_checkpointing(True)


def hf_checkpointing(model: nn.Module) -> None:
    newer = hasattr(model, "activation_checkpointing_enable")
    getattr(model, "activation_checkpointing_enable" if newer else "gradient_checkpointing_enable")()


CHECKPOINTED = {
    "timm": (timm_vit, timm_checkpointing),
    "timm_dinov2": (lambda: timm_dinov2(img_size=32, patch_size=8), timm_checkpointing),
    "hf_vit": (hf_vit, hf_checkpointing),
    "hf_vit_eager": (lambda: hf_vit("eager"), hf_checkpointing),
    "hf_dinov2": (hf_dinov2, hf_checkpointing),
}


def checkpointing_flags(model: nn.Module) -> dict[str, bool]:
    names = ("grad_checkpointing", "gradient_checkpointing")
    return {f"{path}.{n}": getattr(m, n) for path, m in model.named_modules() for n in names if hasattr(m, n)}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_checkpointing_changes_no_gradient(name, training):
    build, enable = CHECKPOINTED[name]

    def through_run_forward(model: nn.Module) -> list[Tensor]:
        def call(x: Tensor) -> Tensor:
            output = model(x)
            return output if isinstance(output, Tensor) else output[0].flatten(1)

        found = run_forward(call, images(), target=2, needs_gradient=True)
        return list(torch.autograd.grad(found.score().sum(), [record.attention for record in found.records]))

    expected = through_run_forward(build())
    model = build()
    enable(model)
    model.train(training)
    before = checkpointing_flags(model)
    assert any(before.values())
    for got, want in zip(through_run_forward(model), expected, strict=True):
        assert want.abs().max() > 0
        torch.testing.assert_close(got, want, atol=1e-5 * float(want.abs().max()), rtol=0)
    assert checkpointing_flags(model) == before
    assert model.training is training


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_model_that_checkpoints_by_itself_is_never_silently_wrong(reentrant):
    """No flag can be switched off; either the gradients are right, or there is an error."""

    class Checkpointing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(ToyBlock() for _ in range(DEPTH))
            self.head = nn.Linear(WIDTH, CLASSES)
            self.wrapped = False

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant) if self.wrapped else block(x)
            return self.head(x.mean(1))

    torch.manual_seed(0)
    model, x = Checkpointing(), torch.randn(2, 6, WIDTH)

    def gradient() -> tuple[Tensor, ...]:
        found = run_forward(model, x, target=0, needs_gradient=True)
        return torch.autograd.grad(found.score().sum(), [record.attention for record in found.records])

    expected = gradient()
    model.wrapped = True
    try:
        got = gradient()
    except (RuntimeError, XattnError):
        return
    for one, two in zip(got, expected, strict=True):
        assert torch.allclose(one, two, atol=1e-6)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_gradients_for_callers_inside_no_grad_and_inference_mode(context):
    model, x = timm_vit(), images()

    def gradient(inputs: Tensor) -> tuple[Tensor, ...]:
        found = run_forward(model, inputs, target=1, needs_gradient=True)
        with torch.inference_mode(False), torch.enable_grad():
            return torch.autograd.grad(found.score().sum(), [record.attention for record in found.records])

    expected = gradient(x)
    with context():
        born_inside = x.clone()
        got = gradient(born_inside)
    for one, two in zip(got, expected, strict=True):
        assert torch.allclose(one, two, atol=1e-6)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    ("build", "call"),
    [
        (timm_vit, lambda model: model(images())),
        (timm_swin, lambda model: model(images())),
        (torchvision_vit, lambda model: model(images())),
        (torch_encoder, lambda model: model(torch.ones(2, 6, WIDTH))),
        (hf_clip, lambda model: model(words(), images()).logits_per_image),
    ],
)
def test_capture_for_callers_inside_no_grad_and_inference_mode(build, call, context):
    model = build()
    with AttentionTap() as outside:
        expected = call(model)
    with context(), AttentionTap() as inside:
        output = call(model)
    assert torch.allclose(output, expected, atol=1e-5)
    for one, two in zip(inside.maps, outside.maps, strict=True):
        assert torch.allclose(one, two, atol=1e-6)
        assert not one.requires_grad


def test_toy_attention_fused_equals_unfused():
    """The toys of this suite agree with each other."""
    torch.manual_seed(0)
    toy, x = ToyAttention(), torch.randn(2, 6, WIDTH)
    fused = toy(x)
    toy.fused = False
    assert torch.allclose(toy(x), fused, atol=1e-6)
