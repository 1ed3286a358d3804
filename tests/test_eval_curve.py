"""Areas under perturbation curves: each convention against numbers worked out by hand."""

import dataclasses

import pytest
import torch

from xattn.errors import ArgumentError
from xattn.evaluation import Curve

# Accuracies on the clean image and with 10..90 % removed, and what each convention makes of them.
STEPS = [0.80, 0.79, 0.77, 0.74, 0.70, 0.66, 0.60, 0.52, 0.41, 0.27]


def published_curve(last=0.9):
    count = round(last * 10) + 1
    return Curve(torch.arange(count).double() / 10, torch.tensor([STEPS[:count]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("convention", "percent"),
    [("steps_mean", 60.67), ("steps_trapezoid", 49.30), ("published_2021", 57.25), ("normalized", 63.61)],
)
def test_conventions_give_the_published_numbers(convention, percent):
    assert published_curve().auc(convention).item() * 100 == pytest.approx(percent, abs=5e-3)


def test_raw_is_not_divided_by_the_span():
    assert published_curve().auc("raw").item() == pytest.approx(0.5725)


def test_published_area_ignores_what_lies_beyond_nine_tenths_and_uses_nominal_fractions():
    nominal = torch.arange(11).double() / 10
    actual = (nominal * 1024).int().double() / 1024
    curve = Curve(actual, torch.tensor([[*STEPS, 0.1]], dtype=torch.float64), nominal=nominal)
    assert curve.auc("published_2021").item() == pytest.approx(0.5725)
    expected = torch.trapezoid(curve.values, actual, dim=1)
    assert torch.equal(curve.auc(), expected)  # the others use what was really removed


def test_unequal_steps_are_weighted_by_their_width():
    curve = Curve(torch.tensor([0.0, 0.25, 1.0]), torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    assert torch.allclose(curve.auc(), torch.tensor([0.125, 0.375]))


@pytest.mark.parametrize(
    ("curve", "convention"),
    [
        (published_curve(0.8), "published_2021"),
        (Curve(torch.tensor([0.5]), torch.ones(1, 1)), "normalized"),
        (Curve(torch.tensor([0.0, 1.0]), torch.ones(1, 2)), "steps_mean"),
        (Curve(torch.tensor([0.0, 0.5, 1.0]), torch.ones(1, 3)), "steps_trapezoid"),
        (published_curve(), "trapz"),
    ],
)
def test_a_convention_that_the_curve_cannot_serve_raises(curve, convention):
    with pytest.raises(ArgumentError, match="convention"):
        curve.auc(convention)


def test_shapes_must_agree():
    with pytest.raises(ArgumentError, match=r"\(2, 3\).*\(4,\)"):
        Curve(torch.zeros(4), torch.zeros(2, 3))


def test_undefined_samples_stay_nan_and_are_marked():
    curve = Curve(torch.tensor([0.0, 1.0]), torch.tensor([[1.0, torch.nan], [1.0, 0.0]]))
    assert curve.undefined.tolist() == [True, False]
    assert curve.auc().isnan().tolist() == [True, False]


def test_a_curve_cannot_be_changed():
    curve = Curve(torch.tensor([0.0, 1.0]), torch.ones(1, 2), settings={"score": "logit"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        curve.values = torch.zeros(1, 2)
    with pytest.raises(TypeError):
        curve.settings["score"] = "accuracy"
