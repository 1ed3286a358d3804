"""The documentation is true: its code runs, every method has its card, and the site builds without a warning."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from xattn import markov
from xattn.attributions import methods
from xattn.cli import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("**/*.md"))
CARDS = DOCS / "methods"
SECTIONS = ["Equation", "What it claims", "Cost", "Picture", "When it misleads", "Paper"]
RUN = re.compile(r"(<!-- not run: (?P<reason>.*?) -->\n)?^```(?P<kind>python|sh)\n(?P<code>.*?)^```$", re.S | re.M)
KILOBYTES = 40

each_method = pytest.mark.parametrize("name", methods)


def blocks(page):
    """(kind, code, line) of each block that can run; one that cannot has a reason in a comment above it."""
    text = page.read_text()
    for block in RUN.finditer(text):
        if not block["reason"]:
            yield block["kind"], block["code"], text[: block.start("code")].count("\n")


def run_shell(code):
    """Commands of xattn, one a line, through its command line."""
    for line in code.replace("\\\n", " ").splitlines():
        command, *arguments = shlex.split(line, comments=True)
        assert command == "xattn", f"{line!r} is no command of xattn; say why it is not run"
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, f"{line}\n{done.output}"


@pytest.mark.parametrize("page", [page for page in PAGES if list(blocks(page))], ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    namespace = {"__name__": "__main__"}
    for kind, code, line in blocks(page):
        if kind == "sh":
            run_shell(code)
        else:
            exec(compile("\n" * line + code, str(page.relative_to(ROOT)), "exec"), namespace)


@each_method
def test_every_method_has_a_card(name):
    card = (CARDS / f"{name}.md").read_text()
    assert card.startswith(f"# {name}\n\n`{methods[name].__name__}`: ")
    assert re.findall(r"^## (.*)$", card, re.M) == SECTIONS
    assert "```math" in card
    assert f"](../images/methods/{name}.jpg)" in card
    assert (DOCS / "images" / "methods" / f"{name}.jpg").stat().st_size < KILOBYTES * 1000


@each_method
def test_a_card_tells_the_passes_that_the_method_declares(name):
    cost = re.search(r"## Cost\n\n(.*?)\n\n## Picture", (CARDS / f"{name}.md").read_text(), re.S)[1]
    forwards, backwards = map(int, re.match(r"(\d+) forward.*?, (\d+) backward", cost).groups())
    assert (forwards, backwards) == (methods[name].forwards, methods[name].backwards)


@each_method
def test_a_card_gives_the_measured_rate_of_two_objects_told_apart(name):
    if not methods[name].is_class_specific:
        return
    table = (DOCS / "class_discrimination.md").read_text()
    row = re.search(rf"^\| {name} \|.*\| ([\d.]+) \([^|]*\|$", table, re.M)
    if row is None:
        pytest.skip(f"{name} was not measured")
    both = float(row[1])
    text = (CARDS / f"{name}.md").read_text()
    assert re.search(rf"{both:g}(\.0)? %", text), f"the card of {name} does not say {both:g} %"


def test_there_is_no_card_without_a_method():
    assert {path.stem for path in CARDS.glob("*.md")} - {"index"} == set(methods)


def test_the_table_of_quick_checks_lists_every_method():
    table = re.search(r"<!-- measured.*?-->\n(.*?)\n<!-- /measured -->", (CARDS / "index.md").read_text(), re.S)[1]
    assert re.findall(r"^\| \[(\w+)\]", table, re.M) == list(methods)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_pictures_exist(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M)
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", prose):
        assert (page.parent / target).exists(), target


@pytest.mark.filterwarnings("default")
def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path):
    pytest.importorskip("material", reason="the documentation needs pip install 'xattn[docs]'")
    pytest.importorskip("mkdocstrings_handlers.python", reason="the documentation needs pip install 'xattn[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    pages = [page.read_text() for page in tmp_path.glob("**/*.html")]
    assert len(pages) > len(methods)
    reference = (tmp_path / "api" / "markov.html").read_text()
    assert [name for name in markov.__all__ if f"xattn.markov.{name}" not in reference] == []
    fetched = re.compile(r"<(?:script|img|iframe)[^>]+src=[\"']?https?:|<link[^>]+href=[\"']?https?:[^>]+stylesheet")
    assert [match for page in pages for match in fetched.findall(page)] == []
