"""The graph starts at the first layer whose gradient is asked for, and maps stay what they are with the whole graph."""

import pytest
import torch
from method_cases import PAIRS, case
from tiny_models import images, timm_vit
from torch import nn

from xattn._cost import measure
from xattn.attributions import AttentionGradCAM, ClassTokenRank, TokenGradCAM, methods
from xattn.attributions._forward import Request, run_forwards
from xattn.attributions._late_graph import LateGraph

LATE = ["attention_gradcam", "class_tokenrank", "token_gradcam"]


def whole_graph(monkeypatch):
    monkeypatch.setattr(LateGraph, "is_right", lambda self, depth: False)  # the call is repeated with all of it


@pytest.mark.parametrize(("method", "layout"), [pair for pair in PAIRS if pair[0] in LATE])
def test_maps_are_those_of_the_whole_graph(method, layout, monkeypatch):
    this = case(layout)

    def explain():
        return methods[method](this.model).attribute(this.inputs, 1, this.args, resolution="token")

    late = explain()
    whole_graph(monkeypatch)
    torch.testing.assert_close(late, explain(), rtol=1e-5, atol=1e-9)


def test_what_lies_before_the_layer_has_no_graph():
    model, x = timm_vit(depth=4), images()
    (found,) = run_forwards(model, x, (), [Request("all", graph_from=-2)], target=0, needs_gradient=True)
    assert [record.attention.requires_grad for record in found.records] == [False, False, True, True]
    assert all(gradient is not None for gradient in found.gradients([r.attention for r in found.records[2:]]))


@pytest.mark.parametrize("before", [True, False])
def test_the_callers_gradient_mode_is_left(before):
    model = timm_vit()
    with torch.set_grad_enabled(before):
        AttentionGradCAM(model).attribute(images(), 0)
        assert torch.is_grad_enabled() == before
        with pytest.raises(ZeroDivisionError):
            AttentionGradCAM(lambda x: model(x) / (1 // 0)).attribute(images(), 0)
        assert torch.is_grad_enabled() == before


class EndsEarly(nn.Module):
    """Has four blocks and calls two of them, so that layers from the end are guessed wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.model = timm_vit(depth=4)

    def forward(self, x):
        tokens = self.model.patch_embed(x)
        tokens = self.model._pos_embed(tokens)
        for block in self.model.blocks[:2]:
            tokens = block(tokens)
        return self.model.head(self.model.norm(tokens)[:, 0])


@pytest.mark.parametrize("method", [AttentionGradCAM, ClassTokenRank, TokenGradCAM])
def test_a_wrong_guess_costs_a_second_call_and_changes_nothing(method, monkeypatch):
    early = EndsEarly()
    late = method(early).attribute(images(), 1, resolution="patch")
    cost = measure(lambda: method(early).attribute(images(), 1), early)
    assert cost.forwards == 2
    shallow = timm_vit(depth=4)
    shallow.load_state_dict(early.model.state_dict())
    del shallow.blocks[2:]
    torch.testing.assert_close(late, method(shallow).attribute(images(), 1, resolution="patch"))


@pytest.mark.parametrize("layer", [0, 1, -1, -2])
def test_frozen_models_have_the_same_gradient_in_every_block(layer):
    model = timm_vit(depth=2)
    expected = TokenGradCAM(model, layer=layer).attribute(images(), 0, resolution="patch")
    model.requires_grad_(False)
    torch.testing.assert_close(TokenGradCAM(model, layer=layer).attribute(images(), 0, resolution="patch"), expected)
