"""The figures of the page and of the report."""

from collections.abc import Mapping, Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from xattn import viz
from xattn.app.judge import ORDERS, MapCurve
from xattn.app.walk import BOUNCES, Walk
from xattn.explanation import Explanation
from xattn.layout import TokenLayout
from xattn.viz._panels import PlainFigure

STRIP = (0, 1, 2, 3, 5, 10, BOUNCES)
"""Bounces that the report shows, before the limit."""

_WORDS = {
    "positive": "most relevant first: a low curve is good",
    "negative": "least relevant first: a high curve is good",
}


def maps_figure(explanation: Explanation) -> Figure:
    """The picture and one overlay per method."""
    panels = len(explanation.maps) + 1
    return explanation.plot(columns=min(panels, 4) if panels in (4, 7, 8) or panels < 4 else 5)


def frame_figure(image: Tensor, film: Tensor, n: int) -> Figure:
    """One frame of a film."""
    return _single(image, film[n], frame_name(n))


def film_figure(image: Tensor, film: Tensor, walk: Walk, layout: TokenLayout) -> Figure:
    """Some frames of a film."""
    return viz.bounce_film(image, film[:-1], film[-1], steps=STRIP, title=walk_name(walk, layout), columns=5)


def attention_figure(image: Tensor, attention: Tensor, walk: Walk, layout: TokenLayout) -> Figure:
    """What the start pays to the patches, or what each pays to it."""
    title = "one step of this head" if walk.head is not None else "one step, mean of the heads"
    return _single(image, layout.patches(attention), title)


def prediction_figure(image: Tensor, maps: Mapping[str, Tensor], attention: Tensor, name: str) -> Figure:
    """Prediction maps of all layers on one scale, and below them where each layer looked."""
    title = f"probability of {name}, asked at each patch; attention of where the answer is read"
    return viz.prediction_layers(image, {name: torch.stack(list(maps.values()))}, attention, title=title)


def curves_figure(curves: Sequence[MapCurve], name: str) -> Figure:
    """Probability of the class by the share of patches removed, both orders side by side."""
    figure = PlainFigure(figsize=(9.6, 3.9), layout="constrained")
    methods = list(dict.fromkeys(curve.method for curve in curves))
    panels = figure.subplots(1, len(ORDERS), sharey=True)
    for axes, order in zip(panels, ORDERS, strict=True):
        found = {c.method: (c.fractions, c.values[None]) for c in curves if c.order == order}
        xlabel, ylabel = "share of patches removed", f"probability of {name}" if axes is panels[0] else ""
        viz.curves(found, ax=axes, names=methods, title=_WORDS[order], xlabel=xlabel, ylabel=ylabel)
        axes.set(ylim=(-0.02, 1.02), xlim=(0, 1))
        axes.get_legend().remove()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, handlelength=3)
    return figure


def _single(image: Tensor, relevance: Tensor, title: str) -> Figure:
    """One overlay, with room for its title and its colour bar whatever the map is, so that films do not jump."""
    height, width = image.shape[-2:]
    axes = PlainFigure(figsize=(4.2, 4.2 * height / width + 0.8), layout="constrained").add_subplot()
    return viz.overlay(image, relevance, ax=axes, title=title)


def frame_name(n: int) -> str:
    """Name of a frame of a film."""
    if n > BOUNCES:
        return "limit (TokenRank)"
    return "start" if n == 0 else f"after {n} bounce{'s' if n > 1 else ''}"


def walk_name(walk: Walk, layout: TokenLayout) -> str:
    """One line on where a walk starts and what it follows."""
    head = "mean of the heads" if walk.head is None else f"head {walk.head}"
    return f"from {token_name(walk.start, layout)}, layer {walk.layer}, {head}, {walk.direction}"


def token_name(token: int | None, layout: TokenLayout) -> str:
    """A token in words, rows and columns counted from 0."""
    if token is None:
        return "where the answer is read" if layout.cls_index is None else "the class token"
    row, column = divmod(token - layout.num_prefix, (layout.grid or (1, 1))[1])
    return f"patch (row {row}, column {column})"
