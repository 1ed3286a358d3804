"""The page: which parts there are, and where they stand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
import numpy as np

from xattn.app import report
from xattn.app.examples import Example
from xattn.app.maps import DEFAULT_METHODS
from xattn.app.walk import BOUNCES
from xattn.attributions import methods as registered

LIMIT = BOUNCES + 1
"""Position of the slider at the limit."""

MEAN = "mean of all"
"""What the picker of heads says for no single head."""

CSS = """
.gradio-container { max-width: 1560px !important; }
img.figure { max-width: 100%; height: auto; display: block; margin: 0 auto; background: #fff; border-radius: 6px; }
.problem, .note { border-left: 4px solid; border-radius: 4px; padding: .5em .9em; margin: .4em 0; }
.problem { background: #fde8e8; color: #7a1212; border-color: #c81e1e; }
.note { background: #fff6e0; color: #4a3500; border-color: #c98a00; }
.areas { border-collapse: collapse; margin: .6em 0; }
.areas, .areas tr { border: 0 !important; }
.areas th, .areas td { padding: .25em 1.5em .25em 0 !important; text-align: left; border: 0 !important;
  border-bottom: 1px solid #8884 !important; }
.areas td.number { text-align: right; font-variant-numeric: tabular-nums; }
.caption { opacity: .8; text-align: center; margin: .3em 0; }
.says { display: grid; grid-template-columns: max-content 1fr max-content; gap: .15em .7em; align-items: center;
  padding-top: 1.2em; }
.says i { display: block; height: .7em; border-radius: 3px; background: #7b3fb5; min-width: 1px; }
.says b { text-align: right; font-variant-numeric: tabular-nums; }
#bounces input[type="number"], #bounces button { display: none; }  /* emptied, it would send nothing */
progress { width: 100%; accent-color: #7b3fb5; }
#examples .grid-wrap { height: auto; min-height: 0; max-height: none; overflow: hidden; }
#examples .grid-container { grid-template-columns: repeat(3, minmax(0, 1fr)); padding-top: 24px; }
#examples .thumbnail-lg { width: 100%; height: auto; aspect-ratio: 1; }
#examples .caption-label { font-size: 11px; padding: 1px 5px; max-width: 100%; }
#file { position: absolute; width: 1px; height: 1px; overflow: hidden; opacity: 0; }
"""

_TITLE = """
# What the transformer looked at
Choose a model and a picture. Maps show where each method sees relevance; a map is a claim to be checked, no proof.
"""

_WALK = """
Attention is read as a Markov chain on the patches. **Click a token**: the walk starts there and follows the attention
of the chosen layer. Each bounce is one step; the last position of the slider is the limit, TokenRank (with a restart
probability of 1 %). *Forward* goes from a token to what it attends to, *backward* to those that attend to it.
"""

_HEADS = """
**λ2 of each head**: near 1, a walk on this head's attention long remembers where it started (structure); near 0 it
forgets at once. Click a head to follow it alone, or a layer's name for the mean of its heads.
"""

_PREDICTIONS = """
What the model would answer if it were asked at each patch, after each layer (the probability of the chosen class), and
below it where that layer looked: did it not look, or did it not recognise?
"""


@dataclass(frozen=True)
class Parts:
    """Components of the page, by what they are for, and what a person's session keeps."""

    picture: gr.State
    seen: gr.State
    steps: gr.State
    predicted: gr.State
    curves: gr.State
    model: gr.Dropdown
    upload: gr.UploadButton
    examples: gr.Gallery
    says: gr.HTML
    target: gr.Dropdown
    methods: gr.Dropdown
    explain: gr.Button
    message: gr.HTML
    maps: gr.HTML
    evaluate: gr.Button
    saves: dict[str, gr.Button]
    file: gr.DownloadButton
    progress: gr.HTML
    judged: gr.HTML
    tokens: gr.Image
    from_class: gr.Button
    direction: gr.Radio
    bounces: gr.Slider
    frame: gr.HTML
    table: gr.Image
    layer: gr.Dropdown
    head: gr.Dropdown
    attention: gr.HTML
    predictions: gr.HTML

    def explaining(self) -> list[Any]:
        """What changes with the picture, the class or the methods."""
        kept = [self.picture, self.seen, self.curves]
        return [*kept, self.message, self.says, self.target, self.maps, self.judged, self.progress]

    def walking(self) -> list[Any]:
        """What changes with the walk; the message is for refusals."""
        picked = [self.layer, self.head, self.direction, self.bounces]
        return [self.steps, self.message, self.tokens, self.table, *picked, self.frame, self.attention]

    def predicting(self) -> list[Any]:
        """What changes with the prediction maps."""
        return [self.predicted, self.message, self.predictions]

    def judging(self) -> list[Any]:
        """What changes with each curve."""
        return [self.curves, self.message, self.judged, self.progress]


def lay_out(models: Sequence[str], chosen: str, examples: Sequence[Example], most_mb: float) -> Parts:
    """Makes the components, inside a `gr.Blocks`.

    Args:
        models: Names offered; any other id can be typed.
        chosen: The one to begin with.
        examples: Pictures offered.
        most_mb: Size of the largest upload, for the label.
    """
    parts: dict[str, Any] = {name: gr.State() for name in ("picture", "seen", "steps", "predicted")}
    parts["curves"] = gr.State([])
    gr.Markdown(_TITLE)
    with gr.Row():
        with gr.Column(scale=1, min_width=320):
            parts |= _choices(models, chosen, examples, most_mb)
        with gr.Column(scale=3, min_width=640):
            parts["message"] = gr.HTML(elem_id="message")
            with gr.Tabs():
                with gr.Tab("Methods side by side"):
                    parts |= _maps()
                with gr.Tab("Walk over tokens"):
                    parts |= _walk()
                with gr.Tab("Prediction per layer"):
                    gr.Markdown(_PREDICTIONS)
                    parts["predictions"] = gr.HTML(elem_id="predictions")
    return Parts(**parts)


def _choices(models: Sequence[str], chosen: str, examples: Sequence[Example], most_mb: float) -> dict[str, Any]:
    hint = "Or type an id: timm:NAME, hf:NAME, torchvision:NAME. Their weights come from a cache or their hub."
    shown = [((example.picture.permute(1, 2, 0).numpy() * 255).astype(np.uint8), example.title) for example in examples]
    return {
        "model": gr.Dropdown(
            list(models), value=chosen, allow_custom_value=True, label="Model", info=hint, elem_id="model"
        ),
        "examples": gr.Gallery(
            shown,
            label="Picture: choose an example",
            columns=3,
            height="auto",
            allow_preview=False,
            object_fit="cover",
            buttons=[],
            interactive=False,
            elem_id="examples",
        ),
        "upload": gr.UploadButton(f"Upload a picture (at most {most_mb:g} MB)", size="md", elem_id="upload"),
        "says": gr.HTML(label="The model says", show_label=True, container=True, padding=True, elem_id="says"),
        "target": gr.Dropdown([], label="Class to explain", allow_custom_value=True, elem_id="target"),
    }


def _maps() -> dict[str, Any]:
    with gr.Row(equal_height=False):
        methods = gr.Dropdown(
            list(registered), value=list(DEFAULT_METHODS), multiselect=True, label="Methods", scale=5, elem_id="methods"
        )
        explain = gr.Button("Explain", variant="primary", min_width=120, elem_id="explain")
    maps = gr.HTML(elem_id="maps")
    with gr.Row():
        evaluate = gr.Button("Evaluate these", elem_id="evaluate")
        names = {"png": "Download PNG", "npz": "Download NPZ", "html": "Download report"}
        saves = {kind: gr.Button(names[kind], elem_id=f"save-{kind}") for kind in report.FORMATS}
        file = gr.DownloadButton("file", elem_id="file")
    return {
        "methods": methods,
        "explain": explain,
        "maps": maps,
        "evaluate": evaluate,
        "saves": saves,
        "file": file,
        "progress": gr.HTML(elem_id="progress"),
        "judged": gr.HTML(elem_id="judged"),
    }


def _walk() -> dict[str, Any]:
    gr.Markdown(_WALK)
    with gr.Row(equal_height=False):
        with gr.Column(min_width=300):
            tokens = _clickable("the picture and its tokens", "tokens")
            from_class = gr.Button("Start where the answer is read", size="sm", elem_id="from-class")
        with gr.Column(min_width=300):
            label = f"Bounces ({LIMIT} is the limit)"
            bounces = gr.Slider(0, LIMIT, value=1, step=1, label=label, elem_id="bounces")
            direction = gr.Radio(["forward", "backward"], value="forward", label="Direction", elem_id="direction")
            frame = gr.HTML(elem_id="frame")
    with gr.Row(equal_height=False):
        with gr.Column(min_width=300):
            gr.Markdown(_HEADS)
            table = _clickable("lambda2 of layers and heads", "heads")
        with gr.Column(min_width=300):
            with gr.Row():
                layer = gr.Dropdown([], label="Layer", elem_id="layer")
                head = gr.Dropdown([MEAN], value=MEAN, label="Head", elem_id="head")
            attention = gr.HTML(elem_id="attention")
    return {
        "tokens": tokens,
        "from_class": from_class,
        "direction": direction,
        "bounces": bounces,
        "frame": frame,
        "table": table,
        "layer": layer,
        "head": head,
        "attention": attention,
    }


def _clickable(label: str, name: str) -> gr.Image:
    return gr.Image(
        label=label, show_label=False, alt_text=label, interactive=False, format="png", buttons=[], elem_id=name
    )
