"""The command line. Heavy imports wait inside the commands, so that `xattn --help` answers at once."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from xattn import __version__
from xattn import _terminal as terminal
from xattn._app_cli import view
from xattn._command import Debug, check_writable, progress, reporting
from xattn._evaluate_cli import evaluate
from xattn._explain_cli import compare, explain
from xattn._probe_cli import probe

app = typer.Typer(
    name="xattn",
    help="What a transformer looked at, what it saw there, and which explanation to believe.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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
def methods(
    cost: Annotated[
        bool, typer.Option("--cost", help="Measure each on one scene of the demo model: passes and peak memory.")
    ] = False,
    debug: Debug = False,
) -> None:
    """List the methods."""
    with reporting(debug):
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
    with reporting(debug):
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
    with reporting(debug):
        check_writable(out / "index.html")
        from xattn.demo import run_demo

        with progress(None, None) as advance:
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


app.command()(explain)
app.command()(compare)
app.command()(evaluate)
app.command("app")(view)
app.command()(probe)


if __name__ == "__main__":
    main(sys.argv[1:])
