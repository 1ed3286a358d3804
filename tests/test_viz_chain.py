"""The graph of a chain: discs, arrows, loops, and what is left out."""

import numpy as np
import pytest
import torch
from matplotlib.patches import Circle, FancyArrowPatch

from xattn import markov, viz
from xattn.errors import ArgumentError

TWO = torch.tensor([[0.9, 0.1], [0.3, 0.7]])  # stationary (3/4, 1/4)
CIRCLE = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.96, 0.04, 0.0]])


def discs(ax):
    return [patch for patch in ax.patches if isinstance(patch, Circle)]


def arrows(ax):
    return [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]


def texts(ax):
    return [text.get_text() for text in ax.texts]


def test_area_is_stationary_mass():
    (ax,) = viz.chain_graph(TWO, ["a", "b"]).axes
    first, second = discs(ax)
    assert (first.radius / second.radius) ** 2 == pytest.approx(3, rel=1e-4)
    assert texts(ax)[-2:] == ["a\n0.75", "b\n0.25"]
    assert np.allclose(first.center, (0, 1))
    assert np.allclose(second.center, (0, -1))  # clockwise from the top


def test_other_sizes_can_be_given():
    (ax,) = viz.chain_graph(TWO, mass=[1.0, 4.0]).axes
    first, second = discs(ax)
    assert second.radius / first.radius == pytest.approx(2)
    assert texts(ax)[-2:] == ["0\n0.20", "1\n0.80"]


def test_an_arrow_per_strong_step_thicker_the_more_probable():
    (ax,) = viz.chain_graph(CIRCLE, threshold=0.05).axes
    drawn = arrows(ax)
    assert len(drawn) == 3
    assert drawn[0].get_linewidth() == drawn[1].get_linewidth() > drawn[2].get_linewidth()
    assert texts(ax)[:3] == ["1", "1", "0.96"]
    assert "1 steps below 0.05 are not drawn" in ax.get_xlabel()
    (whole,) = viz.chain_graph(CIRCLE, threshold=0).axes
    assert len(arrows(whole)) == 4  # impossible steps are no arrows
    assert "not drawn" not in whole.get_xlabel()


def test_arrows_run_between_their_discs():
    (ax,) = viz.chain_graph(CIRCLE).axes
    places = [disc.center for disc in discs(ax)]
    ends = [arrow._posA_posB for arrow in arrows(ax)]
    assert ends == [[places[0], places[1]], [places[1], places[2]], [places[2], places[0]]]


def test_both_ways_are_seen_and_loops_stand_outside():
    figure = viz.chain_graph(TWO)
    figure.draw_without_rendering()
    (ax,) = figure.axes
    loops = [arrow for arrow in arrows(ax) if arrow._posA_posB is None]
    assert len(loops) == 2
    for loop, disc in zip(loops, discs(ax), strict=True):
        tip = loop._path_original.vertices[1:3].mean(0)
        assert np.linalg.norm(tip) > np.linalg.norm(disc.center) + disc.radius  # the middle of the circle is (0, 0)
    there, back = [np.array(t.get_position()) for t in ax.texts if t.get_text() in ("0.1", "0.3")]
    assert there == pytest.approx(-back)  # the two bend to opposite sides
    assert abs(there[0]) > 0.1


def test_a_state_without_mass_is_dashed_and_named_beside():
    chain = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]])
    (ax,) = viz.chain_graph(chain, ["a", "b", "$c$"]).axes
    assert [disc.get_linestyle() in ("--", "dashed") for disc in discs(ax)] == [False, False, True]
    x, y = ax.texts[-1].get_position()
    assert np.hypot(x - discs(ax)[2].center[0], y - discs(ax)[2].center[1]) > discs(ax)[2].radius
    assert texts(ax)[-1] == "\\$c\\$\n0.00"


def test_metastable_sets_have_colours():
    chain = torch.block_diag(torch.full((2, 2), 0.5), torch.full((2, 2), 0.5)) * 0.98 + 0.005
    groups = markov.diagnose(chain).metastable
    (ax,) = viz.chain_graph(chain, groups=groups).axes
    colours = [disc.get_facecolor() for disc in discs(ax)]
    assert colours[0] == colours[1] != colours[2] == colours[3]


def test_positions_probabilities_and_rows_that_do_not_sum_to_one():
    (ax,) = viz.chain_graph(TWO * 1.005, positions=[(0, 0), (3, 0)], probabilities=False).axes
    assert [tuple(disc.center) for disc in discs(ax)] == [(0, 0), (3, 0)]
    assert len(ax.texts) == 2
    assert "0.9" in texts(viz.chain_graph(TWO * 1.005).axes[0])
    (many,) = viz.chain_graph(torch.full((8, 8), 1 / 8)).axes
    assert len(arrows(many)) == 64
    assert len(many.texts) == 8


def test_a_single_state():
    (ax,) = viz.chain_graph(torch.ones(1, 1)).axes
    assert len(discs(ax)) == len(arrows(ax)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": ["a"]}, r"labels: expected one per state \(2\), got 1"),
        ({"threshold": 5}, r"threshold: expected a number in 0\.\.1, got 5"),
        ({"mass": [1.0]}, r"mass: expected one number per state \(2,\), got shape \(1,\)"),
        ({"mass": [0.0, 0.0]}, "mass: expected finite, non-negative numbers, not all zero"),
        ({"groups": [1, 2, 3]}, "groups: expected one number per state"),
        ({"positions": [1, 2]}, r"positions: expected finite \(2, 2\), got shape \(2,\)"),
        ({"positions": [(1, 2), (1, 2)]}, "positions: expected different places"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ArgumentError, match=message):
        viz.chain_graph(TWO, **options)


@pytest.mark.parametrize("chain", [torch.rand(2, 3), torch.eye(41), torch.ones(3, 3, 3)])
def test_what_is_no_small_chain_is_refused(chain):
    with pytest.raises(ArgumentError, match=r"chain: expected \(N, N\) with 1 <= N <= 40, got shape"):
        viz.chain_graph(chain)
