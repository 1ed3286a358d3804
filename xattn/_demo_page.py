"""The demo's page: what was explained, what to see, and what not to read into it."""

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from xattn import __version__
from xattn.attributions import methods

if TYPE_CHECKING:
    from xattn.demo import Item

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; color: #1c1c22; background: #fafafa;
       margin: 0 auto; max-width: 1280px; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.35rem; margin: 2.75rem 0 .5rem; border-bottom: 2px solid #3b0f70; padding-bottom: .25rem; }
h3 { font-size: 1.1rem; margin: 0 0 .25rem; }
article { background: #fff; border: 1px solid #e2e2e8; border-radius: 8px; padding: 1.1rem 1.25rem; margin: 1.1rem 0; }
img { display: block; width: 100%; height: auto; margin: .6rem 0; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid #ececf0; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
.note { background: #fff6e0; border-left: 4px solid #c98a00; padding: .6rem .9rem; margin: 1rem 0; }
code { background: #f0f0f4; padding: .1em .3em; border-radius: 3px; font-size: .9em; overflow-wrap: anywhere; }
footer { color: #666; font-size: .85rem; margin-top: 3rem; }
"""

_PHOTOS = """
<p>The photographs ship with scikit-image. The model <code>photos</code> is a ViT-S/14 of the DINOv2 architecture that
its authors fine-tuned to find salient objects, under a small linear head over eight broad groups of photographs. It is
<strong>not the published DINOv2</strong>: its patches know well what is object and what is background, and it is
weak on categories.</p>
<p><strong>What to look for.</strong> Compare <code>column_sum</code>, one step of attention from a uniform start,
with <code>tokenrank</code>, its limit, and <code>n_bounce</code>, two steps from the class token. The column sum
spreads over table and sky; the others keep more to the things in front. For two photographs a box was drawn by hand
around the object; a map that does not care about the object has the box's share of the area in it:</p>
"""

_CAUTION = """
<p>The class token's own attention (<code>raw_attention</code>) does as well without any chain. On the cat, which fills
the picture, these maps mark eyes and nose alike and the difference is small. Three pictures are an illustration and
no evidence that one method is better than another.</p>
"""

_SCENES = """
<p>The model <code>demo</code> is a small ViT trained on synthetic scenes. The generator knows where each object is, so
the page can say what share of a map lies on the objects; relevance spread evenly would give the objects' share of the
area, and <code>random</code> shows what chance does. A high share says that a map marks the object, not that it tells
why the model answered as it did.</p>
"""


def page(items: "Sequence[Item]", notes: Sequence[str]) -> str:
    """The HTML of the demo; figures are linked by their file names."""
    photos = [item for item in items if item.is_photo]
    scenes = [item for item in items if not item.is_photo]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>xattn demo</title><style>{_STYLE}</style></head><body>",
        "<h1>What the transformer looked at</h1>",
        f"<p>{len(items)} pictures, {len(methods)} methods. Each figure shows the picture as the model saw it and the "
        "relevance of its patches by each method, raw values, each with its own colour scale written below it: colours "
        "compare places within a map, not one map with another.</p>",
        _class_specific(),
        *(f'<p class="note">Note: {html.escape(note)}</p>' for note in notes),
    ]
    if photos:
        parts += ["<h2>Photographs</h2>", _PHOTOS, _boxes(photos), _CAUTION, *map(_article, photos)]
    if scenes:
        parts += ["<h2>Scenes with known answers</h2>", _SCENES, *map(_article, scenes)]
    parts += ["<h2>The methods</h2>", _methods(), _footer(items), "</body></html>"]
    return "\n".join(parts)


def _class_specific() -> str:
    names = [name for name, method in methods.items() if method.is_class_specific]
    if not names:
        return (
            "<p>None of these methods depends on the class: they show where attention went, whatever the model "
            "answered. A wrong answer does not make the map wrong, nor a good-looking map the answer right.</p>"
        )
    listed = ", ".join(f"<code>{name}</code>" for name in names)
    return f"<p>Explaining the predicted class: {listed}. The other methods do not depend on the class.</p>"


def _boxes(photos: "Sequence[Item]") -> str:
    """Shares of the maps in the boxes, as measured."""
    boxed = [item for item in photos if item.region]
    shown = [
        name for name in ("column_sum", "tokenrank", "n_bounce", "raw_attention", "random", "center") if name in methods
    ]
    head = "".join(f'<th class="number">{name}</th>' for name in ("box's area", *shown))
    rows = [f"<tr><th>photograph</th>{head}</tr>"]
    for item in boxed:
        shares = (item.area, *(item.inside.get(name, float("nan")) for name in shown))
        cells = "".join(f'<td class="number">{_percent(share, 0)}</td>' for share in shares)
        rows.append(f"<tr><td>{html.escape(item.title)}</td>{cells}</tr>")
    return f'<div class="wide"><table>{"".join(rows)}</table></div>' if boxed else ""


def _article(item: "Item") -> str:
    explanation = item.explanation
    classes = ", ".join(f"{html.escape(c.name)} {c.probability:.1%}" for c in explanation.prediction[:3])
    title = html.escape(item.title)
    region = html.escape(item.region)
    area = f" {region[:1].upper()}{region[1:]}: {item.area:.1%} of the picture." if region else ""
    skipped = "".join(f"<p>{html.escape(n)} skipped: {html.escape(why)}</p>" for n, why in explanation.skipped.items())
    skipped += "".join(
        f"<p><code>{html.escape(name)}</code> warns: {html.escape('; '.join(messages))}</p>"
        for name, messages in explanation.warnings.items()
    )
    return (
        f"<article><h3>{title[:1].upper()}{title[1:]}</h3>"
        f"<p>Model <code>{html.escape(explanation.model)}</code> says: {classes}.{area}</p>"
        f'<a href="{item.figure}"><img src="{item.figure}" alt="{title} and the maps of each method"></a>{skipped}'
        f"<details><summary>Numbers</summary>{_numbers(item)}</details></article>"
    )


def _numbers(item: "Item") -> str:
    share = f'<th class="number">share in {html.escape(item.region)}</th>' if item.region else ""
    rows = [f'<tr><th>method</th><th class="number">seconds</th>{share}</tr>']
    for name, seconds in item.explanation.seconds.items():
        cell = f'<td class="number">{_percent(item.inside[name], 1)}</td>' if item.region else ""
        rows.append(f'<tr><td><code>{html.escape(name)}</code></td><td class="number">{seconds:.3f}</td>{cell}</tr>')
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def _percent(share: float, digits: int) -> str:
    """A share for people; a map that is zero everywhere has none."""
    return "map is zero" if math.isnan(share) else f"{share:.{digits}%}"


def _methods() -> str:
    rows = ["<tr><th>name</th><th>family</th><th>what it shows</th><th>paper</th></tr>"]
    for name, method in methods.items():
        cells = (f"<code>{html.escape(name)}</code>", *map(html.escape, (method.family, method.summary, method.paper)))
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def _footer(items: "Sequence[Item]") -> str:
    versions = items[0].explanation.versions if items else {}
    listed = ", ".join(f"{html.escape(name)} {html.escape(v)}" for name, v in versions.items() if name != "xattn")
    return (
        f"<footer>Written by xattn {__version__} with {listed}. Seconds are wall time on the CPU, one picture.</footer>"
    )
