"""Numbers per layer and head: colours, marks of the best heads, and what is beside them."""

import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle

from xattn import viz
from xattn.errors import ArgumentError

IMAGE = torch.rand(3, 24, 24, generator=torch.Generator().manual_seed(0))
LAMBDA2 = torch.tensor([[0.1, 0.9, 0.3], [0.8, 0.2, 0.5]])
ATTENTION = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))


def marks(ax):
    return [(p.get_x() + 0.5, p.get_y() + 0.5) for p in ax.patches if isinstance(p, Rectangle)]


def test_every_head_is_in_its_place_on_one_scale_from_0_to_1():
    ax = viz.lambda2_heatmap(LAMBDA2).axes[0]
    assert np.asarray(ax.images[0].get_array()) == pytest.approx(LAMBDA2.numpy())
    assert (ax.images[0].norm.vmin, ax.images[0].norm.vmax) == (0, 1)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("head", "layer")
    assert {t.get_position(): t.get_text() for t in ax.texts}[(1, 0)] == "0.90"
    assert marks(ax) == []


def test_the_largest_are_marked_and_their_attention_is_beside_them():
    figure = viz.lambda2_heatmap(LAMBDA2, ATTENTION, IMAGE, best=2)
    assert marks(figure.axes[0]) == [(1, 0), (0, 1)]  # (head, layer)
    first, second = [ax for ax in figure.axes if len(ax.images) == 2]
    assert first.get_title() == "1: layer 0, head 1\nλ₂ = 0.90"
    assert second.get_title() == "2: layer 1, head 0\nλ₂ = 0.80"
    assert np.asarray(first.images[1].get_array()) == pytest.approx(ATTENTION[0, 1].numpy())
    assert np.asarray(second.images[1].get_array()) == pytest.approx(ATTENTION[1, 0].numpy())


def test_undefined_heads_are_hatched_and_never_the_best():
    table = LAMBDA2.clone()
    table[0, 1] = float("nan")
    ax = viz.lambda2_heatmap(table, ATTENTION, IMAGE, best=6).axes[0]
    assert len(marks(ax)) == 5
    assert (1, 0) not in marks(ax)
    (hatching,) = ax.collections
    assert hatching.hatches == ["xxxx"]
    assert "NaN" in [t.get_text() for t in ax.texts]


def test_numbers_are_left_out_of_large_tables():
    for figure in (viz.lambda2_heatmap(torch.rand(24, 16)), viz.head_histogram(torch.ones(24, 16))):
        assert len(figure.axes[0].texts) == 0


def test_the_numbers_are_readable_on_their_colours():
    ax = viz.lambda2_heatmap(torch.tensor([[0.0, 1.0]])).axes[0]
    assert [t.get_color() for t in ax.texts] == ["white", "black"]  # on dark blue and on yellow


def test_a_histogram_counts_from_zero():
    ax = viz.head_histogram(torch.tensor([[3, 1], [2, 12]])).axes[0]
    assert np.asarray(ax.images[0].get_array()).tolist() == [[3, 1], [2, 12]]
    assert (ax.images[0].norm.vmin, ax.images[0].norm.vmax) == (0, 12)
    assert [t.get_text() for t in ax.texts] == ["3", "1", "2", "12"]
    assert viz.head_histogram(torch.zeros(2, 2)).axes[0].images[0].norm.vmax == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: viz.lambda2_heatmap(torch.rand(2, 3, 4)),
            r"lambda2: expected \(layers, heads\), got shape \(2, 3, 4\)",
        ),
        (lambda: viz.lambda2_heatmap(2 * LAMBDA2), r"lambda2: expected moduli in 0\.\.1, got 0\.2 to 1\.8"),
        (lambda: viz.lambda2_heatmap(LAMBDA2, ATTENTION), "image: attention and image go together"),
        (lambda: viz.lambda2_heatmap(LAMBDA2, image=IMAGE), "attention: attention and image go together"),
        (lambda: viz.lambda2_heatmap(LAMBDA2, ATTENTION[:1], IMAGE), r"attention: expected \(2, 3, 'h', 'w'\)"),
        (lambda: viz.lambda2_heatmap(LAMBDA2, ATTENTION, IMAGE, best=-1), "best: expected zero or more"),
        (lambda: viz.head_histogram(torch.zeros(3)), r"counts: expected \(layers, heads\)"),
        (lambda: viz.head_histogram(-torch.ones(2, 2)), "counts: expected finite, non-negative"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()
