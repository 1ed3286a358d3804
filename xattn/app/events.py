"""Which click is answered by what: from the page's values to the viewer's functions, and from their results back."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import gradio as gr
from torch import Tensor

from xattn._subject import Target
from xattn.app import drawing
from xattn.app.answers import Answers, Update, problem
from xattn.app.examples import Example
from xattn.app.judge import MapCurve
from xattn.app.page import MEAN, Parts
from xattn.app.viewer import Seen, Steps, Viewer
from xattn.app.walk import Walk
from xattn.errors import ArgumentError, XattnError
from xattn.markov.chain import Direction

_CLICK_FILE = "() => setTimeout(() => document.querySelector('#file').click(), 150)"
_log = logging.getLogger("xattn.app")


class Events:
    """Ties clicks to answers. It keeps nothing about people: what they see travels in their own session."""

    def __init__(self, viewer: Viewer, parts: Parts, examples: Sequence[Example], first: Example) -> None:
        self._viewer = viewer
        self._parts = parts
        self._examples = examples
        self._first = first
        self._answers = Answers(viewer, parts)

    def connect(self, blocks: gr.Blocks) -> None:
        """Ties every event to its answer."""
        p = self._parts
        asked = [p.model, p.methods]
        self._on(blocks.load, self._begin, asked, p.maps)
        self._on(p.examples.select, self._example, asked, p.maps)
        self._on(p.upload.upload, self._upload, [p.upload, *asked], p.maps)
        self._on(p.upload.click, self._clear, [], p.message)
        self._on(p.model.input, self._open, [p.picture, *asked], p.maps)
        again = [p.target, p.seen, p.picture, *asked]
        self._on(p.explain.click, self._again, again, p.maps)
        self._on(p.target.input, self._again, again, p.maps)
        walk = [p.seen, p.steps, p.bounces]
        self._on(p.tokens.select, self._token, walk, p.frame)
        self._on(p.from_class.click, self._from_class, walk, p.frame)
        self._on(p.table.select, self._head, walk, p.frame)
        for picker in (p.layer, p.head, p.direction):
            self._on(picker.input, self._pick, [p.layer, p.head, p.direction, *walk], p.frame)
        self._on(p.bounces.change, self._slide, walk, p.frame)
        self._on(p.evaluate.click, self._evaluate, [p.seen], p.judged, trigger_mode="once")
        for kind, button in p.saves.items():
            saved = self._on(button.click, partial(self._save, kind), [p.seen, p.steps, p.curves], p.message)
            saved.then(None, js=_CLICK_FILE)

    def _on(
        self,
        event: Any,  # noqa: ANN401
        answer: Callable[..., Iterator[Update]],
        inputs: list[Any],
        busy: Any,  # noqa: ANN401
        **more: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Ties one event to its answer; `busy` shows that something is being computed."""
        options = {"show_progress": "minimal", "show_progress_on": busy, "trigger_mode": "always_last", **more}
        return event(self._guarded(answer), inputs, self._parts.all(), api_visibility="private", **options)

    def _guarded(self, answer: Callable[..., Iterator[Update]]) -> Callable[..., Iterator[Update]]:
        """What goes wrong becomes a message on the page."""

        @wraps(answer)
        def guarded(*args: Any) -> Iterator[Update]:  # noqa: ANN401
            shown: Update = {}  # all so far, again each time: pages drop what a quick second update leaves out
            try:
                for update in answer(*args):
                    shown |= update
                    yield shown
            except XattnError as error:
                yield {self._parts.message: problem(str(error))}
            except Exception as error:  # noqa: BLE001  # the page has to say something, whatever it is
                _log.exception("the viewer failed")
                yield {self._parts.message: problem(f"unexpected {type(error).__name__}: {error}")}

        return guarded

    def _begin(self, model: str, methods: list[str]) -> Iterator[Update]:
        yield from self._open(self._first.picture, model, methods)

    def _example(self, model: str, methods: list[str], event: gr.SelectData) -> Iterator[Update]:
        yield from self._open(self._examples[event.index].picture, model, methods)

    def _upload(self, path: str, model: str, methods: list[str]) -> Iterator[Update]:
        yield from self._open(self._viewer.upload(path), model, methods)

    def _clear(self) -> Iterator[Update]:
        """What was said of the last upload goes; of a file that is too large, gradio itself speaks."""
        yield {self._parts.message: ""}

    def _open(self, picture: Tensor | None, model: str, methods: list[str]) -> Iterator[Update]:
        """A new picture or model: everything is computed, and shown as it comes."""
        seen = self._viewer.explain(model, picture, methods)
        yield {self._parts.picture: picture, **self._answers.explained(seen)}
        if seen.survey is None:
            yield self._answers.no_walk(seen)
            return
        last = len(seen.survey.lambda2) - 1
        yield self._answers.walked(seen, self._viewer.step(seen, Walk(layer=last)), None)
        yield self._answers.predictions(seen)

    def _again(
        self, target: Target, seen: Seen | None, picture: Tensor | None, model: str, methods: list[str]
    ) -> Iterator[Update]:
        """Another class or other methods for the same picture; walks do not depend on either."""
        if seen is None or seen.model != model:
            yield from self._open(picture, model, methods)
            return
        seen = self._viewer.explain(model, picture, methods, None if target in (None, "") else target)
        yield self._answers.explained(seen)
        if seen.survey is not None:
            yield self._answers.predictions(seen)

    def _token(self, seen: Seen | None, steps: Steps | None, n: int, event: gr.SelectData) -> Iterator[Update]:
        seen, steps = _present(seen, steps)
        layout = seen.walkable().layout
        x, y = event.index
        token = drawing.token_clicked(x, y, drawing.shown_size(seen.image), layout)
        yield self._step(seen, replace(steps.walk, start=token), n)

    def _from_class(self, seen: Seen | None, steps: Steps | None, n: int) -> Iterator[Update]:
        seen, steps = _present(seen, steps)
        yield self._step(seen, replace(steps.walk, start=None), n)

    def _head(self, seen: Seen | None, steps: Steps | None, n: int, event: gr.SelectData) -> Iterator[Update]:
        seen, steps = _present(seen, steps)
        layers, heads = seen.walkable().lambda2.shape
        x, y = event.index
        cell = drawing.head_clicked(x, y, (layers, heads))
        if cell is not None:
            yield self._step(seen, replace(steps.walk, layer=cell[0], head=cell[1]), n)

    def _pick(
        self,
        layer: int,
        head: int | str,
        direction: Direction,
        seen: Seen | None,
        steps: Steps | None,
        n: int,
    ) -> Iterator[Update]:
        seen, steps = _present(seen, steps)
        chosen = None if isinstance(head, str) and head == MEAN else int(head)
        yield self._step(seen, replace(steps.walk, layer=int(layer), head=chosen, direction=direction), n)

    def _step(self, seen: Seen, walk: Walk, n: int) -> Update:
        return self._answers.walked(seen, self._viewer.step(seen, walk), n)

    def _slide(self, seen: Seen | None, steps: Steps | None, n: int) -> Iterator[Update]:
        if seen is not None and steps is not None:
            yield self._answers.frame(seen, steps, n)

    def _evaluate(self, seen: Seen | None) -> Iterator[Update]:
        if seen is None:
            raise ArgumentError("picture: choose one first.")
        yield self._answers.judged(seen, [])
        for curves in self._viewer.curves(seen):
            yield self._answers.judged(seen, curves)

    def _save(self, kind: str, seen: Seen | None, steps: Steps | None, curves: list[MapCurve]) -> Iterator[Update]:
        if seen is None:
            raise ArgumentError("picture: choose one first.")
        path = self._viewer.save(seen, steps, curves, kind)
        yield {self._parts.file: gr.DownloadButton(value=str(path)), self._parts.message: ""}


def _present(seen: Seen | None, steps: Steps | None) -> tuple[Seen, Steps]:
    if seen is None or steps is None:
        raise ArgumentError("picture: choose one first.")
    return seen, steps
