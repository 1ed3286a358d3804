"""GradCAM on tokens by hand, and on models whose attention is no chain."""

import pytest
import timm
import torch
from family_models import timm_maxvit
from method_cases import case
from torch import nn

from xattn.attributions import RawAttention, TokenGradCAM
from xattn.errors import ArgumentError, UnsupportedModelError


def by_hand(model, tail, tokens, target, prefix):
    tokens = tokens.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(tail(tokens)[:, target].sum(), tokens)
    weights = gradient[:, prefix:].mean(1, keepdim=True)
    return (weights * tokens[:, prefix:]).sum(-1).clamp_min(0).detach()


@pytest.mark.parametrize("layer", [-1, 1, 0])
def test_by_hand_on_a_vit(layer):
    this = case("cls")
    model = this.model
    index = layer % 3
    tokens = model._pos_embed(model.patch_embed(this.inputs))
    for block in model.blocks[:index]:
        tokens = block(tokens)
    expected = by_hand(model, lambda x: model.head(model.norm(model.blocks[index:](x))[:, 0]), tokens, 2, 1)
    actual = TokenGradCAM(model, layer=layer).attribute(this.inputs, target=2, resolution="patch").flatten(1)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-4)


def swin():
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 12, "depths": (1, 1), "num_heads": (2, 3)}
    return timm.models.swin_transformer.SwinTransformer(**sizes, num_classes=5).eval()


def test_windowed_models_are_explained_where_chains_refuse():
    model, images = swin(), torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with pytest.raises(UnsupportedModelError, match="TokenGradCAM"):
        RawAttention(model).attribute(images)
    tokens = model.layers[0](model.patch_embed(images))
    block = model.layers[1].blocks[0]
    before = model.layers[1].downsample(tokens).detach()
    expected = by_hand(
        model, lambda x: model.head(model.norm(block(x.unflatten(1, (8, 8))))), before.flatten(1, 2), 3, 0
    )
    actual = TokenGradCAM(model).attribute(images, target=3, resolution="patch")
    assert actual.shape == (2, 8, 8)
    torch.testing.assert_close(actual.flatten(1), expected, atol=1e-6, rtol=1e-4)


def test_frozen_windowed_model_and_state():
    model, images = swin().requires_grad_(False), torch.randn(1, 3, 32, 32)
    model.layers[0].train()
    relevance = TokenGradCAM(model).attribute(images, target=1)
    assert relevance.shape == images.shape
    assert relevance.sum() > 0
    assert model.layers[0].training


def test_channels_before_the_grid_are_not_taken_for_tokens():
    with pytest.raises(UnsupportedModelError, match="no tokens"):
        TokenGradCAM(timm_maxvit().eval()).attribute(torch.randn(1, 3, 64, 64), target=1)


@pytest.mark.parametrize("layer", [3, -4])
def test_block_out_of_range(layer):
    with pytest.raises(ArgumentError, match=r"layer: expected a block in -3\.\.2"):
        TokenGradCAM(case("cls").model, layer=layer).attribute(case("cls").inputs)


class Ignores(nn.Module):
    """A model whose answer depends on nothing that it looked at."""

    def __init__(self):
        super().__init__()
        self.model = case("cls").model
        self.bias = nn.Parameter(torch.ones(5))

    def forward(self, images):
        return self.model(images) * 0 + self.bias


def test_a_zero_gradient_names_the_block():
    with pytest.raises(UnsupportedModelError, match=r"enter block 'model.blocks.2'"):
        TokenGradCAM(Ignores()).attribute(case("cls").inputs)
