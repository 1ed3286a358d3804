"""Bounce films and TokenRank per layer: which maps are drawn, in which order, and what is said about them."""

import numpy as np
import pytest
import tiny_models as tiny
import torch

from xattn import viz
from xattn.attributions import NBounceAttention, TokenRank
from xattn.errors import ArgumentError

IMAGE = torch.rand(3, 24, 24, generator=torch.Generator().manual_seed(0))
RNG = np.random.default_rng(0)


def film(frames):
    maps = RNG.random((frames, 2, 3))
    return maps / maps.sum((1, 2), keepdims=True)


def panels(figure):
    """Title and map of each panel that has one."""
    drawn = [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]
    return {ax.get_title(): np.asarray(ax.images[1].get_array()) for ax in drawn if len(ax.images) == 2}


def test_every_step_of_a_short_film_and_the_limit():
    frames, limit = film(4), film(1)[0]
    drawn = panels(viz.bounce_film(IMAGE, frames, limit))
    assert [name.split("\n")[0] for name in drawn] == ["start (n = 0)", "n = 1", "n = 2", "n = 3", "limit"]
    for values, expected in zip(drawn.values(), [*frames, limit], strict=True):
        assert values == pytest.approx(expected)


@pytest.mark.parametrize(
    ("frames", "steps", "expected"),
    [
        (7, None, [0, 1, 2, 3, 4, 5, 6]),
        (9, None, [0, 1, 2, 4, 8]),
        (51, None, [0, 1, 2, 4, 8, 16, 32, 50]),
        (51, [0, 50], [0, 50]),
    ],
)
def test_long_films_are_shown_at_doubling_steps(frames, steps, expected):
    names = list(panels(viz.bounce_film(IMAGE, film(frames), steps=steps)))
    assert names == ["start (n = 0)" if n == 0 else f"n = {n}" for n in expected]


def test_the_distance_from_the_limit_is_total_variation():
    frames = np.array([[[1.0, 0.0]], [[0.5, 0.5]], [[0.3, 0.7]]])
    names = list(panels(viz.bounce_film(IMAGE, frames, frames[2])))
    assert names[:3] == [
        "start (n = 0)\n0.70 from the limit",
        "n = 1\n0.20 from the limit",
        "n = 2\n0.00 from the limit",
    ]


def test_no_distance_from_what_is_no_distribution():
    frames = np.array([[[1.0, -1.0]], [[np.nan, 0.5]]])
    assert list(panels(viz.bounce_film(IMAGE, frames, np.ones((1, 2))))) == [
        "start (n = 0)",
        "n = 1",
        "limit\nTokenRank",
    ]


def test_a_start_outside_of_the_patches_is_said():
    frames = np.stack([np.zeros((2, 3)), *film(1)])
    figure = viz.bounce_film(IMAGE, frames)
    start = next(ax for ax in figure.axes if ax.get_title() == "start (n = 0)")
    assert [text.get_text() for text in start.texts] == ["no patch"]
    assert len(start.images) == 1  # the picture, no map


def test_a_shared_scale_reaches_from_the_least_to_the_largest_of_all_steps():
    frames = film(3) * np.array([1, 2, 3])[:, None, None]
    figure = viz.bounce_film(IMAGE, frames, scale="shared")
    norms = [ax.images[1].norm for ax in figure.axes if len(ax.images) == 2]
    assert {(n.vmin, n.vmax) for n in norms} == {(frames.min(), frames.max())}


def test_what_methods_return_is_drawn_as_it_is():
    model, x = tiny.timm_vit(depth=2), tiny.images(1)
    frames = NBounceAttention(model, n=2).film(x)[0]
    limit = TokenRank(model).attribute(x, resolution="patch")[0]
    drawn = list(panels(viz.bounce_film(x[0].sigmoid(), frames, limit)).values())
    assert drawn[0] == pytest.approx(frames[1].numpy())  # the start is the class token
    assert drawn[-1] == pytest.approx(limit.numpy())
    heads = TokenRank(model, layers="all").maps(x)[0]
    drawn = viz.tokenrank_layers(x[0].sigmoid(), heads).axes
    assert np.stack([np.asarray(ax.images[1].get_array()) for ax in drawn]) == pytest.approx(
        heads.flatten(0, 1).numpy()
    )


def test_layers_of_tokenrank_stand_beside_the_picture():
    layers = film(3)
    drawn = panels(viz.tokenrank_layers(IMAGE, layers))
    assert list(drawn) == ["layer 0", "layer 1", "layer 2"]
    assert np.stack(list(drawn.values())) == pytest.approx(layers)


def test_heads_make_a_row_per_layer_and_a_constant_one_is_said():
    maps = RNG.random((2, 3, 2, 2))
    maps[1, 2] = 0.25
    figure = viz.tokenrank_layers(IMAGE, maps)
    assert [ax.get_title() for ax in figure.axes] == ["head 0", "head 1", "head 2", "", "", ""]
    assert [ax.get_ylabel() for ax in figure.axes] == ["layer 0", "", "", "layer 1", "", ""]
    assert [text.get_text() for text in figure.axes[5].texts] == ["constant map: 0.25"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: viz.bounce_film(IMAGE, np.ones((1, 2, 3, 3))),
            r"film: expected one sample \(N \+ 1, h, w\), got shape \(1, 2, 3, 3\)",
        ),
        (
            lambda: viz.bounce_film(IMAGE, np.ones((2, 3, 3)), np.ones((3, 4))),
            r"limit: expected the shape of a frame \(3, 3\), got \(3, 4\)",
        ),
        (lambda: viz.bounce_film(IMAGE, np.ones((2, 3, 3)), steps=[2]), r"steps: expected some of 0\.\.1, got \[2\]"),
        (lambda: viz.bounce_film(IMAGE, np.ones((2, 3, 3)), columns=0), "columns: expected a positive integer"),
        (lambda: viz.tokenrank_layers(IMAGE, np.ones((3, 3))), r"maps: expected \(layers, h, w\) or"),
        (
            lambda: viz.tokenrank_layers(IMAGE, np.ones((2, 3, 2, 2)), columns=2),
            r"columns: expected None or the number of heads \(3\)",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()
