"""The command `xattn probe`. Heavy imports wait inside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xattn import _terminal as terminal
from xattn._command import Debug, comma_separated, reporting
from xattn._flags import naming_flags

if TYPE_CHECKING:
    from xattn.evaluation.probing import Probing

_FLAGS = {"weightings": "--weighting", "method": "--weighting", "dataset": "--data", "n": "--limit"} | {
    name: f"--{name}" for name in ("layer", "strength", "folds", "seed", "test", "model")
}
_COLUMNS = ("weighting", "accuracy", "low", "high", "n", "difference", "p", "effect")


def probe(
    model: Annotated[str, typer.Option("--model", "-m", help="`xattn models` lists them.")] = "demo",
    data: Annotated[str, typer.Option(help="Labelled pictures: demo, a folder of folders by class, or .csv.")] = "demo",
    test: Annotated[
        str | None,
        typer.Option(help="Pictures to judge on; by default folds of the data take turns.", show_default=False),
    ] = None,
    weighting: Annotated[
        list[str] | None,
        typer.Option(
            help="Methods that weigh patches, separated by commas; uniform and class_token are there as well. "
            "By default tokenrank, column_sum, uniform, class_token.",
            show_default=False,
        ),
    ] = None,
    layer: Annotated[int, typer.Option(help="After which layer features are taken.")] = -1,
    strength: Annotated[
        str | None,
        typer.Option(
            help="Inverse regularisation C; of several, separated by commas, cross-validation chooses.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="At most this many pictures; 200 by default for the scenes.", show_default=False)
    ] = None,
    folds: Annotated[int, typer.Option(help="Folds of the cross-validation.")] = 5,
    seed: Annotated[int, typer.Option(help="Of the folds.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File .csv for the table.", show_default=False)
    ] = None,
    debug: Debug = False,
) -> None:
    """Linear probing: does weighting patches by a method help a classifier of their features?"""
    if out is not None and out.suffix.lower() != ".csv":
        raise typer.BadParameter(f"expected a file .csv; got {out.name!r}", param_hint="--out")
    strengths = _numbers(strength)
    with reporting(debug), naming_flags(_FLAGS):
        from xattn.evaluation.datasets import NAMED, load_dataset
        from xattn.evaluation.probing import STRENGTHS, WEIGHTINGS, linear_probing

        limit = limit if limit is not None else 200 if data in NAMED else None
        names = comma_separated(weighting or WEIGHTINGS)
        judged = None if test is None else load_dataset(test)
        found = linear_probing(
            model,
            load_dataset(data, n=limit),
            names,
            test=judged,
            layer=layer,
            strength=strengths or STRENGTHS,
            folds=folds,
            seed=seed,
        )
        _print(found)
        if out is not None:
            _write(found, out)
            terminal.say(f"Wrote {out}")


def _numbers(given: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in (given or "").split(",") if part.strip())
    except ValueError:
        raise typer.BadParameter(
            f"expected numbers, separated by commas; got {given!r}", param_hint="--strength"
        ) from None


def _print(found: "Probing") -> None:
    table = terminal.table("weighting", "accuracy", "95% interval", "against uniform", "p (Holm)")
    for name, accuracy, low, high, _, difference, p, _ in _rows(found):
        compared = ("", "") if p == "" else (f"{difference:+.3f}", f"{p:.3g}")
        table.add_row(str(name), f"{accuracy:.3f}", f"{low:.3f} to {high:.3f}", *compared)
    terminal.show(table)
    terminal.say(f"{len(found.samples)} pictures of {len(found.classes)} classes, none judged by a fit that saw it")
    if found.skipped:
        terminal.say(f"{len(found.skipped)} pictures could not be used:")
        for reason in found.skipped.values():
            terminal.say(f"  {reason}")


def _rows(found: "Probing") -> list[Sequence[object]]:
    against = {c.first: (c.difference, c.p_adjusted, c.effect) for c in found.comparisons}
    return [
        (name, a.estimate, a.low, a.high, a.n, *against.get(name, ("", "", ""))) for name, a in found.accuracy.items()
    ]


def _write(found: "Probing", out: Path) -> None:
    import csv
    import io

    from xattn._files import write_atomically

    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([_COLUMNS, *_rows(found)])
    write_atomically(out, lambda target: target.write(file.getvalue().encode()))
