"""What the viewer can do, one function for each thing that a person asks for; nothing here knows of a browser.

Whoever asks keeps the answers (`Seen`, `Steps`, curves) and brings them along the next time: the viewer itself
remembers models alone, so that people do not disturb each other.
"""

import html
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from xattn._subject import Target
from xattn.app import figures, judge, report, walk
from xattn.app.drawing import as_html
from xattn.app.judge import MapCurve
from xattn.app.maps import explain_with
from xattn.app.shelf import ModelShelf
from xattn.app.upload import read_upload
from xattn.app.walk import Survey, Walk
from xattn.errors import ArgumentError, CaptureError, LayoutError, UnsupportedModelError
from xattn.explanation import Explanation
from xattn.models.model import Model


@dataclass(frozen=True)
class Seen:
    """A picture that was explained.

    Attributes:
        model: Name of the model.
        explanation: Maps and predictions.
        survey: Layout and lambda2; None where the model has no walks.
        refusal: Why not.
    """

    model: str
    explanation: Explanation
    survey: Survey | None = None
    refusal: str = ""

    @property
    def image(self) -> Tensor:
        """(3, H, W), as the model saw it."""
        assert self.explanation.image is not None  # only pictures get here
        return self.explanation.image

    @property
    def target(self) -> int:
        """The explained class.

        Raises:
            UnsupportedModelError: If the model gives no class scores.
        """
        if not isinstance(self.explanation.target, int):
            raise UnsupportedModelError("the model gives no class scores, so there is no class to ask for")
        return self.explanation.target

    def inputs(self, model: Model) -> Tensor:
        """The batch of one that the model was given."""
        return self.explanation.input[None].to(model.device)

    def walkable(self) -> Survey:
        """Layout and lambda2, or the reason why there are none."""
        if self.survey is None:
            raise UnsupportedModelError(self.refusal)
        return self.survey

    def first_walk(self) -> Walk:
        """The last layer, from where the answer is read."""
        return Walk(layer=len(self.walkable().lambda2) - 1)


@dataclass(frozen=True)
class Steps:
    """A walk that was taken.

    Attributes:
        walk: Where it started and what it followed.
        film: (BOUNCES + 2, h, w), see `xattn.app.walk.film`.
        attention: (N,), its first step over all tokens.
        seen: The picture that it was taken on.
    """

    walk: Walk
    film: Tensor
    attention: Tensor
    seen: Seen

    def fits(self, seen: Seen) -> bool:
        """Whether it was taken on that picture, by the same model; its class does not matter."""
        return self.seen.model == seen.model and torch.equal(self.seen.explanation.input, seen.explanation.input)


class Viewer:
    """Everything behind the page.

    Args:
        shelf: The models.
        folder: Where files for download are written.
        most_bytes: Size of the largest upload.
    """

    def __init__(self, shelf: ModelShelf, folder: Path, most_bytes: int) -> None:
        self.shelf = shelf
        self._folder = folder
        self._most_bytes = most_bytes

    def upload(self, path: str | Path) -> Tensor:
        """An uploaded picture, see `read_upload`."""
        with self.shelf.alone():
            return read_upload(path, self._most_bytes)

    def classes(self, seen: Seen) -> list[tuple[str, int]]:
        """Classes with their names: the most probable ones first, with their probabilities."""
        best = {entry.index: f"{entry.name} ({entry.probability:.1%})" for entry in seen.explanation.prediction}
        with self.shelf.use(seen.model) as model:
            others = [(name, index) for index, name in enumerate(model.classes) if index not in best]
        return [(name, index) for index, name in best.items()] + others

    def explain(self, model_name: str, picture: Tensor | None, methods: Sequence[str], target: Target = None) -> Seen:
        """Maps of a picture (3, H, W) by several methods, and what walks can run on."""
        if picture is None:
            raise ArgumentError("picture: choose an example or upload one.")
        with self.shelf.use(model_name) as model:
            explanation = explain_with(model, picture, methods, target)
            seen = Seen(model_name, explanation)
            try:
                return Seen(model_name, explanation, walk.survey(model, seen.inputs(model)))
            except (UnsupportedModelError, LayoutError, CaptureError) as error:
                return Seen(model_name, explanation, refusal=str(error))

    def step(self, seen: Seen, taken: Walk) -> Steps:
        """A walk on the tokens of the picture."""
        layout = seen.walkable().layout
        with self.shelf.use(seen.model) as model:
            inputs = seen.inputs(model)
            film = walk.film(model, inputs, taken, layout)
            return Steps(taken, film, walk.attention(model, inputs, taken, layout), seen)

    def prediction_maps(self, seen: Seen) -> tuple[dict[str, Tensor], Tensor]:
        """Prediction map of the explained class after each layer, and each layer's attention (layers, h, w)."""
        found = seen.walkable()
        with self.shelf.use(seen.model) as model:
            inputs, layers = seen.inputs(model), len(found.lambda2)
            maps = judge.prediction_maps(model, inputs, seen.target, layers, found.layout)
            return maps, judge.attention_maps(model, inputs, found.layout)

    def curves(self, seen: Seen) -> Iterator[list[MapCurve]]:
        """Perturbation curves of all maps, one more with each step; others may ask in between."""
        found: list[MapCurve] = []
        for method, order in judge.questions(seen.explanation.maps):
            with self.shelf.use(seen.model) as model:
                relevance = seen.explanation.maps[method]
                found.append(judge.curve(model, seen.inputs(model), relevance, seen.target, method, order))
            yield list(found)

    def save(self, seen: Seen, steps: Steps | None, curves: Sequence[MapCurve], kind: str) -> Path:
        """A file for download, in a folder of its own; `kind` is one of `xattn.app.report.FORMATS`."""
        if kind not in report.FORMATS:
            raise ArgumentError(f"kind: expected one of {', '.join(report.FORMATS)}, got {kind!r}")
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        with self.shelf.alone():
            sections = self._sections(seen, steps, curves) if kind == "html" else []
            return report.write(seen.explanation, kind, folder, sections)

    def _sections(self, seen: Seen, steps: Steps | None, curves: Sequence[MapCurve]) -> list[report.Section]:
        """What the report shows beside the maps."""
        name, sections = seen.explanation.target_name, []
        if curves:
            heading = "Do the maps find what decides?"
            shown = as_html(figures.curves_figure(curves, name), heading) + report.areas_table(curves)
            sections.append((heading, shown))
        if steps is not None:
            figure = figures.film_figure(seen.image, steps.film, steps.walk, seen.walkable().layout)
            sections.append(("A walk over the tokens", as_html(figure, "Bounces and their limit")))
        try:
            figure = figures.prediction_figure(seen.image, *self.prediction_maps(seen), name)
            sections.append(("Prediction per layer", as_html(figure, f"Probability of {name} at each patch")))
        except UnsupportedModelError as error:
            sections.append(("Prediction per layer", f"<p>{html.escape(str(error))}</p>"))
        return sections
