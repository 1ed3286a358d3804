"""Captum and quantus take the methods as they are."""

import numpy as np
import pytest
import torch
from captum.attr import InputXGradient, IntegratedGradients, NoiseTunnel, Saliency
from captum.attr import visualization as captum_visualization
from captum.metrics import infidelity, sensitivity_max
from method_cases import case
from run_models import tiny, values

from xattn import explain
from xattn.attributions import NBounceAttention, TokenRank
from xattn.evaluation import benchmark, load_dataset, perturbation


@pytest.fixture
def explainer():
    return TokenRank(case("cls").model)


def test_noise_tunnel_averages_over_noise(explainer):
    inputs = case("cls").inputs
    torch.manual_seed(0)
    noisy = NoiseTunnel(explainer).attribute(inputs, nt_type="smoothgrad", nt_samples=4, stdevs=1e-6)
    torch.testing.assert_close(noisy, explainer.attribute(inputs), atol=1e-5, rtol=1e-3)
    (in_a_tuple,) = NoiseTunnel(explainer).attribute((inputs,), nt_samples=2, stdevs=1e-6, target=1)
    assert in_a_tuple.shape == inputs.shape


def test_sensitivity_is_small_for_small_changes(explainer):
    inputs = case("cls").inputs
    tiny = sensitivity_max(explainer.attribute, inputs, perturb_radius=1e-6, n_perturb_samples=2)
    large = sensitivity_max(explainer.attribute, inputs, perturb_radius=3.0, n_perturb_samples=2)
    assert (tiny < 1e-3).all()
    assert (large > tiny).all()


def test_infidelity_takes_the_map(explainer):
    this = case("cls")
    relevance = explainer.attribute(this.inputs)

    def perturb(inputs):
        noise = 0.01 * torch.randn_like(inputs)
        return noise, inputs - noise

    value = infidelity(this.model, perturb, this.inputs, relevance, target=1, n_perturb_samples=3)
    assert value.shape == (5,)
    assert (value >= 0).all()


def test_captum_draws_the_map(explainer):
    inputs = case("cls").inputs[:1]
    relevance = explainer.attribute(inputs)[0].permute(1, 2, 0).numpy()
    figure, axes = captum_visualization.visualize_image_attr(relevance, use_pyplot=False)
    assert axes.images[0].get_array().max() > 0
    figure.clear()


@pytest.mark.filterwarnings("ignore")  # quantus warns on import
def test_quantus_calls_the_method():
    import quantus

    this = case("cls")

    def explain_func(model, inputs, targets, **kwargs):
        images = torch.as_tensor(inputs, dtype=torch.float32)
        maps = NBounceAttention(model).attribute(images, torch.as_tensor(targets))
        return maps.sum(1, keepdim=True).numpy()

    metric = quantus.Sparseness(disable_warnings=True, display_progressbar=False)
    images, labels = this.inputs[:2].numpy(), np.array([0, 1])
    scores = metric(model=this.model, x_batch=images, y_batch=labels, explain_func=explain_func, device="cpu")
    assert len(scores) == 2
    assert all(0 <= score <= 1 for score in scores)


@pytest.mark.parametrize("method", [Saliency, InputXGradient, IntegratedGradients])
def test_captums_own_methods_are_explained_and_judged_as_they_are(method, tmp_path):
    model, scenes = tiny(), load_dataset("demo", n=2, seed=5)
    images = torch.stack([sample.image for sample in scenes.samples(model)])
    target = model(images).argmax(1)
    expected = method(model).attribute(images.clone().requires_grad_(), target=target).sum(1).detach()
    found = explain(model, images[:1], {"theirs": method(model)}, target=int(target[0]))
    torch.testing.assert_close(found.maps["theirs"], expected[0], check_dtype=False, atol=1e-5, rtol=1e-4)
    rows = benchmark(model, scenes, {"theirs": method(model), "ours": TokenRank}, ["perturbation"], tmp_path).rows
    scores = values(rows, "theirs", "perturbation", "positive")
    auc = perturbation(model, images, expected, target, order="positive").auc()
    np.testing.assert_allclose(list(scores.values()), auc.numpy(), atol=1e-5)
