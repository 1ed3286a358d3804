"""The recorded forward: gradients untouched, nothing skipped, nothing left behind."""

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from xattn import AttentionTap
from xattn.errors import MissingRuleError, UnsupportedModelError
from xattn.relevance import RULE_SETS, Recording, attnlrp, epsilon, rule_set
from xattn.relevance.rules import Identity

ALL = sorted(RULE_SETS)
EXACT = {"epsilon": epsilon(0.0), "attnlrp": attnlrp(0.0)}


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def vit(**kwargs: object) -> VisionTransformer:
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
    model = VisionTransformer(**{**sizes, **kwargs}).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    return model


class Residual(nn.Module):
    """A bias-free network with a residual connection written as `+`."""

    def __init__(self, norm: bool = False, gated: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.head = nn.Linear(6, 3, bias=False)
        self.norm = nn.LayerNorm(6, bias=False) if norm else nn.Identity()
        self.gated = gated
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.first(self.norm(x)))
        x = x + self.second(h * F.silu(self.first(x)) if self.gated else h)
        return self.head(x)


def relevance(model: nn.Module, x: Tensor, rules: object, target: int = 0) -> tuple[Tensor, Tensor]:
    with Recording(x) as recording:
        logits = model(recording.input)
    (arrived,) = recording.relevance(logits[:, target], [recording.input], rules)
    return arrived, logits[:, target].detach()


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("variant", [{}, {"norm": True}, {"gated": True}, {"norm": True, "gated": True}])
def test_bias_free_residual_network_conserves(name, variant):
    arrived, score = relevance(Residual(**variant), draw(4, 6, seed=1), EXACT[name])
    torch.testing.assert_close(arrived.sum(1), score, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", EXACT)
def test_what_is_not_conserved_in_a_transformer_is_accounted_for(name):
    model, x = vit(class_token=False, global_pool="avg"), draw(2, 3, 16, 16)
    with Recording(x) as recording:
        score = model(recording.input)[:, 0]
    recording.ledger.accounting = True
    (arrived,) = recording.relevance(score, [recording.input], EXACT[name])
    absorbed = recording.ledger.absorbed
    total = arrived.flatten(1).sum(1) + sum(absorbed.values())
    torch.testing.assert_close(total, score.detach(), rtol=1e-8, atol=1e-8)
    lossless = {"matmul", "activation", "select", "scale"} | ({"softmax", "norm"} if name == "epsilon" else set())
    for kind in lossless & set(absorbed):
        assert absorbed[kind].abs().max() < 1e-8, kind
    assert absorbed["linear"].abs().max() > 1e-6  # biases


def test_attention_without_biases_and_softmax_conserves():
    q, k, v = (draw(6, 6, seed=i) for i in range(3))

    def attend(x: Tensor) -> Tensor:
        return ((x @ q) @ (x @ k).mT / 6) @ (x @ v)

    x = draw(2, 4, 6, seed=5)
    with Recording(x) as recording:
        score = attend(recording.input)[:, 0, 0]
    for rules in EXACT.values():
        (arrived,) = recording.relevance(score, [recording.input], rules)
        torch.testing.assert_close(arrived.sum((1, 2)), score.detach(), rtol=1e-8, atol=1e-8)


def test_a_product_with_a_constant_is_no_product_of_two_operands():
    weight = draw(6, 5, seed=1)
    for rules in (*EXACT.values(), rule_set("lrp"), rule_set("transinterp")):
        dense, _ = relevance(lambda x: F.linear(x, weight.T), draw(2, 6), rules)
        product, _ = relevance(lambda x: x @ weight, draw(2, 6), rules)
        torch.testing.assert_close(product, dense, rtol=1e-12, atol=1e-12)


def test_gradients_outside_propagate_are_torchs_own():
    model, x = vit(), draw(2, 3, 16, 16)
    with AttentionTap() as tap:
        plain = x.clone().requires_grad_()
        expected_logits = model(plain)
    expected = torch.autograd.grad(expected_logits[:, 1].sum(), [plain, *tap.maps])
    with Recording(x) as recording, AttentionTap() as tap:
        logits = model(recording.input)
    wanted = [recording.input, *tap.maps]
    before = torch.autograd.grad(logits[:, 1].sum(), wanted, retain_graph=True)
    recording.relevance(logits[:, 1], wanted, "transinterp")
    after = torch.autograd.grad(logits[:, 1].sum(), wanted, retain_graph=True)
    assert torch.equal(logits, expected_logits)
    for e, b, a in zip(expected, before, after, strict=True):
        assert torch.equal(e, b)
        assert torch.equal(e, a)


def test_a_module_used_twice_is_its_unshared_copy():
    class Twice(nn.Module):
        def __init__(self, shared: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a = nn.Linear(5, 5).double()
            self.b = self.a if shared else nn.Linear(5, 5).double()
            self.b.load_state_dict(self.a.state_dict())

        def forward(self, x: Tensor) -> Tensor:
            return self.b(F.gelu(self.a(x)) + x)

    for name in ALL:
        shared, unshared = (relevance(Twice(kind), draw(3, 5), name)[0] for kind in (True, False))
        assert torch.equal(shared, unshared)


def test_an_operation_without_a_rule_is_named_with_its_module():
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.erf(x) if x.ndim else x

    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Odd()), nn.Linear(4, 2)).double()
    for name in ALL:
        with pytest.raises(MissingRuleError, match=rf"'erf'.*in '1\.0'.*{name}.*extended\(\{{'erf': Identity\(\)\}}\)"):
            relevance(model, draw(2, 4), name)
    arrived, _ = relevance(model, draw(2, 4), rule_set("epsilon").extended({"erf": Identity()}))
    assert arrived.isfinite().all()
    assert arrived.abs().max() > 0


def test_several_results_of_one_unknown_operation_are_not_skipped_either():
    with pytest.raises(MissingRuleError, match="max"):
        relevance(nn.Sequential(nn.Linear(4, 4), _Largest()).double(), draw(2, 4), "epsilon")


class _Largest(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.max(-1, keepdim=True)[0]


def test_probabilities_by_log_softmax_are_refused():
    with pytest.raises(MissingRuleError, match="log_softmax"):
        relevance(nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(-1)).double(), draw(2, 4), "lrp")


def test_statistics_take_no_relevance_and_are_no_obstacle():
    def by_hand(x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    functions = {
        "rms": by_hand,
        "divided": lambda x: x / x.norm(dim=-1, keepdim=True),
        "normalize": lambda x: F.normalize(x, dim=-1),
    }
    for function in functions.values():
        with Recording(draw(2, 4)) as recording:
            y = function(recording.input)
        (arrived,) = recording.relevance(y[:, 0], [recording.input], "lrp")
        expected = torch.zeros(2, 4, dtype=torch.float64)
        expected[:, 0] = 1
        torch.testing.assert_close(arrived, expected, atol=1e-6, rtol=0)


def test_in_place_operations_are_followed():
    def plain(x: Tensor) -> Tensor:
        return F.relu(x * 2 + draw(4, seed=7)) + x

    def in_place(x: Tensor) -> Tensor:
        y = x * 2
        y += draw(4, seed=7)
        y = F.relu(y, inplace=True)
        y.add_(x)
        return y

    results = []
    for function in (plain, in_place):
        with Recording(draw(2, 4)) as recording:
            y = function(recording.input)
        (arrived,) = recording.relevance(y[:, 0], [recording.input], "epsilon")
        (gradient,) = torch.autograd.grad(y.sum(), recording.input)
        results.append((y.detach(), arrived, gradient))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_an_operand_that_is_overwritten_behind_our_back_raises():
    with Recording(draw(2, 4)) as recording:
        x = recording.input * 2
        y = F.gelu(x)
        x.detach().zero_()
    with pytest.raises(UnsupportedModelError, match=r"'gelu'.*changed in place"):
        recording.relevance(y[:, 0], [recording.input], "epsilon")


def test_works_without_a_tap_on_torchs_own_attention():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).double().eval()
    arrived, _ = relevance(nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 2)).double(), draw(2, 3, 8), "epsilon")
    assert arrived.shape == (2, 3, 8)
    assert arrived.isfinite().all()


def test_tokens_before_batch_still_means_each_sample():
    torch.manual_seed(0)
    last, first = (nn.TransformerEncoderLayer(8, 2, 16, batch_first=b).double().eval() for b in (True, False))
    first.load_state_dict(last.state_dict())
    swapped = lambda x: first(x.transpose(0, 1)).transpose(0, 1).flatten(1)  # noqa: E731
    x = draw(2, 3, 8)
    for name in ALL:
        one, _ = relevance(lambda x: last(x).flatten(1), x, name)
        two, _ = relevance(swapped, x, name)
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def test_functions_and_other_models_stay_the_same():
    functions = {name: getattr(F, name) for name in dir(F)} | {name: getattr(torch, name) for name in ("matmul", "add")}
    explained, other, x = vit(), vit(), draw(2, 3, 16, 16)
    before = other(x), explained(x)
    with Recording(x) as recording:
        logits = explained(recording.input)
        inside = other(x)
        assert not inside.requires_grad  # another input is not on the path
    recording.relevance(logits[:, 0], [recording.input], "attnlrp")
    assert all(getattr(F, n, None) is f or getattr(torch, n, None) is f for n, f in functions.items())
    for after, expected in zip((other(x), explained(x)), before, strict=True):
        assert torch.equal(after, expected)
    assert all(p.grad is None and p.requires_grad for p in explained.parameters())
    assert not explained._forward_hooks


def test_an_error_in_the_forward_leaves_no_mode_behind():
    def fails(x: Tensor) -> Tensor:
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        relevance(fails, draw(2, 4), "lrp")
    x = draw(2, 4).requires_grad_()
    assert "Operation" not in type((x * 2).grad_fn).__name__


def test_the_graph_goes_with_the_recording():
    model, x = vit(), draw(1, 3, 16, 16)

    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(o), Tensor) for o in gc.get_objects())

    relevance(model, x, "transinterp")
    before = alive()
    for _ in range(3):
        relevance(model, x, "transinterp")
        with pytest.raises(ValueError, match="rules: expected a RuleSet or one of"):
            relevance(model, x, "nonsense")
    assert alive() <= before


@settings(max_examples=12, deadline=None, derandomize=True)
@given(scale=st.floats(-6, 6), name=st.sampled_from(ALL), seed=st.integers(0, 3))
def test_finite_at_every_input_scale(scale, name, seed):
    model = vit().float()
    arrived, _ = relevance(model, draw(1, 3, 16, 16, seed=seed, dtype=torch.float32) * 10.0**scale, name)
    assert arrived.isfinite().all()


@pytest.mark.parametrize("name", ALL)
def test_zero_and_constant_inputs_are_finite(name):
    model = vit().float()
    for x in (torch.zeros(1, 3, 16, 16), torch.ones(1, 3, 16, 16)):
        assert relevance(model, x, name)[0].isfinite().all()


def test_rule_sets_are_data():
    rules = rule_set("lrp")
    assert rules == rule_set("lrp")
    more = rules.extended({"erf": Identity()})
    assert "erf" not in rules.rules
    assert more.name == "lrp, extended"
    with pytest.raises(TypeError):
        rules.rules["erf"] = Identity()
    with pytest.raises(TypeError, match="rules: expected a RuleSet or its name, got int"):
        relevance(Residual(), draw(2, 6), 3)
    with pytest.raises(ValueError, match=r"transinterp, lrp, attnlrp, epsilon"):
        rule_set("gamma")
