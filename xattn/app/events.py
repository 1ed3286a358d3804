"""Which click is answered by what: from the page's values to the viewer's functions, and from their results back."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, TypeAlias

import gradio as gr
from torch import Tensor

from xattn._subject import Target
from xattn.app import drawing
from xattn.app.answers import Answers, Update, problem
from xattn.app.examples import Example
from xattn.app.judge import MapCurve
from xattn.app.page import MEAN, Parts
from xattn.app.viewer import Seen, Steps, Viewer
from xattn.errors import ArgumentError, XattnError
from xattn.markov.chain import Direction

_CLICK_FILE = "() => setTimeout(() => document.querySelector('#file').click(), 150)"
Answer: TypeAlias = Callable[..., Iterator[Update]]

_log = logging.getLogger("xattn.app")


class Events:
    """Ties clicks to answers. It keeps nothing about people: what they see travels in their own session.

    Whatever changes the picture, the class or the maps is one listener, whatever moves the walk another. Every click of
    theirs is answered, in order: gradio's "always_last" would repeat the first click in place of the last, its "once",
    what `then` does unless told otherwise, would leave out what follows a click while the same of the click before is
    running, and answers that are computed side by side can overtake each other.
    """

    def __init__(self, viewer: Viewer, parts: Parts, examples: Sequence[Example], first: Example) -> None:
        self._viewer = viewer
        self._parts = parts
        self._examples = examples
        self._first = first
        self._answers = Answers(viewer, parts)

    def connect(self, blocks: gr.Blocks) -> None:
        """Ties every event to its answer."""
        p = self._parts
        judging = self._on([p.evaluate.click], self._evaluate, [p.seen], p.judging(), p.judged, trigger_mode="once")
        explaining = [blocks.load, p.examples.select, p.upload.upload, p.model.input, p.target.input, p.explain.click]
        asked = [p.upload, p.model, p.picture, p.seen, p.target, p.methods]
        maps, walk, predict = map(_in_order, ("maps", "walk", "predict"))
        opened = self._on(explaining, self._explain, asked, p.explaining(), p.maps, cancels=[judging], **maps)
        walked = opened.then(**self._call(self._follow, [p.seen, p.steps], p.walking(), p.frame, **walk))
        walked.then(**self._call(self._predict, [p.seen, p.predicted], p.predicting(), p.predictions, **predict))
        walking = [p.tokens.select, p.from_class.click, p.table.select, p.layer.input, p.head.input, p.direction.input]
        where = [p.layer, p.head, p.direction, p.bounces, p.seen, p.steps]
        self._on(walking, self._walk, where, p.walking(), p.frame, **walk)
        slid = [p.bounces, p.seen, p.steps]
        frame = [p.message, p.frame]
        self._on([p.bounces.change], self._slide, slid, frame, p.frame, trigger_mode="always_last", **walk)
        self._on([p.upload.click], self._clear, [], [p.message], p.message)
        for kind, button in p.saves.items():
            save = partial(self._save, kind)
            kept = [p.seen, p.steps, p.curves]
            saved = self._on([button.click], save, kept, [p.message, p.file], p.message)
            saved.then(None, js=_CLICK_FILE)

    def _on(
        self,
        triggers: list[Any],
        answer: Answer,
        inputs: list[Any],
        outputs: list[Any],
        busy: gr.HTML,
        **more: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Ties events to one answer; `busy` shows that something is being computed."""
        return gr.on(triggers, **self._call(answer, inputs, outputs, busy, **more))

    def _call(
        self,
        answer: Answer,
        inputs: list[Any],
        outputs: list[Any],
        busy: gr.HTML,
        **more: Any,  # noqa: ANN401
    ) -> dict[str, Any]:
        return {
            "trigger_mode": "multiple",
            "fn": self._guarded(answer),
            "inputs": inputs,
            "outputs": outputs,
            "show_progress": "minimal",
            "show_progress_on": busy,
            "api_visibility": "private",
            **more,
        }

    def _guarded(self, answer: Answer) -> Answer:
        """What goes wrong becomes a message on the page."""

        @wraps(answer)
        def guarded(*args: Any) -> Iterator[Update]:  # noqa: ANN401
            try:
                update = None
                for update in answer(*args):
                    yield update
                if update is None:
                    yield {self._parts.message: gr.skip()}  # an answer without any update would empty the page
            except XattnError as error:
                yield {self._parts.message: problem(str(error))}
            except Exception as error:  # noqa: BLE001  # the page has to say something, whatever it is
                _log.exception("the viewer failed")
                yield {self._parts.message: problem(f"unexpected {type(error).__name__}: {error}")}

        return guarded

    def _explain(
        self,
        path: str | None,
        model: str,
        picture: Tensor | None,
        seen: Seen | None,
        target: Target,
        methods: list[str],
        event: gr.EventData,
    ) -> Iterator[Update]:
        """Another picture, model or class, or other methods; a class is kept with its picture and model alone."""
        p = self._parts
        if _came_from(event, p.model) and seen is not None and seen.model == model:
            yield {p.message: ""}  # the box says so whenever it is left
            return
        if _came_from(event, p.examples):
            picture = self._examples[event.index].picture
        elif _came_from(event, p.upload):
            picture = self._viewer.upload(path or "")
        elif picture is None:
            picture = self._first.picture
        kept = _came_from(event, p.target, p.explain) and seen is not None and seen.model == model and target != ""
        if kept and seen and _came_from(event, p.target) and target == seen.explanation.target:
            return  # pages tell of a choice twice
        yield self._answers.explained(picture, self._viewer.explain(model, picture, methods, target if kept else None))

    def _follow(self, seen: Seen | None, steps: Steps | None) -> Iterator[Update]:
        """The walk of a new picture; that of an old one stays."""
        if seen is None or (steps is not None and steps.fits(seen)):
            return
        if seen.survey is None:
            yield self._answers.no_walk(seen)
        else:
            yield self._answers.walked(seen, self._viewer.step(seen, seen.first_walk()), None)

    def _predict(self, seen: Seen | None, predicted: Seen | None) -> Iterator[Update]:
        """Prediction maps, unless they are there."""
        if seen is not None and seen is not predicted:
            yield self._answers.predictions(seen)

    def _walk(
        self,
        layer: int,
        head: int | str,
        direction: Direction,
        n: int,
        seen: Seen | None,
        steps: Steps | None,
        event: gr.EventData,
    ) -> Iterator[Update]:
        """Another start, layer, head or direction."""
        seen, p = _present(seen), self._parts
        found = seen.walkable()
        walk = steps.walk if steps is not None and steps.fits(seen) else seen.first_walk()
        if _came_from(event, p.tokens):
            x, y = event.index
            start = drawing.token_clicked(x, y, drawing.shown_size(seen.image), found.layout)
            walk = replace(walk, start=start)
        elif _came_from(event, p.from_class):
            walk = replace(walk, start=None)
        elif _came_from(event, p.table):
            x, y = event.index
            layers, heads = found.lambda2.shape
            cell = drawing.head_clicked(x, y, (layers, heads))
            if cell is None:
                return
            walk = replace(walk, layer=cell[0], head=cell[1])
        else:
            heads = found.heads(int(layer))
            one = None if head == MEAN or int(head) >= heads else int(head)
            walk = replace(walk, layer=int(layer), head=one, direction=direction)
        yield self._answers.walked(seen, self._viewer.step(seen, walk), n)

    def _slide(self, n: int, seen: Seen | None, steps: Steps | None) -> Iterator[Update]:
        if seen is not None and steps is not None and steps.fits(seen):
            yield self._answers.frame(seen, steps, n)

    def _clear(self) -> Iterator[Update]:
        """What was said of the last upload goes; of a file that is too large, gradio itself speaks."""
        yield {self._parts.message: ""}

    def _evaluate(self, seen: Seen | None) -> Iterator[Update]:
        seen = _present(seen)
        yield self._answers.judged(seen, [])
        for curves in self._viewer.curves(seen):
            yield self._answers.judged(seen, curves)

    def _save(self, kind: str, seen: Seen | None, steps: Steps | None, curves: list[MapCurve]) -> Iterator[Update]:
        seen = _present(seen)
        steps = steps if steps is not None and steps.fits(seen) else None
        path = self._viewer.save(seen, steps, curves, kind)
        yield {self._parts.file: gr.update(value=str(path)), self._parts.message: ""}


def _in_order(name: str) -> dict[str, Any]:
    """One after the other, across the listeners of that name: each finds in the session what came before it."""
    return {"concurrency_limit": 1, "concurrency_id": name}


def _came_from(event: gr.EventData, *parts: Any) -> bool:  # noqa: ANN401
    """Whether one of the parts was clicked, told by its name: gradio hands out copies of those that were updated."""
    return event.target is not None and event.target.elem_id in [part.elem_id for part in parts]


def _present(seen: Seen | None) -> Seen:
    if seen is None:
        raise ArgumentError("picture: choose one first.")
    return seen
