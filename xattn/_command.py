"""What the commands have in common: one message for an error, a bar for progress."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from xattn import _terminal as terminal
from xattn.errors import ArgumentError, XattnError

Debug = Annotated[bool, typer.Option("--debug/--no-debug", help="Show the traceback of an error.")]


@contextmanager
def reporting(debug: bool) -> Iterator[None]:
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
def progress(images: int | None, names: Sequence[str] | None) -> Iterator[Callable[[str, str], None]]:
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


def comma_separated(given: Sequence[str]) -> list[str]:
    """The names in options that may be repeated and hold several, separated by commas."""
    return [name.strip() for part in given for name in part.split(",") if name.strip()]


def check_writable(out: Path) -> None:
    """Refuse at the start what could not be written at the end."""
    if out.is_dir():
        raise ArgumentError(f"--out: {str(out)!r} is a folder; expected the name of a file")
    folder = out.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ArgumentError(f"--out: cannot write into {str(folder)!r}")
