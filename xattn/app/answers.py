"""What the page shows of a result: new values of its parts."""

import html
from collections.abc import Sequence
from typing import Any, TypeAlias

import gradio as gr
from torch import Tensor

from xattn.app import drawing, figures, report
from xattn.app.judge import ORDERS, MapCurve
from xattn.app.page import MEAN, Parts
from xattn.app.viewer import Seen, Steps, Viewer
from xattn.app.walk import Survey
from xattn.errors import UnsupportedModelError

Update: TypeAlias = dict[Any, Any]
"""New values by component."""


class Answers:
    """Results as values of the page's parts."""

    def __init__(self, viewer: Viewer, parts: Parts) -> None:
        self._viewer = viewer
        self._parts = parts

    def explained(self, picture: Tensor, seen: Seen) -> Update:
        """Predictions and maps."""
        p, explanation = self._parts, seen.explanation
        with self._viewer.shelf.alone():
            figure = drawing.as_html(figures.maps_figure(explanation), f"Maps: {', '.join(explanation.maps)}")
        return {
            p.message: "",
            p.picture: picture,
            p.seen: seen,
            p.curves: [],
            p.judged: "",
            p.progress: "",
            p.says: _bars(seen),
            p.target: gr.update(choices=self._viewer.classes(seen), value=explanation.target),
            p.maps: figure + report.notes(explanation),
        }

    def walked(self, seen: Seen, steps: Steps, n: int | None) -> Update:
        """A walk: the token, one frame, the heads, and the first step.

        Without `n`, nobody asked for it, it follows a new picture: the slider is put to one bounce, and what the page
        says stays, since it may be the answer to a later click.
        """
        p, walk, found = self._parts, steps.walk, seen.walkable()
        layout, lambda2 = found.layout, found.lambda2
        heads = found.heads(walk.layer)
        with self._viewer.shelf.alone():
            first = figures.attention_figure(seen.image, steps.attention, walk, layout)
            update = {
                p.steps: steps,
                p.tokens: drawing.token_picture(seen.image, layout, walk.start),
                p.table: drawing.head_table(lambda2, walk.layer, walk.head),
                p.layer: gr.update(choices=list(range(len(lambda2))), value=walk.layer),
                p.head: gr.update(choices=[MEAN, *range(heads)], value=MEAN if walk.head is None else walk.head),
                p.direction: walk.direction,
                p.attention: drawing.as_html(first, f"First step {figures.walk_name(walk, layout)}")
                + _elsewhere(steps, found),
            }
        update |= {p.bounces: 1} if n is None else {p.message: ""}
        return {**update, **self.frame(seen, steps, 1 if n is None else n)}

    def frame(self, seen: Seen, steps: Steps, n: int) -> Update:
        """One frame of the walk's film."""
        name = figures.walk_name(steps.walk, seen.walkable().layout)
        with self._viewer.shelf.alone():
            figure = figures.frame_figure(seen.image, steps.film, n)
            shown = drawing.as_html(figure, f"{figures.frame_name(n)} {name}")
        return {self._parts.frame: shown + f'<p class="caption">{html.escape(name)}</p>'}

    def no_walk(self, seen: Seen) -> Update:
        """The reason why there are no walks."""
        p = self._parts
        return {p.steps: None, p.tokens: None, p.table: None, p.attention: "", p.frame: note(seen.refusal)}

    def predictions(self, seen: Seen) -> Update:
        """Prediction maps of all layers, or why there are none."""
        try:
            maps, attention = self._viewer.prediction_maps(seen)
        except UnsupportedModelError as error:
            return {self._parts.predicted: seen, self._parts.predictions: note(str(error))}
        name = seen.explanation.target_name
        with self._viewer.shelf.alone():
            figure = figures.prediction_figure(seen.image, maps, attention, name)
            shown = drawing.as_html(figure, f"Prediction maps of {name} per layer")
        return {self._parts.predicted: seen, self._parts.predictions: shown}

    def judged(self, seen: Seen, curves: Sequence[MapCurve]) -> Update:
        """How far the curves are, and once both of a map are there, the figure."""
        p, total = self._parts, len(ORDERS) * len(seen.explanation.maps)
        bar = f'<progress value="{len(curves)}" max="{total}"></progress><p>{len(curves)} of {total} curves</p>'
        update = {p.progress: bar if len(curves) < total else ""}
        if not curves or len(curves) % len(ORDERS):
            return update if curves else {**update, p.message: "", p.judged: "", p.curves: []}
        with self._viewer.shelf.alone():
            figure = figures.curves_figure(curves, seen.explanation.target_name)
            shown = drawing.as_html(figure, "Perturbation curves of the maps") + report.areas_table(curves)
        return {**update, p.judged: shown, p.curves: list(curves)}


def problem(text: str) -> str:
    """Something went wrong."""
    return f'<p class="problem" role="alert">{html.escape(text)}</p>'


def note(text: str) -> str:
    """Something is left out."""
    return f'<p class="note">{html.escape(text)}</p>'


def _bars(seen: Seen) -> str:
    """Classes with their probabilities."""
    rows = "".join(
        f'<span>{html.escape(one.name)}</span><i style="width:{one.probability:.1%}"></i><b>{one.probability:.1%}</b>'
        for one in seen.explanation.prediction
    )
    return f'<div class="says">{rows}</div>' if rows else note("The model gives no class scores.")


def _elsewhere(steps: Steps, found: Survey) -> str:
    """The share of the first step that goes to tokens which are no patches."""
    prefix = found.layout.num_prefix
    if not prefix:
        return ""
    share = float(steps.attention[:prefix].sum())
    roles = ", ".join(dict.fromkeys({"cls": "class token"}.get(role, role) for role in found.layout.prefix))
    return f'<p class="caption">{share:.1%} of this step goes to tokens that are no patches ({html.escape(roles)}).</p>'
