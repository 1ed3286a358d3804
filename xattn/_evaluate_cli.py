"""The command `xattn evaluate`. Heavy imports wait inside it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xattn import _terminal as terminal
from xattn._command import Debug, comma_separated, reporting
from xattn._flags import naming_flags

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from xattn.evaluation._summary import Cell, Summary
    from xattn.evaluation.engines import Engine
    from xattn.evaluation.judges import Judge
    from xattn.evaluation.results import Results

QUICK = "Quick run, few samples and few steps: too little to compare methods."
_QUICK: dict[str, Any] = {"limit": 16, "fractions": (0.0, 0.25, 0.5, 0.75, 1.0)}
_DEFAULT = ("perturbation", "segmentation")
_DEFAULT_TEXT = ("rationale", "token-removal", "eraser")
_FLAGS = {
    "methods": "--method",
    "method": "--method",
    "protocols": "--protocol",
    "protocol": "--protocol",
    "dataset": "--data",
    "out": "--out",
    "n": "--limit",
    "chunk_size": "--chunk",
    "batch_size": "--batch",
} | {name: f"--{name}" for name in ("model", "target", "preset", "engine", "seeds", "limit", "device")}
_INTERRUPTED = 130


def evaluate(
    model: Annotated[str, typer.Option("--model", "-m", help="`xattn models` lists them.")] = "demo",
    data: Annotated[
        str | None,
        typer.Option(
            help="demo, demo-two-object, a folder (pictures by class, images/ and masks/, PASCAL VOC, COCO, "
            "ImageNet-S), .csv or .mat; for text: sentences or sentences-two-topic. The first of these by default.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Names from `xattn methods`, separated by commas; all by default.", show_default=False),
    ] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            help="Names separated by commas; `xattn evaluate --list` shows them. "
            f"By default {' and '.join(_DEFAULT)}, for text {', '.join(_DEFAULT_TEXT)}.",
            show_default=False,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="A published evaluation; `xattn evaluate --list` shows them.", show_default=False),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for rows, tables and report; a run in it is taken up again.")
    ] = Path("xattn-evaluation"),
    limit: Annotated[
        int | None, typer.Option(help="At most this many pictures; 100 by default for the scenes.", show_default=False)
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick/--no-quick", help=f"{_QUICK['limit']} pictures and few steps: under a minute.")
    ] = False,
    negative: Annotated[
        bool,
        typer.Option("--negative/--no-negative", help="Perturbation also with the least relevant pixels first."),
    ] = True,
    correct_only: Annotated[
        bool, typer.Option("--correct-only/--all-pictures", help="Print correctly classified pictures only.")
    ] = False,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken/--stop-at-broken", help="Count unusable pictures, or stop at the first.")
    ] = True,
    target: Annotated[str, typer.Option(help="Class to explain: predicted or label.")] = "predicted",
    seed: Annotated[int, typer.Option(help="Of methods and fills that draw random numbers.")] = 0,
    seeds: Annotated[
        int, typer.Option(help="Number of seeds; what draws random numbers gets mean and deviation over them.")
    ] = 1,
    chunk: Annotated[int, typer.Option(help="Pictures per chunk; part of what makes runs equal bit by bit.")] = 16,
    batch: Annotated[int, typer.Option(help="Most pictures per call of the model.")] = 32,
    engine: Annotated[str, typer.Option(help="local, or ray (one model per worker).")] = "local",
    workers: Annotated[int | None, typer.Option(help="Of the engine ray.", show_default=False)] = None,
    address: Annotated[str | None, typer.Option(help="Of a running Ray cluster.", show_default=False)] = None,
    device: Annotated[str | None, typer.Option(help="Where to run, e.g. cpu or cuda.", show_default=False)] = None,
    listed: Annotated[bool, typer.Option("--list", help="List protocols and presets, and do nothing else.")] = False,
    debug: Debug = False,
) -> None:
    """Judge methods by protocols: one table with intervals, and a report."""
    if listed:
        _list()
        return
    _check_usage(preset, protocol, target, engine, workers=workers, address=address)
    with reporting(debug), _interruptible(out), naming_flags(_FLAGS):
        import warnings

        from xattn.evaluation.datasets import NAMED, load_dataset
        from xattn.evaluation.runner import benchmark

        data = data if data is not None else "sentences" if model == "text" else "demo"
        limit = limit if limit is not None else _QUICK["limit"] if quick else 100 if data in NAMED else None
        dataset = load_dataset(data, n=limit)
        usual = _DEFAULT_TEXT if dataset.holds == "text" else _DEFAULT[: 2 if dataset.has_masks else 1]
        judges, of_preset = _judges(comma_separated(protocol or ()) or usual, preset, quick=quick, negative=negative)
        explained: Any = of_preset if target == "predicted" else target
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            results = benchmark(
                model,
                dataset,
                comma_separated(method or ()) or None,
                judges,
                out,
                engine=_engine(engine, workers, address),
                seed=seed,
                seeds=seeds,
                target=explained,
                chunk_size=chunk,
                batch_size=batch,
                on_broken="skip" if skip_broken else "raise",
                device=device,
                progress=True,
            )
        if quick:
            results = replace(results, facts={"quick": QUICK, **results.facts})
        _print(results, correct_only)
        for path in _write(results, out):
            terminal.say(f"Wrote {path}")


def _list() -> None:
    """Protocols and presets, with what they are."""
    from xattn.evaluation.presets import JUDGES, PRESETS

    table = terminal.table("protocol", "for", "what it measures")
    for judge in JUDGES.values():
        table.add_row(judge.name, judge.reads, ", ".join(f"{m.name} {m.arrow}".strip() for m in judge.metrics))
    terminal.show(table)
    table = terminal.table("preset", "what it is")
    for preset in PRESETS.values():
        table.add_row(preset.name, preset.about)
    terminal.show(table)


def _judges(names: Sequence[str], preset: str | None, *, quick: bool, negative: bool) -> "tuple[list[Judge], Any]":
    """Protocols with the options that the flags ask for, and the class to explain."""
    from xattn.evaluation.judges import find_judge
    from xattn.evaluation.presets import find_preset

    chosen = find_preset(preset) if preset is not None else None
    wanted: Sequence[str | Judge] = chosen.protocols if chosen else names
    judges = []
    for judge in map(find_judge, wanted):
        options = judge.configuration()
        changed: dict[str, Any] = {}
        if not negative and "negative" in options.get("orders", ()):
            changed["orders"] = ("positive",)
        fractions = options.get("fractions", ())
        if quick and (fractions is None or 0.0 in fractions):
            changed["fractions"] = _QUICK["fractions"]
        judges.append(judge.configured(**changed) if changed else judge)
    return judges, chosen.target if chosen else "predicted"


def _check_usage(preset: str | None, protocol: list[str] | None, target: str, engine: str, **of_ray: object) -> None:
    """Refuse options that do not go together."""
    if preset is not None and protocol:
        raise typer.BadParameter("give either --preset or --protocol", param_hint="--preset")
    if target not in ("predicted", "label"):
        raise typer.BadParameter(f"expected predicted or label; got {target!r}", param_hint="--target")
    for name, value in of_ray.items():
        if engine != "ray" and value is not None:
            raise typer.BadParameter("is for --engine ray", param_hint=f"--{name}")


def _engine(name: str, workers: int | None, address: str | None) -> "str | Engine":
    if name != "ray":
        return name
    from xattn.evaluation.engines import RayEngine, import_ray

    import_ray()
    return RayEngine(address, workers)


@contextmanager
def _interruptible(out: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        kept = any((out / "rows").rglob("*.parquet"))
        went_on = f"what was finished is kept in {out}, and the same command goes on from there"
        terminal.say(f"interrupted: {went_on if kept else 'nothing was finished yet'}", to_stderr=True)
        raise typer.Exit(_INTERRUPTED) from None


def _print(results: "Results", correct_only: bool) -> None:
    from xattn.evaluation._formats import caption

    summary = results.table(correct_only=correct_only)
    for protocol, table in summary.by_protocol().items():
        for part in _fitting(protocol, table):
            terminal.show(part)
    terminal.say(caption(summary))
    for name, reason in results.refused.items():
        terminal.say(f"left out {name}: {reason}")
    if results.skipped:
        terminal.say(f"{len(results.skipped)} samples could not be used:")
        for reason in results.skipped.values():
            terminal.say(f"  {reason}")


def _fitting(protocol: str, summary: "Summary") -> "list[Table]":
    """As few tables as the terminal's width allows, with equally many metrics each."""
    console, columns = terminal.console(), summary.columns
    unlimited = console.options.update(width=10_000)
    for size in range(len(columns), 0, -1):
        parts = [
            _table(protocol, replace(summary, columns=columns[start : start + size]))
            for start in range(0, len(columns), size)
        ]
        if all(console.measure(part, options=unlimited).maximum <= console.width for part in parts):
            break
    return parts


def _table(protocol: str, summary: "Summary") -> "Table":
    from xattn.evaluation._formats import lines

    head, body = lines(summary, _cell)
    filled = terminal.table(protocol, *head[1:])
    for column in filled.columns:
        column.no_wrap = True
    for row in body:
        filled.add_row(*row)
    return filled


def _cell(cell: "Cell") -> "Text":
    """Value in the first line, its interval in the second."""
    from rich.text import Text

    from xattn.evaluation._formats import number

    value, bracket, interval = number(cell).partition(" [")
    text = Text(f"{value} ≈" if cell.is_tied else value, style="bold" if cell.is_clear else "")
    return text.append(f"\n{bracket.strip()}{interval}", style="dim not bold") if interval else text


def _write(results: "Results", out: Path) -> list[Path]:
    return [
        results.report(out / "report.html"),
        results.to_parquet(out / "rows.parquet"),
        results.to_csv(out / "table.csv"),
        results.to_markdown(out / "table.md"),
        results.to_latex(out / "table.tex"),
    ]
