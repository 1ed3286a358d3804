"""Explanations as HTML: for notebooks, and as a page of its own."""

import html
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xattn._png import as_png, image_tag

if TYPE_CHECKING:
    from xattn.explanation import Explanation

_CELL = "padding:2px 10px 2px 0;vertical-align:baseline;text-align:left"


def fragment(explanation: "Explanation", *, pieces: bool = False) -> str:
    """The maps, the predicted classes, what was skipped or warned of, and how it was made.

    Args:
        explanation: What is shown.
        pieces: Colour word pieces in place of words; pictures have neither.
    """
    lines = [_words(explanation, pieces) if explanation.is_text else _picture(explanation)]
    if explanation.prediction:
        classes = ", ".join(f"{html.escape(c.name)} {c.probability:.1%}" for c in explanation.prediction)
        lines.append(f"<div>Predicted: {classes}. Explained: <b>{html.escape(explanation.target_name)}</b>.</div>")
    for name, why in explanation.skipped.items():
        lines.append(f"<div>{html.escape(name)} skipped: {html.escape(why)}</div>")
    for name, messages in explanation.warnings.items():
        lines.append(f"<div>{html.escape(name)}: {html.escape('; '.join(messages))}</div>")
    return "".join([*lines, _origin(explanation)])


def page(explanations: "Sequence[Explanation]") -> str:
    """A complete page, nothing of it comes from elsewhere."""
    sections = [f"<h2>{html.escape(e.text or e.source or 'picture')}</h2>{fragment(e)}" for e in explanations]
    title = html.escape(f"xattn: {explanations[0].model}")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>'
        '<body style="font-family:sans-serif;max-width:70em;margin:2em auto;padding:0 1em;background:#fff;color:#000">'
        f"<h1>{title}</h1>{''.join(sections)}</body></html>\n"
    )


def _origin(explanation: "Explanation") -> str:
    """Model, methods with their arguments, and versions, folded away."""
    facts = {"model": explanation.model, "target": explanation.target_name}
    facts |= {name: _constructor(configuration) for name, configuration in explanation.methods.items()}
    facts["versions"] = ", ".join(f"{package} {version}" for package, version in explanation.versions.items())
    rows = "".join(
        f'<tr><th style="{_CELL}">{html.escape(name)}</th><td style="{_CELL}">{html.escape(fact)}</td></tr>'
        for name, fact in facts.items()
        if fact
    )
    return f"<details><summary>How this was made</summary><table>{rows}</table></details>" if rows else ""


def _constructor(configuration: "Mapping[str, Any]") -> str:
    """The class and its arguments as one would write them, long ones cut."""
    name = str(configuration.get("class", "")).rpartition(".")[2]
    arguments = (f"{key}={value!r}" for key, value in configuration.items() if key != "class")
    return f"{name}({', '.join(textwrap.shorten(argument, 80, placeholder=' ...') for argument in arguments)})"


def _picture(explanation: "Explanation") -> str:
    alt = f"{explanation.title}: {', '.join(explanation.maps)}"
    return image_tag(as_png(explanation.plot(), dpi=80), alt, ' style="max-width:100%"')


def _words(explanation: "Explanation", pieces: bool) -> str:
    from xattn.viz import tokens_html

    rows = []
    for name in explanation.maps:
        tokens, relevance = explanation.shown_tokens(name, pieces=pieces)
        coloured = tokens_html(tokens, relevance)
        rows.append(f'<tr><th style="{_CELL}">{html.escape(name)}</th><td style="{_CELL}">{coloured}</td></tr>')
    return f'<table style="border-collapse:collapse">{"".join(rows)}</table>'
