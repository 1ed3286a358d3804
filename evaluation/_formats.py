"""A summary as Markdown, LaTeX, CSV and HTML."""

import csv
import html
import io
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from xattn.evaluation._summary import Cell, Column, Summary

Shown = TypeVar("Shown")

LEGEND = (
    "bold: best, and different from every other method (paired Wilcoxon test, Holm, p < 0.05); "
    "where none is, ≈ marks the best and all that are not shown to differ from it"
)
_CSV = (
    *("protocol", "metric", "better", "method", "value", "low", "high"),
    *("images", "undefined", "constant", "best", "significantly_best", "shares_first", "p_versus_best"),
    *("seeds", "deviation_over_seeds"),
)
_BETTER = {True: "higher", False: "lower", None: ""}
_MARKDOWN = str.maketrans({letter: f"\\{letter}" for letter in "\\`*<|"})
_SYMBOLS = str.maketrans({"↑": r"$\uparrow$", "↓": r"$\downarrow$", "≈": r"$\approx$", "±": r"$\pm$"})
_LATEX = _SYMBOLS | str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {letter: f"${letter}$" for letter in "<>|"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)


def lines(summary: Summary, cell: Callable[[Cell], Shown]) -> tuple[list[str], list[list[Shown | str]]]:
    """Heads and rows of text for one protocol, the method's name first; undefined and constant maps where there are."""
    counters = [
        (title, count)
        for title, count in (("undefined", summary.undefined), ("constant", summary.constant))
        if any(map(count, summary.methods))
    ]
    head = ["method", *(column.title for column in summary.columns), *(title for title, _ in counters)]
    body: list[list[Shown | str]] = [
        [
            name,
            *(cell(summary.cells[name, column]) for column in summary.columns),
            *(str(count(name)) for _, count in counters),
        ]
        for name in summary.methods
    ]
    return head, body


def number(cell: Cell) -> str:
    """Value with its interval, "-" where there is none."""
    found = cell.interval
    if np.isnan(found.estimate):
        return "-"
    value = f"{found.estimate:.3f}" if np.isnan(cell.deviation) else f"{found.estimate:.3f} ± {cell.deviation:.3f}"
    return value if np.isnan(found.low) else f"{value} [{found.low:.3f}, {found.high:.3f}]"


def marked(cell: Cell, bold: Callable[[str], str]) -> str:
    """Value with the marks of the legend."""
    text = number(cell)
    return bold(text) if cell.is_clear else f"{text} ≈" if cell.is_tied else text


def caption(summary: Summary) -> str:
    """What the numbers are."""
    kind, seeds, note = summary.kind, summary.seeds, f"{summary.note} ".lstrip()
    spread = f"± standard deviation over {seeds} seeds; " if seeds > 1 else ""
    return f"{note}{summary.images} {kind}; {spread}{summary.confidence:.0%} bootstrap intervals over {kind}; {LEGEND}."


def to_markdown(summary: Summary) -> str:
    """A GitHub table for each protocol."""
    parts = []
    for protocol, table in summary.by_protocol().items():
        head, body = lines(table, lambda cell: marked(cell, lambda text: f"**{text}**"))
        ruler = ["---", *("---:" for _ in head[1:])]
        named = [
            [part.translate(_MARKDOWN) for part in head],
            ruler,
            *([row[0].translate(_MARKDOWN), *row[1:]] for row in body),
        ]
        rows = [f"| {' | '.join(row)} |" for row in named]
        parts += [f"### {protocol.translate(_MARKDOWN)}", "", *rows, ""]
    return "\n".join([*parts, caption(summary), ""])


def to_latex(summary: Summary) -> str:
    """A `table` with booktabs rules for each protocol."""
    parts = []
    for protocol, table in summary.by_protocol().items():
        head, body = lines(table, lambda cell: marked(cell, lambda text: f"\\textbf{{{text}}}"))
        rows = [
            " & ".join(map(_escape, head)),
            *(" & ".join([_escape(row[0]), *map(_symbols, row[1:])]) for row in body),
        ]
        parts += [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escape(f'{protocol}: {caption(table)}')}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"\toprule",
            rf"{rows[0]} \\",
            r"\midrule",
            *(rf"{row} \\" for row in rows[1:]),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    return "\n".join(parts)


def to_csv(summary: Summary) -> str:
    """One line per method and metric, numbers in full."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_CSV)
    for (name, column), cell in summary.cells.items():
        writer.writerow(_csv_row(name, column, cell))
    return file.getvalue()


def to_html(summary: Summary) -> str:
    """A table for each protocol, and the caption."""
    parts = []
    for protocol, table in summary.by_protocol().items():
        head, body = lines(table, html_cell)
        top = "".join(f"<th>{html.escape(text)}</th>" for text in head)
        rows = (
            f"<tr><th>{html.escape(name)}</th>{''.join(f'<td>{text}</td>' for text in cells)}</tr>"
            for name, *cells in body
        )
        parts.append(
            f'<h3>{html.escape(protocol)}</h3><div class="wide"><table><thead><tr>{top}</tr></thead>'
            f"<tbody>{''.join(rows)}</tbody></table></div>"
        )
    return "".join([*parts, f"<p>{html.escape(caption(summary))}</p>"])


def html_cell(cell: Cell) -> str:
    """Value with its marks, and the test's p as a tooltip."""
    text = marked(cell, lambda value: f"<strong>{value}</strong>")
    if cell.p_versus_best is None:
        return text
    return f'<span title="p against the best: {cell.p_versus_best:.3g}">{text}</span>'


def _csv_row(name: str, column: Column, cell: Cell) -> Sequence[object]:
    found, p = cell.interval, cell.p_versus_best
    facts = column.protocol, column.metric.name, _BETTER[column.metric.higher_is_better], name
    values = (found.estimate, found.low, found.high, found.n, found.undefined, cell.constant)
    marks = int(cell.is_best), int(cell.is_clear), int(cell.is_tied)
    return (*facts, *values, *marks, "" if p is None else p, cell.seeds, cell.deviation)


def _escape(text: str) -> str:
    return text.translate(_LATEX)


def _symbols(text: str) -> str:
    return text.translate(_SYMBOLS)
