"""What the command line prints and writes; nothing heavy is imported before it is needed."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from xattn.explanation import Explanation

FIGURES, ARRAYS, PAGE = (".png", ".pdf", ".svg"), ".npz", ".html"
SUFFIXES = (*FIGURES, ARRAYS)
TEXT_SUFFIXES = (*SUFFIXES, PAGE)
_MATRIX = 8  # most methods whose matrix of correlations fits 80 columns


def write(explanations: "Sequence[Explanation]", out: Path, *, shared: bool, smooth: bool) -> None:
    """The figure, page or arrays, as the suffix says; several pictures or sentences give a grid."""
    from xattn.explanation import save_arrays, write_atomically

    suffix = out.suffix.lower()
    if suffix == ARRAYS:
        save_arrays(explanations, out)
        return
    if suffix == PAGE:
        from xattn._explanation_html import page

        write_atomically(out, lambda file: file.write(page(explanations).encode()))
        return
    from xattn import viz

    is_text = explanations[0].is_text
    options: dict[str, Any] = {"scale": "shared" if shared else "each"} | ({} if is_text else {"smooth": smooth})
    if len(explanations) == 1:
        figure = explanations[0].plot(**options)
    elif is_text:
        figure = viz.token_grid(
            [e.words for e in explanations],
            [{name: e.per_word(name) for name in e.maps} for e in explanations],
            labels=[e.prediction_line for e in explanations],
            title=explanations[0].model,
            **options,
        )
    else:
        figure = viz.grid(
            [e.image for e in explanations],
            [e.maps for e in explanations],
            labels=[f"{Path(e.source).name}\n{e.prediction_line}" for e in explanations],
            title=explanations[0].model,
            **options,
        )
    write_atomically(out, lambda file: figure.savefig(file, format=suffix[1:], dpi=150))


def report(explanation: "Explanation") -> None:
    """Predicted classes, what was explained, what was left out."""
    say(f"{explanation.text or explanation.source} ({explanation.model})", style="bold")
    for entry in explanation.prediction:
        mark = "  <- explained" if entry.index == explanation.target else ""
        say(f"  {entry.probability:6.1%}  {entry.name}{mark}")
    if explanation.target not in [entry.index for entry in explanation.prediction]:
        say(f"  explained: {explanation.target_name}")
    if crop := _cropped(explanation):
        say(f"  the model sees {crop}")
    total = sum(explanation.seconds.values())
    count = len(explanation.maps)
    say(f"  {count} method{'s' * (count != 1)} in {total:.2f} s")
    for name, reason in explanation.skipped.items():
        say(f"  skipped {name}: {reason}")
    for name, messages in explanation.warnings.items():
        say(f"  {name} warns: {'; '.join(messages)}")


def _cropped(explanation: "Explanation") -> str:
    """What the model's preprocessing left out; empty where it was next to nothing."""
    if explanation.image is None or not Path(explanation.source).is_file():
        return ""
    from PIL import ExifTags, Image

    with Image.open(explanation.source) as picture:  # its header alone: no pixel is decoded
        width, height = picture.size
        if picture.getexif().get(ExifTags.Base.Orientation, 1) >= 5:  # lies on its side
            width, height = height, width
    seen = explanation.image.shape[-1] / explanation.image.shape[-2]
    return "" if abs(seen * height / width - 1) < 0.02 else f"the centre of a picture of {width} x {height} pixels"


def seconds_table(explanations: "Sequence[Explanation]") -> "Table":
    """Seconds of each method per picture or sentence, a column per model."""
    labels = list(dict.fromkeys(e.model for e in explanations))
    filled = table("method", *(f"{label}, s per picture" for label in labels))
    for name in dict.fromkeys(name for e in explanations for name in e.seconds):
        cells = []
        for label in labels:
            times = [e.seconds[name] for e in explanations if e.model == label and name in e.seconds]
            cells.append(f"{sum(times) / len(times):.3f}" if times else "-")
        filled.add_row(name, *cells)
    return filled


def agreement_table(explanations: "Sequence[Explanation]") -> "Table":
    """Rank correlation of every pair of methods, mean over the explanations in which both have a map.

    Of many methods each with the one it agrees with most and least, since a matrix would not fit.
    """
    import pandas as pd

    found = pd.concat([explanation.agreement() for explanation in explanations])
    mean = found.groupby(level=0, sort=False).mean()
    names = list(mean.index)
    mean = mean[names]
    caption = "Spearman's rank correlation of the maps"
    if len(names) <= _MATRIX:
        filled = table("", "method", *map(str, range(1, len(names))), caption=f"{caption}; columns have rows' numbers")
        for i, name in enumerate(names):
            filled.add_row(str(i + 1), name, *(_correlation(mean.iloc[i, j]) for j in range(i)))
        return filled
    filled = table("method", "most alike", "", "least alike", "", caption=caption)
    for name in names:
        others = mean.loc[name].drop(name).dropna()
        ends = [] if others.empty else [others.idxmax(), others.idxmin()]
        filled.add_row(name, *(cell for other in ends for cell in (str(other), _correlation(others[other]))))
    return filled


def _correlation(value: float) -> str:
    """Two digits; a dash for a map without ranks."""
    return "-" if value != value else f"{value:.2f}"


def table(*columns: str, caption: str | None = None) -> "Table":
    """An empty table that stays readable in 80 columns: words are folded, never cut off."""
    from rich.box import SIMPLE
    from rich.table import Table

    empty = Table(box=SIMPLE, header_style="bold", caption=caption, caption_justify="left", padding=(0, 1, 0, 0))
    for i, name in enumerate(columns):
        empty.add_column(name, no_wrap=i == 0, overflow="fold", min_width=len(name))
    return empty


def say(text: str, *, to_stderr: bool = False, style: str | None = None) -> None:
    """One line as it is: no markup, no wrapping."""
    console(to_stderr=to_stderr).print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def show(renderable: "Table") -> None:
    """A table on the standard output."""
    console().print(renderable)


def console(*, to_stderr: bool = False) -> "Console":
    """A fresh console, so that it writes to the stream of the moment."""
    from rich.console import Console

    return Console(stderr=to_stderr, markup=False)
