"""What every figure promises: it returns a Figure, draws where it is told, and leaves pyplot alone."""

from types import FunctionType

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure

from xattn import viz
from xattn.errors import ArgumentError
from xattn.evaluation.stats import rank_methods

RNG = np.random.default_rng(0)
IMAGE = torch.rand(3, 12, 12, generator=torch.Generator().manual_seed(0))
MAPS = RNG.random((4, 3, 3))
CHAIN = np.array([[0.5, 0.5], [0.25, 0.75]])
RANKING = rank_methods({"a": [1.0, 2.0, 3.0], "b": [3.0, 2.5, 4.0]})

ONE = {  # figures of one panel
    "overlay": lambda **where: viz.overlay(IMAGE, MAPS[0], **where),
    "curves": lambda **where: viz.curves({"a": ([0, 1], RNG.random((5, 2)))}, **where),
    "critical_difference": lambda **where: viz.critical_difference(RANKING, **where),
    "chain_graph": lambda **where: viz.chain_graph(CHAIN, **where),
    "relevance_layers": lambda **where: viz.relevance_layers({"a": {"block": [1.0, 2.0]}}, **where),
    "head_histogram": lambda **where: viz.head_histogram(np.eye(2), **where),
}
SEVERAL = {  # figures and the number of their panels
    "comparison": (lambda **where: viz.comparison(IMAGE, {"a": MAPS[0], "b": MAPS[1]}, **where), 3),
    "grid": (lambda **where: viz.grid([IMAGE] * 2, [{"a": MAPS[0]}, {"b": MAPS[1]}], **where), 6),
    "bounce_film": (lambda **where: viz.bounce_film(IMAGE, MAPS, MAPS[0], **where), 6),
    "tokenrank_layers": (lambda **where: viz.tokenrank_layers(IMAGE, MAPS[None], **where), 4),
    "lambda2_heatmap": (lambda **where: viz.lambda2_heatmap(np.eye(2), MAPS.reshape(2, 2, 3, 3), IMAGE, **where), 4),
    "prediction_layers": (lambda **where: viz.prediction_layers(IMAGE, {"a": MAPS, "b": MAPS}, MAPS, **where), 12),
    "layer_curves": (lambda **where: viz.layer_curves({"a": MAPS[0], "b": MAPS[1]}, **where), 2),
}
TEXT = {"tokens", "token_grid", "tokens_html"}  # they make their own page
ALL = ONE | {name: draw for name, (draw, _) in SEVERAL.items()}

one = pytest.mark.parametrize("name", ONE)
several = pytest.mark.parametrize("name", SEVERAL)


def test_the_table_is_complete():
    public = {name for name, value in vars(viz).items() if isinstance(value, FunctionType)}
    assert public - {"as_picture"} == set(ALL) | TEXT


@pytest.mark.parametrize("name", ALL)
def test_a_titled_figure_is_returned_and_can_be_saved(name):
    before = pyplot.get_fignums()
    figure = ALL[name](title="a title")
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    assert pyplot.get_fignums() == before
    titles = [figure.get_suptitle(), *(ax.get_title(loc) for ax in figure.axes for loc in ("left", "center"))]
    assert "a title" in titles


@one
def test_one_panel_is_drawn_into_the_given_axes(name):
    figure = Figure()
    other, ax = figure.subplots(1, 2)
    assert ONE[name](ax=ax) is figure
    assert ax.has_data()
    assert not other.has_data()


@several
def test_panels_are_drawn_into_the_given_axes_in_order(name):
    draw, count = SEVERAL[name]
    figure = Figure(figsize=(20, 10))
    axes = figure.subplots(2, count // 2) if count % 2 == 0 else figure.subplots(1, count)  # an array, any shape
    assert draw(axes=axes) is figure
    own = [ax.get_title() for ax in draw().axes if ax.get_label() != "<colorbar>"]
    assert [ax.get_title() for ax in np.ravel(axes)] == own[:count]


@several
def test_too_few_axes_and_a_title_with_them_are_refused(name):
    draw, count = SEVERAL[name]
    axes = list(Figure().subplots(1, count + 1))
    with pytest.raises(ArgumentError, match=f"axes: expected {count}, one per panel, got {count + 1}"):
        draw(axes=axes)
    with pytest.raises(ArgumentError, match="title: is written above a new figure"):
        draw(axes=axes[:count], title="a title")


def test_names_are_no_formulas_and_powers_of_ten_are():
    figure = viz.relevance_layers({"a$_$": {"block$^$": [1.0, 200.0]}}, title="$_$")
    figure.draw_without_rendering()
    (ax,) = figure.axes
    assert all(label.get_parse_math() for label in ax.get_yticklabels())
    assert any("10^{2}" in label.get_text() for label in ax.get_yticklabels())
    names = [*ax.get_xticklabels(), *ax.get_legend().get_texts()]
    assert not any(text.get_parse_math() for text in names)
