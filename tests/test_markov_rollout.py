"""Fused heads, rollout against its equation in float64, and diagnoses of chains that are understood."""

import math

import pytest
import torch
from test_markov_families import make, true_modulus

from xattn import markov
from xattn.errors import ArgumentError, ArgumentTypeError


def layers(batch=(2,), heads=3, states=7, depth=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shape = (*batch, heads, states, states)
    return [
        (2 * torch.randn(shape, generator=generator, dtype=torch.float64)).softmax(-1).to(dtype) for _ in range(depth)
    ]


def slow_rollout(attentions, residual):
    """Abnar and Zuidema, equation 1, one sample at a time."""
    product = None
    for attention in attentions:
        step = residual * torch.eye(attention.shape[-1], dtype=torch.float64)
        step = step + (1 - residual) * sum(attention) / len(attention)
        product = step if product is None else step @ product
    return product


@pytest.mark.parametrize("residual", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rollout_is_the_published_equation(residual, dtype):
    attentions = layers(dtype=dtype)
    found = markov.rollout(attentions, residual=residual)
    for sample in range(2):
        expected = slow_rollout([attention[sample].double() for attention in attentions], residual)
        torch.testing.assert_close(found[sample].double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("fusion", ["mean", "max", "min", "lambda2", 1, torch.tensor([1.0, 0.0, 2.0])])
@pytest.mark.parametrize("discard", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("residual", [0.0, 0.5])
def test_rows_sum_to_one_after_every_step(fusion, discard, batch, residual):
    state = markov.Rollout(fusion, residual, discard)
    for attention in layers((batch,), dtype=torch.float32):
        state.update(attention)
        assert state.matrix.shape == (batch, 7, 7)
        assert (state.matrix.sum(-1) - 1).abs().max() < 1e-6
        assert (state.matrix >= 0).all()


@pytest.mark.parametrize("fusion", ["max", "min", "mean"])
def test_discard_follows_the_literature(fusion):
    """Fuse, drop the smallest entries of the whole map but [0, 0], add the identity, normalise rows."""
    attentions = layers((), states=6)
    product = torch.eye(6, dtype=torch.float64)
    for attention in attentions:
        fused = {"max": attention.amax(0), "min": attention.amin(0), "mean": attention.mean(0)}[fusion].flatten()
        drop = [i for i in fused.argsort()[: int(36 * 0.6)].tolist() if i != 0]
        fused[drop] = 0
        step = fused.reshape(6, 6) + torch.eye(6)
        product = (step / step.sum(-1, keepdim=True)) @ product
    torch.testing.assert_close(markov.rollout(attentions, fusion, discard=0.6), product)


def test_discard_keeps_the_class_token_and_samples_apart():
    attention = layers(depth=1)[0]
    attention[0, :, 0, 0] = 0
    attention = markov.normalize_rows(attention)
    attention[0, :, 0, 0] += 1e-9
    kept = markov.rollout([attention], residual=0.0, discard=0.5)
    assert kept[0, 0, 0] > 0
    for sample in range(2):
        torch.testing.assert_close(kept[sample], markov.rollout([attention[sample]], residual=0.0, discard=0.5))


def test_streaming_equals_the_list_and_starts_afresh():
    attentions = layers()
    expected = markov.rollout(attentions)
    assert torch.equal(markov.rollout(attention for attention in attentions), expected)
    assert torch.equal(markov.rollout(attentions), expected)
    state = markov.Rollout()
    for attention in attentions:
        state.update(attention)
    assert torch.equal(state.row(2), expected[:, 2])
    fused = [attention.mean(-3) for attention in attentions]
    torch.testing.assert_close(markov.rollout(fused, head_fusion=None), expected)


def test_rollout_errors():
    with pytest.raises(ArgumentError, match="attentions: expected at least one layer, got none"):
        markov.rollout([])
    with pytest.raises(ArgumentError, match=r"residual: expected a number in \[0, 1\], got 2"):
        markov.rollout(layers(), residual=2)
    with pytest.raises(ArgumentError, match=r"discard: expected a number in \[0, 1\), got 1"):
        markov.rollout(layers(), discard=1)
    with pytest.raises(ArgumentError, match="expected the shape of the earlier layers"):
        markov.rollout([*layers(), *layers(states=5)])
    state = markov.Rollout()
    state.update(layers()[0])
    with pytest.raises(ArgumentError, match="start: expected a token index below 7, got 7"):
        state.row(7)


def test_fuse_heads_by_name():
    attention = layers(depth=1)[0]
    torch.testing.assert_close(markov.fuse_heads(attention), attention.mean(1))
    for name, combined in (("max", attention.amax(1)), ("min", attention.amin(1))):
        expected = combined / combined.sum(-1, keepdim=True)
        torch.testing.assert_close(markov.fuse_heads(attention, name), expected)
    torch.testing.assert_close(markov.fuse_heads(attention, -1), attention[:, -1])


def test_fuse_heads_by_lambda2():
    heads = torch.stack([make("metastable", 9), make("iid_soft", 9), make("ring", 9)])
    moduli = torch.tensor([true_modulus(head) for head in heads], dtype=torch.float64)
    torch.testing.assert_close(markov.lambda2_weights(heads), moduli / moduli.sum())
    expected = sum(modulus * head for modulus, head in zip(moduli, heads, strict=True)) / moduli.sum()
    torch.testing.assert_close(markov.fuse_heads(heads, "lambda2"), expected)


def test_weights_of_heads():
    attention = layers(depth=1)[0]
    expected = (attention[:, 0] + 3 * attention[:, 2]) / 4
    torch.testing.assert_close(markov.fuse_heads(attention, torch.tensor([2.0, 0.0, 6.0])), expected)
    per_sample = torch.tensor([[1.0, 0, 0], [0, 0, 0]])
    fused = markov.fuse_heads(attention, per_sample)
    torch.testing.assert_close(fused[0], attention[0, 0])
    torch.testing.assert_close(fused[1], attention[1].mean(0))
    uniform = torch.full((2, 4, 4), 0.25)
    assert markov.lambda2_weights(uniform).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("median", ArgumentError, "how: expected 'mean', 'max', 'min', 'lambda2', a head index or weights"),
        (3, ArgumentError, "how: expected a head index below 3, got 3"),
        (1.5, ArgumentTypeError, "how: expected a word, a head index or weights, got float"),
        (torch.ones(2), ArgumentError, r"how: expected weights of shape \(..., 3\), got \(2,\)"),
        (torch.tensor([1.0, -1, 1]), ArgumentError, "how: expected finite, non-negative weights"),
    ],
)
def test_fuse_heads_errors(how, error, message):
    with pytest.raises(error, match=message):
        markov.fuse_heads(layers(depth=1)[0], how)


def test_fuse_heads_needs_a_head_dimension():
    with pytest.raises(ArgumentError, match=r"attention: expected shape \(..., H, N, N\), got \(3, 3\)"):
        markov.fuse_heads(torch.eye(3))


def test_diagnosis_of_two_states():
    p, q = 0.1, 0.3
    report = markov.diagnose(torch.tensor([[1 - p, p], [q, 1 - q]], dtype=torch.float64))
    assert float(report.spectral_gap) == pytest.approx(p + q)
    assert report.stationary.tolist() == pytest.approx([0.75, 0.25])
    entropies = [-(x * math.log(x) + (1 - x) * math.log(1 - x)) for x in (p, q)]
    assert float(report.entropy_rate) == pytest.approx(0.75 * entropies[0] + 0.25 * entropies[1])
    # From state 1 the distance to pi is 0.75 * 0.6^n.
    assert report.mixing_time == math.ceil(math.log(0.25 / 0.75) / math.log(0.6))
    assert not report.reducible
    assert report.metastable[0] != report.metastable[1]


def test_diagnosis_of_chains_that_never_mix():
    cycle = markov.diagnose(torch.eye(4).roll(1, 1))
    assert (cycle.communicating_classes, cycle.closed_classes) == (1, 1)
    assert cycle.mixing_time == torch.inf
    assert cycle.spectral_gap == pytest.approx(0, abs=1e-6)
    assert cycle.entropy_rate == 0
    apart = markov.diagnose(make("two_closed", 10))
    assert apart.reducible
    assert (apart.communicating_classes, apart.closed_classes) == (2, 2)
    assert apart.mixing_time == torch.inf
    assert apart.metastable.tolist() in ([True] * 5 + [False] * 5, [False] * 5 + [True] * 5)


def test_diagnosis_of_an_absorbing_chain_and_of_one_token():
    report = markov.diagnose(make("absorbing", 8))
    assert (report.communicating_classes, report.closed_classes) == (2, 1)
    assert report.mixing_time < torch.inf
    torch.testing.assert_close(report.stationary, torch.eye(8, dtype=torch.float64)[4], rtol=0, atol=1e-9)
    single = markov.diagnose(torch.ones(1, 1))
    assert single.mixing_time == 0


def test_diagnosis_finds_metastable_blocks_in_a_batch():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 12, 12, generator=generator)
    label = torch.arange(12) < 5
    logits[0] += 6.0 * (label[:, None] == label)
    report = markov.diagnose(logits.softmax(-1))
    assert report.metastable.shape == (2, 12)
    assert report.metastable[0].tolist() in (label.tolist(), (~label).tolist())
    assert report.mixing_time[0] > 10 * report.mixing_time[1]
    steps = torch.linalg.matrix_power(logits[0].double().softmax(-1), int(report.mixing_time[0]))
    before = torch.linalg.matrix_power(logits[0].double().softmax(-1), int(report.mixing_time[0]) - 1)
    pi = report.stationary[0].double()
    assert (steps - pi).abs().sum(-1).max() / 2 <= 0.25 < (before - pi).abs().sum(-1).max() / 2
