"""The README is true: its code runs, its table is the registry, its commands exist, its figures are the records'."""

import re
import shlex
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from xattn.attributions import methods
from xattn.cli import app
from xattn.errors import WeightsError
from xattn.models import demo, load, photos
from xattn.models.scenes import Scenes

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def method_table():
    """The table of the README, made from the registry."""
    lines = [
        "| name | class | family | what it shows | asks for a class | gradient | passes | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, method in methods.items():
        specific, gradient = ("yes" if fact else "no" for fact in (method.is_class_specific, method.needs_gradient))
        lines.append(
            f"| `{name}` | `{method.__name__}` | {method.family} | {method.summary} | {specific} | {gradient} "
            f"| {method.forwards} + {method.backwards} | {method.paper} |"
        )
    return "\n".join(lines)


def test_the_table_is_the_registry():
    shown = re.search(r"<!-- methods:.*?-->\n(.*?)\n<!-- /methods -->", README, re.DOTALL)
    assert shown
    assert shown.group(1) == method_table()


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_python_blocks_run(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})


def test_commands_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make (\w+)", README):
        assert f"\n{target}:" in makefile


def test_links_and_pictures_exist():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_figures_are_those_of_the_records():
    test = photos.record()["test"]
    low, high = test["wilson95"]
    assert f"{test['accuracy']:.1%}".replace("%", " %") in README
    assert f"{low * 100:.1f} to {high * 100:.1f} %" in README
    test = demo.record()["test"]
    assert f"{test['accuracy'] * 100:.1f} %" in README


SHELL = re.findall(
    r"^xattn .*$", "\n".join(re.findall(r"^```\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)), re.MULTILINE
)


@pytest.mark.parametrize("line", SHELL)
def test_commands_are_understood(line):
    """Names of commands and flags; what the commands do is tested where they are."""
    _, *words = shlex.split(line, comments=True)
    command = [word for word in words[:1] if not word.startswith("-")]
    done = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    for flag in (word for word in words if word.startswith("--")):
        assert re.search(rf"{flag}\b", done.output), flag


def test_results_are_those_of_the_documentation():
    shown = re.search(r"<!-- results -->\n(.*?)\n<!-- /results -->", README, re.DOTALL)[1]
    rows = {row[0]: row[1:] for row in (re.findall(r"[^|]+", line.strip("|")) for line in shown.splitlines()[2:])}
    assert {name.strip(" `") for name in rows} == set(methods)
    documented = (ROOT / "docs" / "results.md").read_text()
    for name, (perturbation, dropped, miou, ap, _) in rows.items():
        for cell in (perturbation, dropped, miou, ap):
            row = rf"^\|{re.escape(name)}\|(.*\|)?{re.escape(cell)}\|"
            assert re.search(row, documented, re.MULTILINE), (name, cell)


# What a line is given besides, so that it needs no download and takes seconds; the last of an option's values counts.
SHORTER = {
    "explain": ["--model", "demo"],
    "compare": ["--model", "demo"],
    "evaluate": ["--limit", "2"],
}


@pytest.mark.parametrize("line", [line for line in SHELL if not line.startswith("xattn app")])  # a server: test_app
def test_commands_run(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command, *words = shlex.split(line, comments=True)[1:]
    is_text = "text" in words
    if is_text:
        try:
            load("text")
        except WeightsError as missing:
            pytest.skip(str(missing))
    scene = (Scenes("test", 1)[0].image.permute(1, 2, 0) * 255).byte().numpy()
    Image.fromarray(scene).save("photo.jpg")
    done = CliRunner().invoke(app, [command, *words, *([] if is_text else SHORTER.get(command, []))])
    assert done.exit_code == 0, done.output
    if "--out" in words:
        assert Path(words[words.index("--out") + 1]).exists()
