"""Sanity checks: closed forms for linear models, captum and scipy, and a model that must stay untouched."""

import math

import captum.metrics
import pytest
import scipy.stats
import torch
from torch import nn

from xattn.errors import ArgumentError
from xattn.evaluation import (
    complexity,
    infidelity,
    parameter_randomization,
    random_logit,
    rank_correlation,
    sensitivity_max,
    sparseness,
)

SIDE = 6


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh()), nn.Flatten(), nn.Linear(4 * SIDE * SIDE, 5)
        ).eval()


def images(batch=3):
    return torch.rand(batch, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def gradient(model, x, target):
    x = x.clone().requires_grad_()
    score = model(x).gather(1, target.unsqueeze(1)).sum()
    return torch.autograd.grad(score, x)[0] * x.detach()


def linear(classes=2):
    weight = torch.randn(classes, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    return (lambda x: torch.einsum("bchw,kchw->bk", x, weight)), weight


# -- randomisation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["cascading", "independent"])
def test_randomising_changes_maps_that_depend_on_the_model(mode):
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = parameter_randomization(gradient, model, images(), mode=mode)
    assert found.layers == ("2", "0.0")  # output first; layers without parameters are no step
    assert found.similarity.shape == (3, 2)
    assert (found.similarity.abs() < 0.6).all()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training


def test_a_map_that_ignores_the_model_stays():
    found = parameter_randomization(lambda _, x, __: x.sum(1), network(), images())
    assert torch.allclose(found.similarity, torch.ones(3, 2).double())


def test_the_target_is_the_intact_model_s_prediction():
    model, targets = network(), []

    def explain(m, x, target):
        targets.append(target)
        return gradient(m, x, target)

    parameter_randomization(explain, model, images())
    assert all(torch.equal(target, model(images()).argmax(1)) for target in targets)


def test_cascading_steps_include_earlier_ones_and_seeds_repeat():
    model, seen = network(), []

    def explain(m, x, target):
        seen.append({name: value.clone() for name, value in m.state_dict().items()})
        return gradient(m, x, target)

    first = parameter_randomization(explain, model, images(), layers=["2", "0.0"], seed=1)
    original, one, two = seen
    assert not torch.equal(one["2.weight"], original["2.weight"])
    assert torch.equal(one["0.0.weight"], original["0.0.weight"])
    assert torch.equal(two["2.weight"], one["2.weight"])
    assert not torch.equal(two["0.0.weight"], one["0.0.weight"])
    assert one["2.weight"].std() == pytest.approx(original["2.weight"].std().item(), rel=0.1)
    again = parameter_randomization(gradient, model, images(), layers=["2", "0.0"], seed=1)
    assert torch.equal(first.similarity, again.similarity)
    other = parameter_randomization(gradient, model, images(), layers=["2", "0.0"], seed=2)
    assert not torch.equal(first.similarity, other.similarity)


def test_unknown_layers_are_named():
    for name in ("3", "1"):
        with pytest.raises(ArgumentError, match="layers"):
            parameter_randomization(gradient, network(), images(), layers=[name])


def test_random_logit():
    model, x = network(), images(6)
    target = model(x).argmax(1)
    specific = random_logit(lambda a, t: gradient(model, a, t), x, target, 5)
    assert specific.shape == (6,)
    assert (specific < 0.99).all()
    assert torch.allclose(random_logit(lambda a, _: a.sum(1), x, target, 5), torch.ones(6).double())
    seen = []
    random_logit(lambda a, t: seen.append(t) or a, x, target, 5)
    assert (seen[0] != seen[1]).all()
    with pytest.raises(ArgumentError, match="num_classes"):
        random_logit(lambda a, _: a, x, target, 1)
    with pytest.raises(ArgumentError, match="target"):
        random_logit(lambda a, _: a, x, target[:1], 5)


# -- captum ---------------------------------------------------------------------------------------------------------


def test_infidelity_of_a_linear_model_s_gradient_is_zero():
    model, weight = linear()
    x, target = images(), torch.tensor([0, 1, 0])
    for scale in (True, False):
        assert infidelity(model, x, weight[target], target, scale=scale).abs().max() < 1e-5
    assert infidelity(model, x, torch.randn(x.shape), target).min() > 1e-3


def test_infidelity_does_not_see_the_scale_of_the_map_by_default():
    model, weight = linear()
    x = images()
    maps = weight[[0, 0, 0]] + 0.5 * torch.randn(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(2))
    a, b = (infidelity(model, x, factor * maps, 0) for factor in (1, 10))
    assert torch.allclose(a, b, rtol=1e-4)
    raw = [infidelity(model, x, factor * maps, 0, scale=False) for factor in (1, 10)]
    assert (raw[1] > 5 * raw[0]).all()


def test_infidelity_is_captum_s():
    model, x = network(), images(1)
    maps = gradient(model, x, torch.tensor([2]))

    def disturb(z):
        delta = 0.2 * torch.randn(z.shape)
        return delta, z - delta

    state = torch.get_rng_state()
    ours = infidelity(model, x, maps, 2, noise=0.2, samples=20, seed=7)
    assert torch.equal(state, torch.get_rng_state())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        theirs = captum.metrics.infidelity(
            model, disturb, x, maps, target=2, n_perturb_samples=20, max_examples_per_batch=20, normalize=True
        )
    assert torch.allclose(ours, theirs.detach())


def test_infidelity_spreads_coarse_maps():
    model, _ = linear()
    coarse = torch.rand(3, 2, 2)
    spread = coarse.repeat_interleave(3, 1).repeat_interleave(3, 2)[:, None].expand(-1, 3, -1, -1)
    assert torch.equal(infidelity(model, images(), coarse, 0), infidelity(model, images(), spread, 0))


def test_sensitivity():
    model, x, target = network(), images(), torch.tensor([0, 1, 2])
    found = sensitivity_max(lambda a, t: gradient(model, a, t), x, target, samples=4)
    assert found.shape == (3,)
    assert (found > 0).all()
    assert torch.equal(found, sensitivity_max(lambda a, t: gradient(model, a, t), x, target, samples=4))
    alone = sensitivity_max(lambda a, t: gradient(model, a, t), x[1:2], target[1:2], samples=4)
    assert torch.allclose(alone, found[1:2])
    constant = sensitivity_max(lambda a, _: torch.ones_like(a), x, target, samples=2)
    assert (constant == 0).all()


# -- simplicity and correlation -------------------------------------------------------------------------------------


def test_sparseness_and_complexity_by_hand():
    single = torch.zeros(1, 4, 4)
    single[0, 1, 2] = -3
    assert sparseness(single).item() == pytest.approx(15 / 16)
    assert complexity(single).item() == 0
    equal = torch.full((1, 4, 4), -2.0)
    assert sparseness(equal).item() == pytest.approx(0)
    assert complexity(equal).item() == pytest.approx(math.log(16))
    assert sparseness(torch.tensor([[[1.0, 3.0]]])).item() == pytest.approx(0.25)
    for metric in (sparseness, complexity):
        assert metric(torch.zeros(1, 4, 4)).isnan().item()
        assert metric(torch.full((1, 2, 2), torch.nan)).isnan().item()


def test_rank_correlation_is_spearman_s():
    a = (torch.randn(4, 5, 5, generator=torch.Generator().manual_seed(0)) * 2).round()
    b = (torch.randn(4, 5, 5, generator=torch.Generator().manual_seed(1)) * 2).round()
    found = rank_correlation(a, b)
    expected = [scipy.stats.spearmanr(p.flatten(), q.flatten()).statistic for p, q in zip(a, b, strict=True)]
    assert found.tolist() == pytest.approx(expected)
    assert torch.allclose(rank_correlation(a, a.exp()), torch.ones(4).double())
    a[0], b[1, 0, 0] = 1.0, torch.nan
    assert rank_correlation(a, b).isnan().tolist() == [True, True, False, False]
    with pytest.raises(ArgumentError, match="relevance"):
        rank_correlation(a, b[:, :2])
