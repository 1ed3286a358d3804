"""One self-contained HTML page about a run."""

import html
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from xattn import __version__
from xattn._png import image_tag
from xattn.errors import ArgumentError
from xattn.evaluation._figures import curves_of, draw_curves, draw_maps, draw_ranks
from xattn.evaluation._formats import to_html
from xattn.evaluation._summary import DATASET_MIOU, Scores, Summary
from xattn.evaluation.stats import rank_methods

if TYPE_CHECKING:
    from xattn.evaluation.results import Results

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; color: #1c1c22; background: #fafafa;
       margin: 0 auto; max-width: 1080px; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.35rem; margin: 2.75rem 0 .5rem; border-bottom: 2px solid #3b0f70; padding-bottom: .25rem; }
h3 { font-size: 1.1rem; margin: 1.25rem 0 .25rem; }
img { display: block; max-width: 100%; height: auto; margin: .8rem 0; background: #fff; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid #ececf0; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; background: linear-gradient(90deg, #fafafa 30%, #fafafa00) left / 4rem 100% no-repeat local,
        linear-gradient(270deg, #fafafa 30%, #fafafa00) right / 4rem 100% no-repeat local,
        linear-gradient(90deg, #0004, #0000) left / 1rem 100% no-repeat,
        linear-gradient(270deg, #0004, #0000) right / 1rem 100% no-repeat; }
.wide::-webkit-scrollbar { height: .6rem; background: #ececf0; }
.wide::-webkit-scrollbar-thumb { background: #a8a8b4; border-radius: .3rem; }
.note { background: #fff6e0; border-left: 4px solid #c98a00; padding: .6rem .9rem; margin: 1rem 0; }
pre { background: #f0f0f4; padding: .8rem; overflow-x: auto; font-size: .8rem; }
footer { color: #666; font-size: .85rem; margin-top: 3rem; }
"""


def page(results: "Results") -> str:
    """The page of a run."""
    facts = results.facts
    title = f"{facts.get('model', 'model')} on {facts.get('dataset', 'data')}"
    summary = results.table()
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_text(title)}</h1>",
        f"<p>{_text(facts.get('model_description', ''))}</p>",
        f"<p>{summary.images} {summary.kind}, {len(summary.methods)} methods, explained class: "
        f"{_text(facts.get('target', 'unknown'))}. {_text(_accuracy(results))}</p>",
        *_notes(results),
        "<h2>Results</h2>",
        to_html(summary),
        *_meanings(summary),
        *_correct(results, summary),
        f"<h2>Curves</h2><p>Mean over {summary.kind}; bands are pointwise 95% bootstrap intervals.</p>",
        *_curves(_of_first_seed(results)),
        "<h2>Average ranks</h2><p>1 is best. Bars join methods that Nemenyi's test does not tell apart.</p>",
        *_ranks(results, summary),
        *_examples(results),
        "<h2>Time</h2>",
        _times(results),
        "<h2>Configuration</h2>",
        f"<pre>{_text(json.dumps(dict(facts), indent=2, default=str))}</pre>",
        f"<footer>Written by xattn {_text(__version__)}.</footer></body></html>",
    ]
    return "\n".join(parts)


def _notes(results: "Results") -> Iterator[str]:
    if "quick" in results.facts:
        yield f'<p class="note">{_text(results.facts["quick"])}</p>'
    for name, reason in results.refused.items():
        yield f'<p class="note">Method {_text(name)} does not apply to this model: {_text(reason)}</p>'
    if results.skipped:
        listed = "".join(f"<li>{_text(reason)}</li>" for reason in results.skipped.values())
        yield f'<div class="note">{len(results.skipped)} samples could not be used:<ul>{listed}</ul></div>'


def _accuracy(results: "Results") -> str:
    """How often the model is right, where labels are known."""
    answers = {
        index: right
        for index, right in zip(
            results.rows["sample_index"].to_pylist(), results.rows["correct"].to_pylist(), strict=True
        )
        if right is not None
    }
    if not answers:
        return "The classes are unknown to the model."
    return f"The model is right on {sum(answers.values())} of {len(answers)} with a known class."


def _meanings(summary: Summary) -> Iterator[str]:
    known = {c.metric.name: c.metric for c in summary.columns}
    listed = "".join(f"<li><b>{_text(m.name)}</b> {m.arrow} {_text(m.about)}</li>" for m in known.values())
    yield f"<details><summary>What the columns mean</summary><ul>{listed}</ul></details>"


def _correct(results: "Results", summary: Summary) -> Iterator[str]:
    """The table again for correctly classified images, unless these are all or none."""
    try:
        correct = results.table(correct_only=True)
    except ArgumentError:
        return
    if correct.images < summary.images:
        yield (
            f"<details><summary>The {correct.images} correctly classified {correct.kind} only</summary>"
            f"{to_html(correct)}</details>"
        )


def _curves(results: "Results") -> Iterator[str]:
    order = results.methods
    for judge in results.judges:
        for metric in judge.metrics:
            found = curves_of(results, judge.name, metric.name)
            if found:
                title = f"{judge.name}: {metric.name} ({'higher' if metric.higher_is_better else 'lower'} is better)"
                yield image_tag(draw_curves(found, title, order), title)


def _of_first_seed(results: "Results") -> "Results":
    """Curves of one seed, so that a band shows the spread over samples alone."""
    first = results.facts.get("seeds", [0])[0]
    return replace(results, rows=results.rows.filter(pc.equal(pc.fill_null(results.rows["seed"], first), first)))


def _ranks(results: "Results", summary: Summary) -> Iterator[str]:
    scores = Scores(results.rows)
    if len(scores.methods) < 2:
        yield "<p>There is one method only.</p>"
        return
    firsts = {c.protocol: c for c in reversed(summary.columns) if c.metric.name != DATASET_MIOU}
    for column in reversed(firsts.values()):
        ranking = rank_methods(
            scores.values(column.protocol, column.metric.name),
            higher_is_better=column.metric.higher_is_better is not False,
        )
        if ranking.n:
            title = f"{column.protocol}: {column.metric.name}, {ranking.n} {summary.kind}"
            yield image_tag(draw_ranks(ranking, title), title)


def _examples(results: "Results") -> Iterator[str]:
    if results.examples:
        yield (
            "<h2>Examples</h2><p>The first images, each map with its own colours. Examples show what the maps are "
            "like; they are no evidence.</p>"
        )
    for example in results.examples:
        yield image_tag(draw_maps(example.image, example.maps, example.name), f"maps of {example.name}")


def _times(results: "Results") -> str:
    rows = ["<tr><th>method</th><th>seconds per sample</th></tr>"]
    names, seconds = results.rows["method"].to_numpy(zero_copy_only=False), results.rows["seconds"].to_numpy()
    for name in results.methods:
        rows.append(f"<tr><td>{_text(name)}</td><td>{np.median(seconds[names == name]):.4f}</td></tr>")
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def _text(value: object) -> str:
    return html.escape(str(value))
