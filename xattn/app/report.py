"""What a person takes away: the maps as PNG, as NumPy arrays, or a page of HTML that stands alone."""

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from xattn import __version__
from xattn._files import write_atomically
from xattn._png import as_png
from xattn.app.drawing import as_html
from xattn.app.figures import maps_figure
from xattn.app.judge import MapCurve, area_rows
from xattn.explanation import Explanation, save_arrays

Section: TypeAlias = tuple[str, str]
"""A heading, and the HTML below it."""

FORMATS = ("png", "npz", "html")

CAUTION = (
    "One picture is no evidence: which map falls fastest differs from picture to picture. "
    "`xattn evaluate` measures methods on many, with intervals."
)

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em; color: #1c1c22; }
img { max-width: 100%; } h2 { margin-top: 2em; border-bottom: 2px solid #3b0f70; }
th, td { text-align: left; padding: .2em 1.2em .2em 0; } td.number { text-align: right; }
pre { background: #f4f4f6; padding: .8em; overflow-x: auto; font-size: .85em; }
"""


def write(explanation: Explanation, kind: str, folder: Path, sections: Sequence[Section] = ()) -> Path:
    """Writes one file into a folder.

    Args:
        explanation: What is on the page.
        kind: One of `FORMATS`.
        folder: Where to.
        sections: What else the page of HTML shows.
    """
    path = folder / f"{file_stem(explanation)}.{kind}"
    if kind == "npz":
        return save_arrays([explanation], path)
    content = as_png(maps_figure(explanation), dpi=150) if kind == "png" else page(explanation, sections).encode()
    return write_atomically(path, lambda file: file.write(content))


def file_stem(explanation: Explanation) -> str:
    """Model and class as the name of a file."""
    words = f"xattn-{explanation.model}-{explanation.target_name}"
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in words)[:80].strip("-.")


def page(explanation: Explanation, sections: Sequence[Section] = ()) -> str:
    """The report: nothing in it comes from elsewhere."""
    title = html.escape(explanation.title)
    facts = html.escape(json.dumps(explanation.facts(), indent=1))
    return "".join(
        [
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
            f"<style>{_STYLE}</style></head><body><h1>{title}</h1>",
            predictions_table(explanation),
            "<h2>Maps</h2>",
            as_html(maps_figure(explanation), f"The picture and the maps of {', '.join(explanation.maps)}"),
            notes(explanation),
            *(f"<h2>{html.escape(heading)}</h2>{fragment}" for heading, fragment in sections),
            f"<h2>Settings</h2><details><summary>Methods, versions, seconds</summary><pre>{facts}</pre></details>",
            f"<p>Written by xattn {__version__}.</p></body></html>\n",
        ]
    )


def predictions_table(explanation: Explanation) -> str:
    """Classes and probabilities."""
    rows = "".join(
        f'<tr><td>{html.escape(one.name)}</td><td class="number">{one.probability:.1%}</td></tr>'
        for one in explanation.prediction
    )
    return f"<table><tr><th>class</th><th>probability</th></tr>{rows}</table>" if rows else ""


def areas_table(curves: Sequence[MapCurve]) -> str:
    """Areas under the curves, and what not to read into them."""
    rows = "".join(
        f'<tr><td><code>{html.escape(name)}</code></td><td class="number">{_number(positive)}</td>'
        f'<td class="number">{_number(negative)}</td></tr>'
        for name, positive, negative in area_rows(curves)
    )
    head = "<tr><th>map</th><th>area, most relevant first &darr;</th><th>area, least relevant first &uarr;</th></tr>"
    caution = html.escape(CAUTION).replace("`xattn evaluate`", "<code>xattn evaluate</code>")
    return f'<table class="areas">{head}{rows}</table><p class="note">{caution}</p>'


def notes(explanation: Explanation) -> str:
    """What was left out, and what methods warned of."""
    lines = [f"{name} is left out: {why}" for name, why in explanation.skipped.items()]
    lines += [f"{name} warns: {'; '.join(messages)}" for name, messages in explanation.warnings.items()]
    return "".join(f'<p class="note">{html.escape(line)}</p>' for line in lines)


def _number(value: float) -> str:
    return f"{value:.3f}" if value == value else "&hellip;"
