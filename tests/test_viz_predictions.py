"""Prediction maps next to attention, and statistics of patch predictions by layer."""

import numpy as np
import pytest
import tiny_models as tiny
import torch

from xattn import viz
from xattn.attributions.prediction_analysis import layer_statistics
from xattn.errors import ArgumentError

IMAGE = torch.rand(3, 24, 24, generator=torch.Generator().manual_seed(0))
RNG = np.random.default_rng(0)
CAT, DOG, LOOKED = RNG.random((2, 3, 3)), 2 * RNG.random((2, 3, 3)), RNG.random((2, 3, 3)) / 50


def draw(**options):
    return viz.prediction_layers(IMAGE, {"cat": CAT, "dog": DOG}, LOOKED, **options)


def test_a_row_per_class_and_the_attention_last():
    axes = [ax for ax in draw().axes if len(ax.images) == 2]
    drawn = np.stack([np.asarray(ax.images[1].get_array()) for ax in axes])
    assert drawn == pytest.approx(np.concatenate([CAT, DOG, LOOKED]))
    assert [ax.get_title() for ax in axes] == ["layer 0", "layer 1", "", "", "", ""]
    assert [ax.get_ylabel() for ax in axes] == ["cat", "", "dog", "", "attention", ""]


def test_classes_share_a_scale_that_the_attention_does_not():
    figure = draw()
    ends = [(ax.images[1].norm.vmin, ax.images[1].norm.vmax) for ax in figure.axes if len(ax.images) == 2]
    both = np.stack([CAT, DOG])
    assert set(ends[:4]) == {(both.min(), both.max())}
    assert set(ends[4:]) == {(LOOKED.min(), LOOKED.max())}
    figure.draw_without_rendering()
    bars = [[t.get_text() for t in ax.get_yticklabels()] for ax in figure.axes if ax.get_label() == "<colorbar>"]
    assert bars == [[f"{m.min():.3g}", f"{m.max():.3g}"] for m in (both, LOOKED)]


def test_each_map_on_its_own_scale():
    figure = draw(scale="each")
    ends = [(ax.images[1].norm.vmin, ax.images[1].norm.vmax) for ax in figure.axes if len(ax.images) == 2]
    assert ends == [(m.min(), m.max()) for m in (*CAT, *DOG, *LOOKED)]
    assert sum(ax.get_label() == "<colorbar>" for ax in figure.axes) == 6
    assert "Each panel has its own colour scale" in figure.get_supxlabel()


def test_logits_diverge_around_zero_in_all_panels():
    figure = viz.prediction_layers(IMAGE, {"cat": CAT - 0.5, "dog": DOG})
    images = [ax.images[1] for ax in figure.axes if len(ax.images) == 2]
    assert {image.get_cmap().name for image in images} == {viz.DIVERGING}
    assert {(image.norm.vmin, image.norm.vmax) for image in images} == {(-DOG.max(), DOG.max())}


def test_undefined_and_constant_maps_are_said():
    maps = CAT.copy()
    maps[0], maps[1, 0, 0] = 0.1, np.nan
    figure = viz.prediction_layers(IMAGE, {"cat": maps})
    assert [t.get_text() for ax in figure.axes for t in ax.texts] == ["constant map: 0.1", "1 NaN"]


def test_the_bar_has_its_ends_whichever_map_is_undefined():
    figure = viz.prediction_layers(IMAGE, {"gone": CAT * np.nan, "dog": DOG})
    figure.draw_without_rendering()
    (bar,) = [ax for ax in figure.axes if ax.get_label() == "<colorbar>"]
    assert [t.get_text() for t in bar.get_yticklabels()] == [f"{DOG.min():.3g}", f"{DOG.max():.3g}"]


def test_statistics_are_means_over_samples_by_layer():
    model, x = tiny.timm_vit(depth=3), tiny.images(4)
    statistics = layer_statistics(model, x)
    figure = viz.layer_curves(statistics)
    assert [ax.get_title() for ax in figure.axes] == list(statistics)
    for ax, values in zip(figure.axes, statistics.values(), strict=True):
        assert ax.lines[0].get_xdata() == pytest.approx(np.arange(3))
        assert ax.lines[0].get_ydata() == pytest.approx(values.mean(0).numpy())
        band = ax.collections[0].get_paths()[0].vertices[:, 1]
        assert values.min() - 1e-6 <= band.min() <= values.mean(0).min()
        assert values.mean(0).max() <= band.max() <= values.max() + 1e-6


def test_undefined_samples_are_left_out_and_counted():
    values = np.array([[1.0, 2.0], [3.0, 4.0], [np.nan, 0.0]])
    (ax,) = viz.layer_curves({"margin": values}).axes
    assert ax.get_title() == "margin (1 of 3 undefined)"
    assert ax.lines[0].get_ydata().tolist() == [2, 3]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: viz.prediction_layers(IMAGE, {}), "predictions: expected the maps of at least one class"),
        (
            lambda: viz.prediction_layers(IMAGE, {"cat": CAT[0]}),
            r"predictions\['cat'\]: expected \(layers, h, w\), got shape \(3, 3\)",
        ),
        (
            lambda: viz.prediction_layers(IMAGE, {"cat": CAT}, LOOKED[:1]),
            r"predictions: expected as many layers .* got \[1, 2\]",
        ),
        (lambda: viz.prediction_layers(IMAGE, {"cat": CAT}, LOOKED[0]), r"attention: expected \(layers, h, w\)"),
        (lambda: draw(scale="all"), "scale: expected"),
        (lambda: viz.layer_curves({}), "statistics: expected at least one"),
        (
            lambda: viz.layer_curves({"margin": np.zeros(3)}),
            r"statistics\['margin'\]: expected \(B, layers\), got shape \(3,\)",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()
