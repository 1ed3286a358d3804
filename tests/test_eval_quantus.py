"""The quantus adapter: same numbers where protocols coincide, plain words where quantus fails."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from xattn.errors import ArgumentError
from xattn.evaluation import (
    complexity,
    perturbation,
    quantus_metric,
    relevance_rank,
    sparseness,
)

SIDE = 8


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 5)).eval()


def images(batch=3):
    return torch.rand(batch, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0)) + 0.1


def maps(batch=3):
    return torch.rand(batch, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def test_sparseness_and_complexity_agree(model):
    for name, ours in (("Sparseness", sparseness), ("Complexity", complexity)):
        found = quantus_metric(name, model, images(), maps(), 0, options={"normalise": False})
        assert torch.allclose(found.values, ours(maps()), atol=1e-5), name
        assert found.settings["quantus"]
        assert found.settings["normalise"] is False


def test_rank_accuracy_agrees(model):
    mask = torch.zeros(3, SIDE, SIDE, dtype=torch.long)
    mask[:, 2:5, 1:6] = 1
    found = quantus_metric("RelevanceRankAccuracy", model, images(), maps(), 0, mask=mask)
    assert torch.allclose(found.values, relevance_rank(maps(), mask), atol=1e-6)


def test_pixel_flipping_of_grey_images_is_our_perturbation():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        grey = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 5)).eval()
    x = images()[:, :1]
    options = {"features_in_step": 4, "perturb_baseline": "black", "normalise": False, "abs": False}
    theirs = quantus_metric("PixelFlipping", grey, x - x.amin((1, 2, 3), True), maps(), [0, 1, 2], options=options)
    steps = torch.arange(1, 17) / 16
    ours = perturbation(grey, x - x.amin((1, 2, 3), True), maps(), [0, 1, 2], fractions=steps)
    assert theirs.values.shape == (3, 16)
    assert torch.allclose(theirs.values.float(), ours.values, atol=1e-5)


@pytest.mark.skipif(hasattr(np, "trapz"), reason="this numpy still has trapz")
def test_missing_trapz_is_explained(model):
    with pytest.raises(ArgumentError, match=r"PixelFlipping.*numpy\.trapz.*perturbation"):
        quantus_metric("PixelFlipping", model, images(1), maps(1), 0, options={"return_auc_per_sample": True})


def test_refused_maps_are_explained_or_counted(model):
    relevance = maps()
    relevance[1] = -relevance[1] - 1
    with pytest.raises(ArgumentError, match=r"sample 1.*without positive values"):
        quantus_metric("Sparseness", model, images(), relevance, 0)
    found = quantus_metric("Sparseness", model, images(), relevance, 0, on_error="nan")
    assert found.values.isnan().tolist() == [False, True, False]
    assert list(found.errors) == [1]
    assert not sparseness(relevance).isnan().any()  # ours takes them


def test_unfit_defaults_are_explained(model):
    with pytest.raises(ArgumentError, match="does not fit this image size"):
        quantus_metric("FaithfulnessCorrelation", model, images(1), maps(1), 0)
    found = quantus_metric(
        "FaithfulnessCorrelation", model, images(1), maps(1), 0, options={"subset_size": 10, "nr_runs": 10}
    )
    assert found.values.isfinite().all()


def test_unknown_metrics_and_options_are_named(model):
    with pytest.raises(ArgumentError, match=r"no metric 'Faith'.*PixelFlipping"):
        quantus_metric("Faith", model, images(1), maps(1))
    with pytest.raises(ArgumentError, match="on_error"):
        quantus_metric("Sparseness", model, images(1), maps(1), on_error="skip")


def test_state_arguments_seeds_and_warnings(model):
    model.train()
    options = {"subset_size": 10, "nr_runs": 10}
    given = dict(options)
    numpy_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runs = [
            quantus_metric("FaithfulnessCorrelation", model, images(), maps(), options=options, seed=seed).values
            for seed in (1, 1, 2)
        ]
    assert model.training
    model.eval()
    assert options == given
    assert np.array_equal(numpy_state, np.random.get_state()[1])
    assert torch.equal(torch_state, torch.get_rng_state())
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    alone = quantus_metric("FaithfulnessCorrelation", model, images()[2:], maps()[2:], options=options, seed=1).values
    assert torch.allclose(alone, runs[0][2:])


def test_metrics_that_explain_by_themselves(model):
    def explain(x, target):
        weight = model[1].weight[target].view(x.shape)
        return (x * weight).detach()

    found = quantus_metric(
        "MaxSensitivity", lambda x: model(x), images(2), maps(2), 0, explain=explain, options={"nr_samples": 3}
    )
    assert found.values.shape == (2,)
    assert found.values.isfinite().all()
    with pytest.raises(ArgumentError, match="dictionary"):
        quantus_metric("MPRT", model, images(1), None, 0, explain=explain)
