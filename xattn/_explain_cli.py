"""The commands `xattn explain` and `xattn compare`. Heavy imports wait inside them."""

import os
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xattn import _terminal as terminal
from xattn._command import Debug, check_writable, comma_separated, progress, reporting
from xattn._flags import naming_flags
from xattn.errors import ArgumentError

if TYPE_CHECKING:
    from xattn._layers import Layers
    from xattn.explanation import Explanation

Contents = Annotated[
    list[str], typer.Argument(help="Picture files; with --model text: sentences in quotes.", show_default=False)
]
Out = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        help=f"File to write: {', '.join(terminal.FIGURES)} (figure), .npz (numbers), or for sentences .html. "
        "Missing folders are made.",
    ),
]
Model = Annotated[
    str, typer.Option("--model", "-m", help="`xattn models` lists them, e.g. photos, demo, text, timm:NAME.")
]
Methods = Annotated[
    list[str] | None,
    typer.Option(help="Names from `xattn methods`, separated by commas; all by default.", show_default=False),
]
Target = Annotated[
    str | None, typer.Option(help="Name or number of the class to explain; the predicted one by default.")
]
Layer = Annotated[
    str | None, typer.Option(help='Layers for methods that choose them: an index, several ("0,1"), or "all".')
]
Device = Annotated[str | None, typer.Option(help="Where to run, e.g. cpu or cuda.")]
Shared = Annotated[
    bool, typer.Option("--shared-scale/--own-scale", help="One colour scale for all maps, or one for each.")
]
Smooth = Annotated[bool, typer.Option("--smooth/--patches", help="Interpolate between patches.")]

_FLAGS = {"methods": "--method", "method": "--method", "layers": "--layer"} | {
    name: f"--{name}" for name in ("model", "target", "device")
}


def explain(
    contents: Contents,
    out: Out,
    model: Model = "photos",
    method: Methods = None,
    target: Target = None,
    layer: Layer = None,
    device: Device = None,
    shared: Shared = False,
    smooth: Smooth = False,
    debug: Debug = False,
) -> None:
    """Explain pictures or sentences and write a figure or the numbers."""
    layers = _checked(out, model, layer, smooth)
    with reporting(debug), naming_flags(_FLAGS):
        explanations = _explanations(contents, out, model, method, target, layers, device)
        _show(explanations, out, shared, smooth)
        terminal.say(f"Wrote {out}")


def compare(
    contents: Contents,
    out: Out = Path("comparison.png"),
    model: Model = "photos",
    method: Methods = None,
    target: Target = None,
    layer: Layer = None,
    device: Device = None,
    shared: Shared = False,
    smooth: Smooth = False,
    debug: Debug = False,
) -> None:
    """Explain by several methods and say how far their maps agree: Spearman's rank correlation, mean over contents."""
    layers = _checked(out, model, layer, smooth)
    with reporting(debug), naming_flags(_FLAGS):
        names = _names(method)
        if names is not None and len(names) < 2:
            raise ArgumentError(f"--method: expected two methods or more to compare, got {names[0]!r}")
        explanations = _explanations(contents, out, model, names, target, layers, device)
        _show(explanations, out, shared, smooth)
        terminal.show(terminal.agreement_table(explanations))
        terminal.say(f"Wrote {out}")


def _checked(out: Path, model: str, layer: str | None, smooth: bool) -> "Layers | None":
    """The layers; wrong usage is refused before anything is loaded."""
    is_text = model == "text"
    suffixes = terminal.TEXT_SUFFIXES if is_text else terminal.SUFFIXES
    if out.suffix.lower() not in suffixes:
        raise typer.BadParameter(
            f"expected a file name that ends in one of {', '.join(suffixes)}; got {out.name!r}", param_hint="--out"
        )
    if is_text and smooth:
        raise typer.BadParameter("words are not interpolated, only pictures are", param_hint="--smooth")
    if layer is None or layer == "all":
        return "all" if layer else None
    try:
        indices = [int(part) for part in layer.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f'expected an index, several separated by commas, or "all"; got {layer!r}', param_hint="--layer"
        ) from None
    return indices[0] if len(indices) == 1 else indices


def _explanations(
    contents: Sequence[str],
    out: Path,
    model: str,
    method: Sequence[str] | None,
    target: str | None,
    layers: "Layers | None",
    device: str | None,
) -> "list[Explanation]":
    """Each picture or sentence explained by the chosen methods."""
    is_text = model == "text"
    check_writable(out)
    (_check_sentences if is_text else _check_files)(contents)
    from xattn.explain import choose_methods
    from xattn.explain import explain as explain_one
    from xattn.models import load

    names = _names(method)
    choose_methods(names)  # unknown names are refused before a model is loaded
    loaded = load(model, device=device or "cpu")
    explanations: list[Explanation] = []
    with progress(len(contents), names) as advance, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what methods warn of is printed with their results
        for content in contents:
            show = partial(advance, content[:30] if is_text else Path(content).name)
            explanations.append(explain_one(loaded, content, names, target, layers=layers, progress=show))
    return explanations


def _show(explanations: "Sequence[Explanation]", out: Path, shared: bool, smooth: bool) -> None:
    """Write the file and say what is in it."""
    terminal.write(explanations, out, shared=shared, smooth=smooth)
    for explanation in explanations:
        terminal.report(explanation)


def _names(method: Sequence[str] | None) -> list[str] | None:
    """Names of methods as given, without repetitions; None if none was asked for."""
    if method is None:
        return None
    names = list(dict.fromkeys(comma_separated(method)))
    if not names:
        raise ArgumentError("--method: expected names separated by commas, got none; leave it out for all methods")
    return names


def _check_sentences(contents: Sequence[str]) -> None:
    for content in contents:
        if os.path.isfile(content):
            raise ArgumentError(f"contents: {content!r} is a file; the model 'text' reads sentences, in quotes")


def _check_files(images: Sequence[str]) -> None:
    for image in images:
        if not Path(image).is_file():
            found = "is a folder; expected a picture" if Path(image).is_dir() else "does not exist"
            raise ArgumentError(f"image: there is no file {image!r}: it {found}")
