"""The lambda2 study: its numbers are those of the methods, of the scores and of scipy's test."""

import numpy as np
import pytest
import scipy.stats
import torch
from run_models import Picked, tiny

from xattn.attributions import ColumnSum, TokenRank
from xattn.errors import ArgumentError
from xattn.evaluation import lambda2_study, load_dataset, segmentation_scores
from xattn.evaluation.datasets import BrokenSampleError
from xattn.evaluation.lambda2 import PAIRS, _weigh

DATA = load_dataset("demo", n=8, seed=3)


class Broken(Picked):
    """Its second picture cannot be used."""

    def read(self, index):
        if index == 1:
            raise BrokenSampleError("sample 1: broken")
        return super().read(index)


def test_numbers_are_those_of_methods_scores_and_scipy():
    model = tiny()
    study = lambda2_study(model, DATA, methods=["tokenrank", "column_sum"], metrics=["ap", "iou"], batch_size=3)
    assert [(r.method, r.metric) for r in study.results] == [
        (method, metric) for method in ("tokenrank", "column_sum") for metric in ("ap", "iou")
    ]
    assert len(study.samples) == 8
    samples = list(DATA.samples(model))
    x, mask = torch.stack([s.image for s in samples]), torch.stack([s.mask for s in samples])
    for result in study.results:
        method = {"tokenrank": TokenRank, "column_sum": ColumnSum}[result.method]
        uniform, weighted = (
            segmentation_scores(method(model, head_fusion=how).attribute(x, resolution="patch"), mask)[result.metric]
            for how in ("mean", "lambda2")
        )
        np.testing.assert_allclose(result.values, torch.stack([uniform, weighted]).numpy(), atol=1e-6)
        difference = result.values[1] - result.values[0]
        assert result.difference.estimate == pytest.approx(difference.mean())
        assert (result.better, result.worse) == ((difference > 0).sum(), (difference < 0).sum())
        expected = scipy.stats.wilcoxon(difference[difference != 0], alternative="greater").pvalue
        assert result.test.p_value == pytest.approx(expected)
    p = sorted(r.test.p_value for r in study.results)
    assert min(r.test.p_adjusted for r in study.results) == pytest.approx(min(1, 4 * p[0]))


def test_the_test_is_one_sided():
    uniform = np.linspace(0.2, 0.6, 12)
    better, worse = (_weigh("m", "ap", np.stack([uniform, uniform + step])) for step in (0.1, -0.1))
    assert better.test.p_value == pytest.approx(2**-12)
    assert worse.test.p_value == 1.0
    assert (better.better, worse.better, worse.worse) == (12, 0, 12)
    assert better.test.effect == 1.0


def test_every_pair_runs_and_is_in_the_table():
    study = lambda2_study(tiny(), Picked(DATA, [0, 1]))
    table = study.to_markdown()
    assert {r.method for r in study.results} == set(PAIRS)
    assert len(table.splitlines()) == 2 + 3 * len(PAIRS)
    assert len({line.count("|") for line in table.splitlines()}) == 1


def test_broken_pictures_are_counted_or_fatal():
    data = Broken(DATA, range(4))
    study = lambda2_study(tiny(), data, methods=["column_sum"])
    assert study.samples == ("0", "2", "3")
    assert study.skipped == {"1": "sample 1: broken"}
    with pytest.raises(BrokenSampleError):
        lambda2_study(tiny(), data, on_broken="raise")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["lrp"]}, "methods: expected some of raw_attention.*got lrp"),
        ({"methods": []}, "methods: .*got none"),
        ({"metrics": ["auc"]}, "metrics: expected some of ap"),
        ({"on_broken": "ignore"}, "on_broken: expected"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ArgumentError, match=message):
        lambda2_study(tiny(), DATA, **options)


def test_data_without_masks_is_refused():
    data = Picked(DATA, [0])
    data.has_masks = False
    with pytest.raises(ArgumentError, match="needs masks"):
        lambda2_study(tiny(), data)
