"""The command line. Heavy imports wait inside the commands, so that `xattn --help` answers at once."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xattn import __version__
from xattn import _terminal as terminal
from xattn._evaluate_cli import evaluate
from xattn.errors import ArgumentError, XattnError

if TYPE_CHECKING:
    from xattn._layers import Layers
    from xattn.explanation import Explanation

app = typer.Typer(
    name="xattn",
    help="What a transformer looked at, what it saw there, and which explanation to believe.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Debug = Annotated[bool, typer.Option("--debug/--no-debug", help="Show the traceback of an error.")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. Exit codes: 0 done, 1 an error of xattn or a bad file, 2 wrong usage."""
    app(args=None if arguments is None else list(arguments))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"xattn {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Options before the command."""


@app.command()
def explain(
    contents: Annotated[
        list[str],
        typer.Argument(help="Picture files; with --model text: sentences in quotes.", show_default=False),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help=f"File to write: {', '.join(terminal.FIGURES)} (figure), .npz (numbers), or for sentences .html. "
            "Missing folders are made.",
            show_default=False,
        ),
    ],
    model: Annotated[
        str, typer.Option("--model", "-m", help="`xattn models` lists them, e.g. photos, demo, text, timm:NAME.")
    ] = "photos",
    method: Annotated[
        list[str] | None,
        typer.Option(help="Names from `xattn methods`, separated by commas; all by default.", show_default=False),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Name or number of the class to explain; the predicted one by default.")
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(help='Layers for methods that choose them: an index, several ("0,1"), or "all".'),
    ] = None,
    device: Annotated[str | None, typer.Option(help="Where to run, e.g. cpu or cuda.")] = None,
    shared: Annotated[
        bool, typer.Option("--shared-scale/--own-scale", help="One colour scale for all maps, or one for each.")
    ] = False,
    smooth: Annotated[bool, typer.Option("--smooth/--patches", help="Interpolate between patches.")] = False,
    debug: Debug = False,
) -> None:
    """Explain pictures or sentences and write a figure or the numbers."""
    is_text = model == "text"
    _check_suffix(out, terminal.TEXT_SUFFIXES if is_text else terminal.SUFFIXES)
    if is_text and smooth:
        raise typer.BadParameter("words are not interpolated, only pictures are", param_hint="--smooth")
    layers = _layers(layer)
    with _reporting(debug):
        _check_writable(out)
        (_check_sentences if is_text else _check_files)(contents)
        from xattn._subject import find_device
        from xattn.explain import choose_methods
        from xattn.explain import explain as explain_one
        from xattn.models import load

        names = _names(method)
        choose_methods(names)  # unknown names are refused before a model is loaded
        loaded = load(model, device=find_device(device or "cpu"))
        explanations: list[Explanation] = []
        with _progress(len(contents), names) as advance, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # what methods warn of is printed with their results
            for content in contents:
                show = partial(advance, content[:30] if is_text else Path(content).name)
                explanations.append(explain_one(loaded, content, names, target, layers=layers, progress=show))
        terminal.write(explanations, out, shared=shared, smooth=smooth)
        for explanation in explanations:
            terminal.report(explanation)
        terminal.say(f"Wrote {out}")


@app.command()
def methods(
    cost: Annotated[
        bool, typer.Option("--cost", help="Measure each on one scene of the demo model: passes and peak memory.")
    ] = False,
    debug: Debug = False,
) -> None:
    """List the methods."""
    with _reporting(debug):
        if cost:
            from xattn._cost import CAPTION, measure_methods

            table = terminal.table("method", "forwards", "backwards", "peak MiB", caption=CAPTION)
            for name, measured in measure_methods().items():
                table.add_row(name, *measured.cells())
            terminal.show(table)
            return
        from xattn.attributions import methods as registered

        caption = "class: the map depends on the class asked for; passes: forward + backward passes for one batch"
        columns = ("method", "family", "class", "gradient", "passes", "what it shows", "paper")
        table = terminal.table(*columns, caption=caption)
        for name, method in registered.items():
            specific, gradient = ("yes" if fact else "no" for fact in (method.is_class_specific, method.needs_gradient))
            passes = f"{method.forwards} + {method.backwards}"
            table.add_row(name, method.family, specific, gradient, passes, method.summary, method.paper)
        terminal.show(table)


@app.command()
def models(debug: Debug = False) -> None:
    """List the models that can be given by name."""
    with _reporting(debug):
        from xattn.models import catalogue

        table = terminal.table("model", "what it is", "needs", "size")
        for entry in catalogue():
            table.add_row(*entry)
        terminal.show(table)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the pictures and index.html.")] = Path(
        "demo-output"
    ),
    debug: Debug = False,
) -> None:
    """Explain three photographs and a few scenes with every method, and write a page about it."""
    with _reporting(debug):
        _check_writable(out / "index.html")
        from xattn.demo import run_demo

        with _progress(None, None) as advance:
            result = run_demo(out, progress=advance)
        for note in result.notes:
            terminal.say(f"Note: {note}")
        table = terminal.table("picture", "model", "prediction", "seconds")
        for item in result.items:
            best = item.explanation.prediction[0]
            seconds = f"{sum(item.explanation.seconds.values()):.2f}"
            table.add_row(item.title, item.explanation.model, f"{best.name} {best.probability:.1%}", seconds)
        terminal.show(table)
        terminal.show(terminal.seconds_table([item.explanation for item in result.items]))
        for path in result.paths:
            terminal.say(str(path))


app.command()(evaluate)


@contextmanager
def _reporting(debug: bool) -> Iterator[None]:
    """Turn what goes wrong into one message and exit code 1; with --debug the traceback comes too."""
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        if debug:
            raise
        expected = isinstance(error, (XattnError, OSError))
        message = str(error) if expected else f"unexpected {type(error).__name__}: {error} (--debug shows where)"
        terminal.say(f"error: {message}", to_stderr=True)
        raise typer.Exit(1) from None


@contextmanager
def _progress(images: int | None, names: Sequence[str] | None) -> Iterator[Callable[[str, str], None]]:
    """A bar on the error stream, gone when the work is done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    from xattn.attributions import methods as registered

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    console = terminal.console(to_stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        total = None if images is None else images * len(names or registered)
        task = bar.add_task("loading", total=total)
        seen: set[str] = set()

        def advance(picture: str, method: str) -> None:
            bar.update(task, description=f"{picture}: {method}", advance=1)
            if not console.is_terminal and images != 1 and picture not in seen:  # a log gets a line for each of several
                seen.add(picture)
                terminal.say(f"explaining {picture}", to_stderr=True)

        yield advance


def _names(method: Sequence[str] | None) -> list[str] | None:
    """Names of methods as given, without repetitions; None if none was asked for."""
    if method is None:
        return None
    names = list(dict.fromkeys(name.strip() for part in method for name in part.split(",") if name.strip()))
    if not names:
        raise ArgumentError("--method: expected names separated by commas, got none; leave it out for all methods")
    return names


def _check_suffix(out: Path, suffixes: Sequence[str]) -> None:
    if out.suffix.lower() not in suffixes:
        raise typer.BadParameter(
            f"expected a file name that ends in one of {', '.join(suffixes)}; got {out.name!r}",
            param_hint="--out",
        )


def _layers(layer: str | None) -> "Layers | None":
    if layer is None:
        return None
    if layer == "all":
        return "all"
    try:
        indices = [int(part) for part in layer.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f'expected an index, several separated by commas, or "all"; got {layer!r}', param_hint="--layer"
        ) from None
    return indices[0] if len(indices) == 1 else indices


def _check_sentences(contents: Sequence[str]) -> None:
    for content in contents:
        if os.path.isfile(content):
            raise ArgumentError(f"contents: {content!r} is a file; the model 'text' reads sentences, in quotes")


def _check_files(images: Sequence[str]) -> None:
    for image in images:
        if not Path(image).is_file():
            raise ArgumentError(f"image: there is no file {image!r}")


def _check_writable(out: Path) -> None:
    """Refuse at the start what could not be written at the end."""
    if out.is_dir():
        raise ArgumentError(f"--out: {str(out)!r} is a folder; expected the name of a file")
    folder = out.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ArgumentError(f"--out: cannot write into {str(folder)!r}")


if __name__ == "__main__":
    main(sys.argv[1:])
