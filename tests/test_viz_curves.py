"""Curves with bands and the critical-difference figure: what is drawn where."""

import numpy as np
import pytest
import torch

from xattn import viz
from xattn.errors import ArgumentError
from xattn.evaluation import Curve
from xattn.evaluation.stats import Ranking, rank_methods
from xattn.viz._lines import COLOURS, mean_band

X = np.array([0.0, 0.5, 1.0])
VALUES = np.random.default_rng(1).random((50, 3))


def band(ax, place=0):
    """Ends of a drawn band at each x."""
    points = ax.collections[place].get_paths()[0].vertices
    return np.array(
        [[points[np.isclose(points[:, 0], x), 1].min(), points[np.isclose(points[:, 0], x), 1].max()] for x in X]
    ).T


def test_the_line_is_the_mean_and_the_band_its_interval():
    (ax,) = viz.curves({"a": (X, VALUES)}).axes
    assert ax.lines[0].get_xdata() == pytest.approx(X)
    assert ax.lines[0].get_ydata() == pytest.approx(VALUES.mean(0))
    assert band(ax) == pytest.approx(np.stack(mean_band(VALUES)))


def test_bands_hold_the_mean_and_narrow_with_more_curves_and_less_confidence():
    low, high = mean_band(VALUES)
    assert (low < VALUES.mean(0)).all()
    assert (high > VALUES.mean(0)).all()
    for other in (mean_band(VALUES[:10]), mean_band(VALUES, confidence=0.999)):
        assert (other[1] - other[0] > high - low).all()
    error = VALUES.std(0) / np.sqrt(50)
    np.testing.assert_allclose(high - low, 2 * 1.96 * error, rtol=0.15)
    assert np.array_equal(mean_band(VALUES), (low, high))


def test_many_curves_are_drawn_in_parts_with_the_same_law(monkeypatch):
    whole = mean_band(VALUES)
    monkeypatch.setattr("xattn.viz._lines._AT_ONCE", 150)  # three resamples at a time
    assert np.stack(mean_band(VALUES)) == pytest.approx(np.stack(whole))


def test_curve_objects_and_undefined_samples():
    values = torch.tensor([[1.0, 0.5, 0.0], [0.5, 0.25, 0.0], [float("nan")] * 3])
    curve = Curve(torch.tensor(X), values)
    nothing = Curve(torch.tensor(X), values[2:])
    (ax,) = viz.curves({"a": curve, "b": nothing}).axes
    assert ax.lines[0].get_ydata() == pytest.approx([0.75, 0.375, 0])
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["a (1 of 3 undefined)", "b (1 of 1 undefined)"]


def test_one_curve_has_no_band():
    (ax,) = viz.curves({"a": (X, VALUES[:1])}).axes
    assert len(ax.collections) == 0
    assert ax.lines[0].get_ydata() == pytest.approx(VALUES[0])


def test_a_method_looks_the_same_in_every_figure_of_a_family():
    names = [f"method {i}" for i in range(28)]
    (alone,) = viz.curves({"method 3": (X, VALUES[:1])}, names=names).axes
    (family,) = viz.curves(dict.fromkeys(names, (X, VALUES[:1]))).axes
    looks = [(line.get_color(), str(line._dash_pattern)) for line in family.lines]
    assert looks[3] == (alone.lines[0].get_color(), str(alone.lines[0]._dash_pattern))
    assert len(set(looks)) == 28
    assert {colour for colour, _ in looks} == set(COLOURS)


RANKING = Ranking(("good", "fair", "poor"), (1.2, 1.9, 2.9), 0.8, 0.01, 20, 0, 0.05)


def test_dots_at_the_ranks_bars_over_what_is_not_told_apart():
    (ax,) = viz.critical_difference(RANKING).axes
    dots = [float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() == "o"]
    assert dots == list(RANKING.ranks)
    bars = [list(line.get_xdata()) for line in ax.lines if line.get_linewidth() == 3]
    assert bars == [[1.2, 1.9]]
    texts = [text.get_text().strip() for text in ax.texts]
    assert texts == ["1.20  good", "1.90  fair", "2.90  poor", "critical difference 0.80"]
    (ruler,) = [line for line in ax.lines if line.get_marker() == "|"]
    assert np.ptp(ruler.get_xdata()) == pytest.approx(0.8)


def test_bars_of_overlapping_groups_do_not_lie_on_each_other():
    scores = {str(i): np.random.default_rng(i).random(10) + i / 12 for i in range(6)}
    ranking = rank_methods(scores)
    assert len(ranking.cliques()) > 1
    (ax,) = viz.critical_difference(ranking).axes
    heights = [line.get_ydata()[0] for line in ax.lines if line.get_linewidth() == 3]
    assert len(set(heights)) == len(ranking.cliques())
    left, right = ax.get_xlim()
    assert left <= 1
    assert right >= 1 + ranking.critical_difference


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: viz.curves({}), "curves: expected at least one curve"),
        (
            lambda: viz.curves({"a": VALUES}),
            r"curves\['a'\]: expected a Curve or a pair \(fractions, values\), got ndarray",
        ),
        (
            lambda: viz.curves({"a": (X, VALUES[0])}),
            r"curves\['a'\]: expected fractions \(S,\) and values \(n, S\), got shapes \(3,\) and \(3,\)",
        ),
        (lambda: viz.curves({"a": (X[:2], VALUES)}), r"got shapes \(2,\) and \(50, 3\)"),
        (lambda: viz.curves({"a": (X * np.nan, VALUES)}), r"curves\['a'\]: expected finite fractions"),
        (
            lambda: viz.curves({"a": (X, VALUES)}, names=["b"]),
            r"names: expected all methods among them, \['a'\] are not",
        ),
        (
            lambda: viz.curves({"a": (X, VALUES)}, confidence=95),
            "confidence: expected a number between 0 and 1, got 95",
        ),
        (lambda: viz.curves({"a": (X, VALUES)}, resamples=0), "resamples: expected a positive number, got 0"),
        (
            lambda: viz.critical_difference(rank_methods({"a": [np.nan], "b": [1.0]})),
            "ranking: expected finite ranks; no sample",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()
