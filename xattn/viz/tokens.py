"""Words coloured by relevance, as HTML and as figures."""

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Rectangle

from xattn.errors import ArgumentError
from xattn.viz._reading import DIVERGING, Array, Reading, Scale, as_array, read, shared_limits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CAPTIONS = {
    "each": "Each row has its own colours, their ends at its right: colours compare words, not methods.",
    "shared": "All rows share one colour scale, its ends at their right.",
}
_POINTS, _EM = 9.5, 0.63  # the size of the letters, and a letter's width in it with some air
_LETTER, _LINE = _POINTS * _EM / 72, 0.27  # inches
_FONT: dict[str, Any] = {"family": "DejaVu Sans Mono", "fontsize": _POINTS, "va": "center"}


@dataclass(frozen=True)
class _Paint:
    """Colours of one token; no background where its relevance is not finite."""

    background: str | None
    ink: str = "#000000"


def tokens_html(tokens: Sequence[str], relevance: object, *, signed: bool | None = None) -> str:
    """Words coloured by relevance, as HTML: white is zero (or the lowest value), each word's value is its tooltip.

    A small bar behind the words shows the colours and the values at their ends.

    Args:
        tokens: The words or word pieces.
        relevance: (N,), one number per token.
        signed: Blue for negative and red for positive; None takes them where a value is negative.
    """
    values = _values(tokens, relevance)
    reading = read(values[None], signed=signed)
    words = []
    for token, value, paint in zip(tokens, values, _paints(values, reading, reading.norm), strict=True):
        style = f"background:{paint.background};color:{paint.ink}" if paint.background else "border:1px dashed #888"
        words.append(f'<span title="{value:.4g}" style="{style};padding:1px 3px">{html.escape(token)}</span>')
    legend = _legend(values, reading)
    return f'<div style="line-height:1.9">{" ".join(words)} <small style="color:#666">{legend}</small></div>'


def tokens(
    tokens: Sequence[str],
    maps: Mapping[str, object],
    *,
    title: str | None = None,
    scale: Scale = "each",
    width: int = 90,
) -> Figure:
    """A sentence once per method, its words coloured by relevance.

    Args:
        tokens: The words or word pieces.
        maps: Method name to (N,), one number per token.
        title: Written above.
        scale: "each" gives every method its own colour scale, "shared" one to all; a caption says which.
        width: Letters in a line; longer sentences are folded.
    """
    return token_grid([tokens], [maps], title=title, scale=scale, width=width)


def token_grid(
    tokens: Sequence[Sequence[str]],
    maps: Sequence[Mapping[str, object]],
    *,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    scale: Scale = "each",
    width: int = 90,
) -> Figure:
    """Several sentences, each as in `tokens`.

    Args:
        tokens: The words or word pieces of each sentence.
        maps: Method name to relevance, for each sentence.
        labels: Written above each sentence.
        title: Written above the figure.
        scale: As in `tokens`.
        width: As in `tokens`.
    """
    if not maps or len(tokens) != len(maps) or not all(maps):
        raise ArgumentError(
            f"maps: expected at least one map for each of {len(tokens)} sentences, got {len(maps)} sets"
        )
    if labels is not None and len(labels) != len(tokens):
        raise ArgumentError(f"labels: expected one per sentence ({len(tokens)}), got {len(labels)}")
    rows = [{name: _values(words, row[name])[None] for name in row} for words, row in zip(tokens, maps, strict=True)]
    limits, signed = shared_limits([values for row in rows for values in row.values()], scale, None)
    margin = max(len(name) for row in rows for name in row) + 2
    canvas = _Canvas(margin, min(width, max(round(sum(len(word) + 1.3 for word in words)) for words in tokens)))
    if title:
        canvas.heading(title, bold=True)
    for number, (words, row) in enumerate(zip(tokens, rows, strict=True)):
        if labels is not None:
            canvas.heading(labels[number])
        for name, values in row.items():
            reading = read(values, signed=signed)
            norm = reading.norm if limits is None else Normalize(*limits)
            canvas.sentence(name, words, _paints(values[0], reading, norm), _ends(norm, reading))
    canvas.heading(_CAPTIONS[scale], quiet=True)
    return canvas.draw()


class _Canvas:
    """Lines of words on a grid of letters; it grows downwards, and is drawn when its height is known."""

    def __init__(self, margin: int, width: int) -> None:
        self.margin, self.width = margin, width
        self._texts: list[tuple[float, float, str, dict[str, Any]]] = []
        self._boxes: list[tuple[float, float, float, _Paint]] = []
        self._line = 0.5

    def heading(self, text: str, *, bold: bool = False, quiet: bool = False) -> None:
        style = {"family": "DejaVu Sans", "fontweight": "bold" if bold else "normal"}
        self._texts.append((0, self._line, text, style | ({"color": "0.35", "fontsize": 8.5} if quiet else {})))
        self._line += 1.2

    def sentence(self, name: str, words: Sequence[str], paints: Iterator[_Paint], note: str) -> None:
        self._texts.append((0, self._line, name, {}))
        self._texts.append((self.margin + self.width + 1, self._line, note, {"color": "0.35", "fontsize": 8}))
        x = 0.0
        for word, paint in zip(words, paints, strict=True):
            if x and x + len(word) + 1 > self.width:
                x, self._line = 0.0, self._line + 1
            self._boxes.append((self.margin + x, self._line, len(word) + 1, paint))
            self._texts.append((self.margin + x + 0.5, self._line, word, {"color": paint.ink}))
            x += len(word) + 1.3
        self._line += 1.05

    def draw(self) -> Figure:
        columns = self.margin + self.width + 22
        figure = Figure(figsize=(columns * _LETTER, self._line * _LINE))
        ax: Axes = figure.add_axes((0, 0, 1, 1))
        ax.set(xlim=(-1, columns - 1), ylim=(self._line, -0.2))
        ax.set_axis_off()
        for x, y, width, paint in self._boxes:
            fill, edge = (paint.background, "0.85") if paint.background else ("none", "0.5")
            ax.add_patch(Rectangle((x, y - 0.44), width, 0.88, linewidth=0.5, facecolor=fill, edgecolor=edge))
        for x, y, text, style in self._texts:
            ax.text(x, y, _drawable(text).replace("$", r"\$"), **{**_FONT, **style})
        return figure


def _drawable(text: str) -> str:
    """The text with a box for each letter that the font lacks, such as emoji; matplotlib draws one too, and warns."""
    return "".join(letter if ord(letter) in _letters() else "\u25a1" for letter in text)


@cache
def _letters() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family=_FONT["family"]))).get_charmap())


def _values(tokens: Sequence[str], relevance: object) -> Array:
    values = as_array(relevance, "relevance")
    if values.ndim != 1 or len(values) != len(tokens) or not len(tokens):
        raise ArgumentError(f"relevance: expected one number per token ({len(tokens)}), got shape {values.shape}")
    return values


def _paints(values: Array, reading: Reading, norm: Normalize) -> Iterator[_Paint]:
    cmap = colormaps[DIVERGING if reading.signed else "Reds"]
    for value in values:
        if not np.isfinite(value):
            yield _Paint(None)
            continue
        red, green, blue, _ = cmap(0.1 * reading.signed + (1 - 0.2 * reading.signed) * float(norm(value)))
        dark = 0.299 * red + 0.587 * green + 0.114 * blue <= 0.5
        yield _Paint(to_hex((red, green, blue)), "#fff" if dark else "#000")


def _legend(values: Array, reading: Reading) -> str:
    """The colours between the values at their ends, and what they cannot show."""
    note = f"({reading.note})" if reading.note else ""
    low, high = float(reading.norm.vmin or 0), float(reading.norm.vmax or 0)
    if np.unique(values[np.isfinite(values)]).size < 2:
        return note
    colours = ",".join(str(paint.background) for paint in _paints(np.linspace(low, high, 5), reading, reading.norm))
    bar = f"display:inline-block;width:4em;height:.7em;background-image:linear-gradient(90deg,{colours})"
    return f'{low:.2g} <span style="{bar}"></span> {high:.2g} {note}'.rstrip()


def _ends(norm: Normalize, reading: Reading) -> str:
    """What the colours stand for, or what they cannot show."""
    return reading.note or f"{float(norm.vmin or 0):.2g} to {float(norm.vmax or 0):.2g}"
