"""Intervals and tests: against scipy, coverage in a simulation, and answers where there is nothing to compute."""

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xattn.errors import ArgumentError
from xattn.evaluation import segmentation_scores, segmentation_totals
from xattn.evaluation import stats as xs


def sample(n=40, seed=0, scale=1.0):
    return np.random.default_rng(seed).gamma(2.0, scale, n)


# -- intervals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ours", "theirs"), [("bca", "BCa"), ("percentile", "percentile")])
def test_interval_of_the_mean_is_scipy_s(ours, theirs):
    x = sample()
    found = xs.mean_interval(x, method=ours, resamples=999, seed=3)
    expected = scipy.stats.bootstrap(
        (x,), np.mean, n_resamples=999, method=theirs, rng=np.random.default_rng(3)
    ).confidence_interval
    assert found.estimate == pytest.approx(x.mean())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-2)
    assert found.method == ours


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    truth, covered = 2.0, 0
    for seed in range(100):
        found = xs.mean_interval(sample(40, seed), resamples=300, confidence=0.9)
        covered += found.low <= truth <= found.high
    assert 82 <= covered <= 97


def test_equal_seeds_give_equal_intervals():
    a, b, c = (xs.mean_interval(sample(), resamples=200, seed=seed) for seed in (1, 1, 2))
    assert a == b
    assert a != c


def test_constant_values_have_an_interval_of_width_zero():
    assert xs.mean_interval([0.25] * 10) == xs.Interval(0.25, 0.25, 0.25, 10, 0, "percentile", 0.95)


def test_undefined_values_are_left_out_and_counted():
    x = sample()
    with_gaps = np.concatenate([x, [np.nan] * 3])
    found, plain = xs.mean_interval(torch.from_numpy(with_gaps), resamples=200), xs.mean_interval(x, resamples=200)
    assert (found.low, found.high, found.n, found.undefined) == (plain.low, plain.high, 40, 3)
    assert "3 undefined" in str(found)


@pytest.mark.parametrize("values", [[], [np.nan], [0.5], [np.nan, 0.5]])
def test_fewer_than_two_images_have_no_interval(values):
    found = xs.mean_interval(values)
    assert np.isnan([found.low, found.high]).all()
    assert found.n == np.sum(~np.isnan(np.array(values, float)))


def test_accuracies_near_one_fall_back_to_percentiles_without_a_warning():
    found = xs.mean_interval([1.0] * 30 + [0.0], resamples=200)
    assert found.low <= found.estimate <= found.high <= 1.0


def masks(n=12):
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand(n, 10, 10, generator=generator) < 0.3).long()
    relevance = mask + torch.rand(n, 10, 10, generator=generator)
    return segmentation_scores(relevance, mask, threshold=0.7)


def test_miou_interval_draws_whole_images():
    scores = masks()
    counts = [scores[name].numpy() for name in ("tp", "fp", "fn", "tn")]
    found = xs.miou_interval(*counts, resamples=400, method="percentile", seed=1)
    assert found.estimate == pytest.approx(segmentation_totals(scores)["miou_dataset"])
    rng, values = np.random.default_rng(0), []
    for _ in range(400):
        drawn = rng.integers(0, 12, 12)
        tp, fp, fn, tn = (c[drawn].sum() for c in counts)
        values.append((tp / (tp + fp + fn) + tn / (tn + fp + fn)) / 2)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])), abs=0.01)
    bca = xs.miou_interval(*counts, resamples=400)
    assert bca.method == "bca"
    assert bca.low < bca.estimate < bca.high


def test_miou_interval_of_equal_images_and_of_one_class():
    same = xs.miou_interval([3] * 5, [1] * 5, [0] * 5, [6] * 5)
    assert same.low == same.high == pytest.approx((3 / 4 + 6 / 7) / 2)
    background = xs.miou_interval([0] * 5, [0] * 5, [0] * 5, [6, 7, 8, 9, 10])
    assert (background.estimate, background.low, background.high) == (1, 1, 1)


# -- paired comparisons -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_compare_is_wilcoxon(alternative):
    a, b = sample(30, 1), sample(30, 2)
    found = xs.compare(a, b, alternative=alternative)
    assert found.p_value == pytest.approx(scipy.stats.wilcoxon(a, b, alternative=alternative).pvalue)
    assert found.difference == pytest.approx((a - b).mean())


def test_a_method_against_itself_is_not_significant():
    found = xs.compare(sample(), sample())
    assert (found.p_value, found.effect, found.difference) == (1.0, 0.0, 0.0)
    table = xs.compare_all({"a": sample(), "b": sample(), "c": sample() + 5})
    by_pair = {(r.first, r.second): r for r in table}
    assert by_pair["a", "b"].p_adjusted == 1.0
    assert by_pair["a", "c"].p_adjusted < 1e-6


def test_false_alarms_are_as_rare_as_the_level():
    alarms = sum(xs.compare(sample(25, 2 * s), sample(25, 2 * s + 1)).p_value < 0.05 for s in range(200))
    assert alarms <= 20


def test_effect_is_the_rank_biserial_correlation():
    assert xs.compare([2, 3, 4], [1, 1, 1]).effect == 1
    assert xs.compare([1, 1, 1], [2, 3, 4]).effect == -1
    assert xs.compare([1.0, 5.0, 1.0], [2.0, 3.0, 4.0]).effect == pytest.approx((2 - 1 - 3) / 6)


def test_undefined_samples_are_left_out_of_their_pair_only():
    a, b, c = sample(20, 1), sample(20, 2), sample(20, 3)
    a[3], b[5], b[6] = np.nan, np.nan, np.nan
    results = {(r.first, r.second): r for r in xs.compare_all({"a": a, "b": b, "c": c})}
    assert {pair: (r.n, r.undefined) for pair, r in results.items()} == {
        ("a", "b"): (17, 3),
        ("a", "c"): (19, 1),
        ("b", "c"): (18, 2),
    }
    keep = [i for i in range(20) if i not in (3, 5, 6)]
    assert results["a", "b"].p_value == xs.compare(a[keep], b[keep]).p_value


def test_nothing_left_to_compare():
    found = xs.compare([np.nan], [1.0])
    assert np.isnan([found.p_value, found.effect, found.difference]).all()
    assert (found.n, found.undefined) == (0, 1)


def test_against_one_reference():
    scores = {"a": sample(20, 1), "b": sample(20, 2), "control": sample(20, 3)}
    results = xs.compare_all(scores, reference="control")
    assert [(r.first, r.second) for r in results] == [("a", "control"), ("b", "control")]
    with pytest.raises(ArgumentError, match="reference"):
        xs.compare_all(scores, reference="none")


def test_holm_by_hand():
    assert xs.holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert xs.holm([0.5, np.nan, 0.9]).tolist() == pytest.approx([1.0, np.nan, 1.0], nan_ok=True)
    assert xs.holm([]).tolist() == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_order_and_never_lowers(p):
    adjusted = xs.holm(p)
    assert (adjusted >= np.array(p)).all()
    assert (adjusted <= 1).all()
    assert (np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0).all()
    assert (adjusted <= np.minimum(np.array(p) * len(p), 1) + 1e-15).all()  # never above Bonferroni


# -- ranks ----------------------------------------------------------------------------------------------------------


def test_ranks_and_friedman():
    scores = {"a": sample(30, 1) + 2, "b": sample(30, 2), "c": sample(30, 3)}
    found = xs.rank_methods(scores)
    table = np.stack(list(scores.values()), 1)
    expected = dict(zip(scores, scipy.stats.rankdata(-table, axis=1).mean(0), strict=True))
    assert found.names[0] == "a"
    assert dict(zip(found.names, found.ranks, strict=True)) == pytest.approx(expected)
    assert found.p_value == pytest.approx(scipy.stats.friedmanchisquare(*table.T).pvalue)
    lower = xs.rank_methods(scores, higher_is_better=False)
    assert lower.names == found.names[::-1]


def test_friedman_with_ties_is_scipy_s():
    table = np.random.default_rng(0).integers(0, 3, (25, 4)).astype(float)
    found = xs.rank_methods({str(i): column for i, column in enumerate(table.T)})
    assert found.p_value == pytest.approx(scipy.stats.friedmanchisquare(*table.T).pvalue)


def test_critical_difference_of_the_literature():
    # Demsar (2006): q = 2.569 for four methods at 0.05; on 14 data sets the difference is 1.25.
    scores = {name: sample(14, i) for i, name in enumerate("abcd")}
    assert xs.rank_methods(scores).critical_difference == pytest.approx(2.569 * np.sqrt(4 * 5 / (6 * 14)), abs=2e-3)


def test_cliques_join_what_is_not_told_apart():
    ranking = xs.Ranking(("a", "b", "c", "d"), (1.0, 1.5, 2.4, 3.9), 1.0, 0.0, 10, 0, 0.05)
    assert ranking.cliques() == [("a", "b"), ("b", "c")]
    assert xs.Ranking(("a", "b"), (1.0, 2.0), 0.5, 0.0, 10, 0, 0.05).cliques() == []
    assert xs.Ranking(("a", "b", "c"), (1.9, 2.0, 2.1), 1.0, 0.0, 10, 0, 0.05).cliques() == [("a", "b", "c")]


def test_degenerate_rankings():
    equal = xs.rank_methods({"a": [1.0, 2.0], "b": [1.0, 2.0]})
    assert (equal.ranks, equal.p_value) == ((1.5, 1.5), 1.0)
    gaps = xs.rank_methods({"a": [1.0, np.nan, 3.0], "b": [0.0, 1.0, 2.0]})
    assert (gaps.n, gaps.undefined, gaps.names) == (2, 1, ("a", "b"))
    empty = xs.rank_methods({"a": [np.nan], "b": [0.0]})
    assert (empty.n, empty.undefined) == (0, 1)
    assert np.isnan(empty.p_value)


def test_over_seeds():
    values = np.array([[1.0, 3.0], [2.0, np.nan], [3.0, 3.0]])
    mean, deviation = xs.over_seeds(torch.from_numpy(values))
    assert (mean, deviation) == pytest.approx((7 / 3, np.std([2, 2, 3], ddof=1)))
    assert np.isnan(xs.over_seeds(values[:1])[1])


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: xs.mean_interval(np.zeros((2, 2))), "values"),
        (lambda: xs.mean_interval([0.0, 1.0], confidence=95), "confidence"),
        (lambda: xs.mean_interval([0.0, 1.0], method="basic"), "method"),
        (lambda: xs.mean_interval([0.0, 1.0], resamples=0), "resamples"),
        (lambda: xs.miou_interval([1], [1, 2], [1], [1]), "tp"),
        (lambda: xs.compare([1, 2], [1]), "second"),
        (lambda: xs.compare([1, 2], [1, 3], alternative="more"), "alternative"),
        (lambda: xs.rank_methods({"a": [1.0]}), "scores"),
        (lambda: xs.rank_methods({"a": [1.0], "b": [1.0, 2.0]}), "scores"),
        (lambda: xs.rank_methods({"a": [1.0], "b": [1.0]}, alpha=5), "alpha"),
        (lambda: xs.over_seeds(np.zeros(3)), "values"),
    ],
)
def test_wrong_arguments_are_named(call, names):
    with pytest.raises(ArgumentError, match=names):
        call()
