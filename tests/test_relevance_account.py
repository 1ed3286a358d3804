"""The books of a relevance pass against closed forms, and how large relevance grows over depth."""

import pytest
import tiny_models as tiny
import torch
from method_cases import case
from torch import nn

from xattn.attributions import LRP, AttnLRP, PartialLRP, RelevanceRollout, TransInterp
from xattn.errors import ArgumentError
from xattn.relevance import RULE_SETS, Recording, epsilon

EXACT = {"atol": 1e-10, "rtol": 1e-10}


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Books(nn.Module):
    """Words with a position embedding, a joined token, and a dense layer with a bias that reads their sum."""

    def __init__(self):
        super().__init__()
        self.position, self.token = draw(4, 6, seed=1), draw(1, 6, seed=2)
        self.dense = nn.Linear(6, 3).double()
        self.dense.weight.data, self.dense.bias.data = draw(3, 6, seed=3), draw(3, seed=4)

    def forward(self, x):
        x = x + self.position
        x = torch.cat([self.token.expand(len(x), 1, -1), x], 1)
        return self.dense(x.sum(1))


def test_every_entry_is_the_term_of_the_model_that_it_stands_for():
    model, x = Books(), draw(2, 4, 6)
    with Recording(x) as recording:
        score = model(recording.input)[:, 1]
    account = recording.account(score, epsilon(0.0))
    weight, bias = model.dense.weight[1].detach(), model.dense.bias[1].detach()
    torch.testing.assert_close(account.started, score.detach(), **EXACT)
    torch.testing.assert_close(account.arrived, (x @ weight).sum(1), **EXACT)
    torch.testing.assert_close(account.delta, account.arrived - account.started, **EXACT)
    torch.testing.assert_close(account.absorbed["linear"], bias.expand(2), **EXACT)
    torch.testing.assert_close(account.absorbed["add"], (model.position @ weight).sum().expand(2), **EXACT)
    torch.testing.assert_close(account.joined, (model.token @ weight).expand(2), **EXACT)
    torch.testing.assert_close(account.largest["dense"], score.detach().abs(), **EXACT)
    inside = torch.maximum(((x + model.position) * weight).abs().amax((1, 2)), (model.token * weight).abs().max())
    read = ((x + model.position).sum(1) + model.token[0]) * weight  # what reaches the sum over tokens
    torch.testing.assert_close(account.largest["Books"], torch.maximum(inside, read.abs().amax(1)), **EXACT)


@pytest.mark.parametrize("method", [LRP, AttnLRP, TransInterp, PartialLRP, RelevanceRollout])
def test_the_delta_is_that_of_attribute(method):
    this = case("cls")
    explainer = method(this.model, precision="float64")
    account = explainer.account(this.inputs, 1)
    _, delta = explainer.attribute(this.inputs, 1, return_convergence_delta=True)
    torch.testing.assert_close(account.delta, delta, **EXACT)
    assert next(iter(account.largest)) == "patch_embed"
    assert [layer for layer in account.largest if layer.startswith("blocks")] == ["blocks.0", "blocks.1", "blocks.2"]
    alone = explainer.account(this.inputs[2:3], [1])
    torch.testing.assert_close(alone.absorbed["add"], account.absorbed["add"][2:3], atol=1e-7, rtol=1e-6)
    torch.testing.assert_close(alone.largest["blocks.1"], account.largest["blocks.1"][2:3], atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("rules", sorted(RULE_SETS))
def test_nothing_is_missing_where_nothing_is_joined(rules):
    this = case("average pooling")
    account = LRP(this.model, rules=rules, precision="float64").account(this.inputs, 1)
    size = account.absorbed["linear"].abs() + account.started.abs() + account.arrived.abs()
    assert (account.joined.abs() < 1e-9 * size).all()


def test_words_have_books_too():
    this = case("words, padded")
    account = AttnLRP(this.model, precision="float64").account(this.inputs, 1, this.args)
    assert account.started.shape == account.arrived.shape == (5,)
    assert "bert.encoder.layer.2" in account.largest


def test_attnlrp_stays_bounded_over_depth_where_the_published_rules_explode():
    model, x = tiny.timm_vit(depth=12), tiny.images(2)
    grown = {}
    for method in (AttnLRP, LRP):
        account = method(model, precision="float64").account(x, 0)
        sizes = torch.stack([account.largest[f"blocks.{i}"] for i in range(12)])
        grown[method] = float((sizes[0] / sizes[-1]).max())
    assert grown[AttnLRP] < 10
    assert grown[LRP] > 1e3


def test_it_prints():
    this = case("cls")
    text = str(AttnLRP(this.model, precision="float64").account(this.inputs[:1], 1))
    for entry in ("started", "arrived at the input", "joined tokens", "absorbed: softmax", "largest: blocks.2"):
        assert f"\n{entry}" in f"\n{text}"


def test_wrong_arguments():
    this = case("cls")
    with pytest.raises(ArgumentError, match="target: expected"):
        LRP(this.model).account(this.inputs, [0, 1])
    with pytest.raises(ArgumentError, match="inputs: expected"):
        LRP(this.model).account(this.inputs[:0], 0)
