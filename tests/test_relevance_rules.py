"""Each rule against its equation, written out slowly in float64, and against recorded single rules."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from xattn.relevance import Recording, RuleSet
from xattn.relevance.rules import (
    Add,
    AlphaBeta,
    Bilinear,
    Epsilon,
    FixedNorm,
    Flat,
    Gamma,
    Guarded,
    Identity,
    KeepValue,
    Reweigh,
    Signed,
    SoftmaxTaylor,
    Uniform,
    ZBox,
    z_plus,
)

STORED = load_file(Path(__file__).parent / "reference" / "lrp_vit" / "rules.safetensors")


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1e-300)


def shares(function: Any, operands: list[Tensor], kind: str, rule: Any, relevance: Tensor) -> tuple[Tensor, ...]:
    """Run one operation on operands cut from one input, and propagate relevance through it."""
    batch = operands[0].shape[0]
    joined = torch.cat([x.reshape(batch, -1) for x in operands], 1)
    with Recording(joined) as recording:
        parts = recording.input.split([x[0].numel() for x in operands], 1)
        inputs = [part.reshape(x.shape) for part, x in zip(parts, operands, strict=True)]
        output = function(*inputs)
    with recording.propagate(RuleSet("one", {kind: rule})):
        return torch.autograd.grad(output, inputs, relevance, allow_unused=True, materialize_grads=True)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, W, BIAS, R = draw(2, 4, 6), draw(5, 6, seed=1), draw(5, seed=2), draw(2, 4, 5, seed=3)


def products() -> Tensor:
    """(2, 4, 5, 6) of x_i w_ji."""
    return X[..., None, :] * W


def test_epsilon_is_bach_2015_equation_58():
    z = F.linear(X, W, BIAS)
    expected = (products() * (R / (z + 0.1 * z.sign()))[..., None]).sum(-2)
    (share,) = shares(lambda x: F.linear(x, W, BIAS), [X], "linear", Epsilon(Signed(0.1)), R)
    close(share, expected)


@pytest.mark.parametrize("alpha", [1.0, 2.0, 1.5])
def test_alpha_beta_is_bach_2015_equation_60(alpha):
    p = products()
    up, down = p.clamp(min=0), p.clamp(max=0)
    positive = up / up.sum(-1, keepdim=True)
    negative = down / down.sum(-1, keepdim=True)
    expected = ((alpha * positive - (alpha - 1) * negative) * R[..., None]).sum(-2)
    (share,) = shares(lambda x: F.linear(x, W, BIAS), [X], "linear", AlphaBeta(alpha, stabilizer=Signed(0.0)), R)
    close(share, expected)


def test_z_plus_is_alpha_one():
    assert z_plus() == AlphaBeta(1.0)


@pytest.mark.parametrize("name", ["ours", "orig"])
@pytest.mark.parametrize("alpha", [1, 2])
def test_linear_as_recorded(name, alpha):
    x, weight, bias = (STORED[f"linear.{key}"] for key in ("x", "weight", "bias"))
    rule = AlphaBeta(alpha, separate=name == "orig")
    (share,) = shares(
        lambda x: F.linear(x, weight, bias), [x], "linear", rule, STORED["linear.relevance_out"]
    )  # fmt: skip
    close(share, STORED[f"linear.{name}.alpha{alpha}.relevance_in"], 1e-10)


def test_gamma_gives_more_to_products_of_the_sign_of_the_result():
    p = products()
    z = p.sum(-1, keepdim=True)
    same = torch.where(z > 0, p.clamp(min=0), p.clamp(max=0))
    weight = p + 0.25 * same
    expected = (weight / weight.sum(-1, keepdim=True) * R[..., None]).sum(-2)
    (share,) = shares(lambda x: F.linear(x, W), [X], "linear", Gamma(0.25, Signed(0.0)), R)
    close(share, expected)


def test_gamma_zero_is_epsilon_without_bias_and_negative_gamma_is_refused():
    (gamma,) = shares(lambda x: F.linear(x, W), [X], "linear", Gamma(0.0), R)
    (epsilon,) = shares(lambda x: F.linear(x, W), [X], "linear", Epsilon(), R)
    close(gamma, epsilon)
    with pytest.raises(ValueError, match="gamma: expected zero or more, got -1"):
        Gamma(-1)


@pytest.mark.parametrize("rule", [Gamma(), Epsilon(), z_plus(), Flat()], ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("power", [-6, -3, 0, 3, 6])
def test_dense_rules_are_finite_at_every_scale_of_operands_and_weights(rule, power):
    relevance = R.float()
    for x, w in ((X * 10.0**power, W), (X, W * 10.0**power), (X * 10.0**power, W * 10.0**-power)):
        (share,) = shares(lambda x, w=w: F.linear(x, w.float()), [x.float()], "linear", rule, relevance)
        assert share.isfinite().all()
        assert share.abs().max() < 1e3 * relevance.abs().sum()


def test_flat_shares_evenly():
    (share,) = shares(lambda x: F.linear(x, W), [X], "linear", Flat(), R)
    close(share, (R.sum(-1, keepdim=True) / 6).expand(2, 4, 6))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ W.T,
        lambda x: torch.einsum("bni,oi->bno", x, W),
        lambda x: torch.addmm(BIAS, x.reshape(8, 6), W.T).reshape(2, 4, 5),
        lambda x: (W @ x.mT).mT,
    ],
    ids=["matmul", "einsum", "addmm", "constant first"],
)
def test_products_with_constants_are_linear_layers(function):
    expected = shares(lambda x: F.linear(x, W), [X], "linear", AlphaBeta(), R)[0]
    close(shares(function, [X], "linear", AlphaBeta(), R)[0], expected)


def test_convolution_is_a_linear_layer_on_patches():
    image, kernel, relevance = draw(2, 3, 8, 8), draw(6, 3, 4, 4, seed=1), draw(2, 6, 2, 2, seed=2)
    rule = AlphaBeta(2.0)
    (share,) = shares(lambda x: F.conv2d(x, kernel, stride=4), [image], "input_conv", rule, relevance)
    patches = F.unfold(image, 4, stride=4).mT
    (expected,) = shares(
        lambda x: F.linear(x, kernel.flatten(1)), [patches], "linear", rule, relevance.flatten(2).mT.contiguous()
    )
    close(share, F.fold(expected.mT, (8, 8), 4, stride=4))


@pytest.mark.parametrize("key", ["patch_embed", "patch_embed.batch2"])
def test_pixels_as_recorded(key):
    weight, bias = STORED["patch_embed.weight"], STORED["patch_embed.bias"]
    x, relevance = STORED[f"{key}.x"], STORED[f"{key}.relevance_out"]
    expected = STORED[f"{key}.relevance_in"]
    (share,) = shares(lambda x: F.conv2d(x, weight, bias, stride=4), [x], "input_conv", ZBox(), relevance)
    close(share, expected, 1e-9)


def test_pixel_bounds_can_be_given():
    x, relevance = STORED["patch_embed.x"], STORED["patch_embed.relevance_out"]
    convolve = lambda x: F.conv2d(x, STORED["patch_embed.weight"], stride=4)  # noqa: E731
    (own,) = shares(convolve, [x], "input_conv", ZBox(), relevance)
    (same,) = shares(convolve, [x], "input_conv", ZBox(x.min().item(), x.max().item()), relevance)
    (wide,) = shares(convolve, [x], "input_conv", ZBox(-10.0, 10.0), relevance)
    close(same, own)
    assert (wide - own).abs().max() > 1e-3


def test_attention_times_values_as_recorded():
    attention, values = STORED["matmul_av.attn"], STORED["matmul_av.v"]
    relevance = STORED["matmul_av.relevance_out"]
    to_attention, to_values = shares(torch.matmul, [attention, values], "matmul", Bilinear(), relevance)
    close(2 * to_attention, STORED["matmul_av.relevance_attn"], 1e-10)  # recorded before halving
    close(2 * to_values, STORED["matmul_av.relevance_v"], 1e-10)


def test_queries_times_keys_as_recorded():
    operands = [STORED["matmul_qk.q"], STORED["matmul_qk.k"]]
    relevance = STORED["matmul_qk.relevance_out"]
    to_q, to_k = shares(lambda q, k: q @ k.transpose(-2, -1), operands, "matmul", Bilinear(), relevance)
    close(2 * to_q, STORED["matmul_qk.relevance_q"], 1e-10)
    close(2 * to_k, STORED["matmul_qk.relevance_k"], 1e-10)


def test_product_is_achtibat_2024_equation_15():
    a, v, relevance = draw(2, 3, 4), draw(2, 4, 5, seed=1), draw(2, 3, 5, seed=2)
    o = a @ v
    terms = a[..., None] * v[:, None]  # (2, 3, 4, 5)
    quotient = relevance / (2 * o + 0.1 * o.sign())
    to_a, to_v = shares(torch.matmul, [a, v], "matmul", Bilinear(Signed(0.05)), relevance)
    close(to_a, (terms * quotient[:, :, None]).sum(-1))
    close(to_v, (terms * quotient[:, :, None]).sum(1))


def test_attention_can_be_taken_for_a_constant():
    a, v, relevance = draw(2, 3, 4), draw(2, 4, 5, seed=1), draw(2, 3, 5, seed=2)
    to_a, to_v = shares(torch.matmul, [a, v], "matmul", Bilinear(Signed(0.0), first=0.0), relevance)
    assert (to_a == 0).all()
    close(to_v.sum(), relevance.sum())


@pytest.mark.parametrize("case", ["positive", "mixed", "first_input_negative"])
@pytest.mark.parametrize("name", ["ours", "orig"])
def test_addition_as_recorded(case, name):
    x, y = STORED["add.x"], STORED["add.y"]
    relevance = STORED[f"add.{case}.relevance_out"]
    to_x, to_y = shares(torch.add, [x, y], "add", Add(normalize=name == "ours"), relevance)
    close(to_x, STORED[f"add.{name}.{case}.relevance_x"], 1e-9)
    close(to_y, STORED[f"add.{name}.{case}.relevance_y"], 1e-9)


def test_addition_in_a_batch_is_each_sample_as_recorded_alone():
    x, y, relevance = (STORED[f"add.batch2.{key}"] for key in ("x", "y", "relevance_out"))
    rule = Add(normalize=True)
    both = shares(torch.add, [x, y], "add", rule, relevance)
    for i in range(2):
        alone = shares(torch.add, [x[i : i + 1], y[i : i + 1]], "add", rule, relevance[i : i + 1])
        for ours, single in zip(both, alone, strict=True):
            close(ours[i : i + 1], single)
    plain = shares(torch.add, [x, y], "add", Add(), relevance)
    close(plain[0], STORED["add.orig.batch2.relevance_x"], 1e-9)


def test_differences_scaled_terms_and_constants():
    x, y, relevance = draw(2, 5), draw(2, 5, seed=1), draw(2, 5, seed=2)
    rule = Add(stabilizer=Signed(0.0))
    to_x, to_y = shares(torch.sub, [x, y], "add", rule, relevance)
    close(to_x, x * relevance / (x - y))
    close(to_y, -y * relevance / (x - y))
    to_x, to_y = shares(lambda x, y: torch.add(x, y, alpha=3), [x, y], "add", rule, relevance)
    close(to_y, 3 * y * relevance / (x + 3 * y))
    (to_x,) = shares(lambda x: 1.0 - x, [x], "shift", Identity(), relevance)
    close(to_x, relevance)
    (to_x,) = shares(lambda x: x + y[:1], [x], "add", rule, relevance)
    close(to_x, x * relevance / (x + y[:1]))


def test_branching_as_recorded():
    x, first, second = (STORED[f"clone.{key}"] for key in ("x", "relevance_1", "relevance_2"))
    with Recording(x) as recording:
        shared = F.gelu(recording.input)
        outputs = F.gelu(shared), F.gelu(shared)
    rules = RuleSet("one", {"activation": Identity()}, split=Reweigh())
    with recording.propagate(rules):
        (arrived,) = torch.autograd.grad(outputs, recording.input, (first, second))
    value = F.gelu(x)
    close(arrived, value * Guarded().divide(first + second, value))
    close(Reweigh().share(x, first + second), STORED["clone.relevance_in"], 1e-10)


def test_selection_as_recorded():
    x = STORED["select_cls.x"]
    relevance = STORED["select_cls.relevance_out"]
    (share,) = shares(lambda x: x[:, 0], [x], "select", Reweigh(), relevance[:, 0])
    close(share, STORED["select_cls.relevance_in"], 1e-10)


@pytest.mark.parametrize("dtype", ["", "float32."])
def test_guarded_division_as_recorded(dtype):
    a, b = STORED["safe_divide.a"], STORED[f"safe_divide.{dtype}b"]
    close(Guarded().divide(a.to(b.dtype), b), STORED[f"safe_divide.{dtype}out"], 1e-6 if dtype else 1e-14)


def test_softmax_is_achtibat_2024_proposition_31():
    x, relevance = draw(2, 3, 4), draw(2, 3, 4, seed=1)
    s = x.softmax(-1)
    expected = x * (relevance - s * relevance.sum(-1, keepdim=True))
    (share,) = shares(lambda x: x.softmax(-1), [x], "softmax", SoftmaxTaylor(), relevance)
    close(share, expected)
    hidden = torch.tensor([False, False, False, True])
    masked = lambda x: F.softmax(x.masked_fill(hidden, -torch.inf), dim=-1)  # noqa: E731
    (share,) = shares(masked, [x], "softmax", SoftmaxTaylor(), relevance)
    assert share.isfinite().all()
    assert (share[..., 3] == 0).all()


def test_fixed_norm_is_the_epsilon_rule_on_the_linear_map():
    gamma, beta = draw(6, seed=4), draw(6, seed=5)
    y = F.layer_norm(X, (6,), gamma, beta, 1e-3)
    sigma = (X.var(-1, unbiased=False, keepdim=True) + 1e-3).sqrt()
    matrix = (torch.eye(6, dtype=torch.float64) - 1 / 6) * gamma[:, None]  # y = matrix x / sigma + beta
    relevance = draw(2, 4, 6, seed=6)
    quotient = relevance / (y + 0.1 * y.sign())
    expected = (X[..., None, :] * matrix / sigma[..., None] * quotient[..., None]).sum(-2)
    normed = lambda x: F.layer_norm(x, (6,), gamma, beta, 1e-3)  # noqa: E731
    close(shares(normed, [X], "norm", FixedNorm(Signed(0.1)), relevance)[0], expected)


def test_fixed_rms_norm_hands_relevance_on():
    relevance = draw(2, 4, 6, seed=6)
    normed = lambda x: F.rms_norm(x, (6,), draw(6, seed=4))  # noqa: E731
    close(shares(normed, [X], "norm", FixedNorm(Signed(0.0)), relevance)[0], relevance)


def test_gates():
    x, g, relevance = draw(2, 5), draw(2, 5, seed=1), draw(2, 5, seed=2)
    halves = shares(torch.mul, [x, g], "gate", Uniform(), relevance)
    close(halves[0], relevance / 2)
    close(halves[1], relevance / 2)
    with Recording(torch.cat([x, g], 1)) as recording:
        value, gate = recording.input.chunk(2, 1)
        output = F.silu(gate) * value
    with recording.propagate(RuleSet("one", {"gate": KeepValue(), "activation": Identity()})):
        (arrived,) = torch.autograd.grad(output, recording.input, relevance)
    close(arrived, torch.cat([relevance, torch.zeros_like(relevance)], 1))


def test_only_negative_products_give_zeros_under_z_plus():
    x, weight = torch.ones(1, 3, dtype=torch.float64), -torch.ones(2, 3, dtype=torch.float64)
    (share,) = shares(lambda x: F.linear(x, weight), [x], "linear", AlphaBeta(), torch.ones(1, 2, dtype=torch.float64))
    assert (share == 0).all()


def test_rotary_embedding_is_a_linear_map():
    x, relevance = draw(2, 3, 4), draw(2, 3, 4, seed=1)
    angle = draw(3, 2, seed=2).repeat(1, 2)
    turn = lambda x: torch.cat([-x[..., 2:], x[..., :2]], -1)  # noqa: E731
    with Recording(x) as recording:
        y = recording.input * angle.cos() + turn(recording.input) * angle.sin()
    rules = RuleSet("one", {"mix": Epsilon(Signed(0.0)), "scale": Identity()})
    with recording.propagate(rules):
        (share,) = torch.autograd.grad(y, recording.input, relevance)
    matrix = torch.stack([torch.autograd.functional.jacobian(
        lambda v, i=i: v * angle[i].cos() + turn(v) * angle[i].sin(), x[0, i]) for i in range(3)])  # fmt: skip
    quotient = relevance / y.detach()
    close(share, torch.einsum("nji,bni,bnj->bni", matrix, x, quotient))
