"""Every notebook runs from top to bottom without a network, and is kept small and readable."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from xattn.models import text

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LINES, KILOBYTES = 32, 300  # a screen, and what a repository bears

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


@each
@pytest.mark.filterwarnings("default")  # of the machinery that talks to the kernel
def test_it_runs(path, monkeypatch):
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "OMP_NUM_THREADS"):  # small models: threads only wait
        monkeypatch.setenv(variable, "1")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": FOLDER}}).execute()
    warned = [o.text for o in outputs(notebook) if o.output_type == "stream" and o.name == "stderr"]
    assert [said for said in warned if "Warning:" in said and "IProgress" not in said] == []


@pytest.mark.filterwarnings("default")
def test_without_the_text_model_its_part_is_left_out(monkeypatch, tmp_path):
    if text.installed() is not None:
        pytest.skip("its package is installed")
    monkeypatch.setenv("XATTN_CACHE", str(tmp_path))
    notebook = nbformat.read(FOLDER / "06_text_and_clip.ipynb", as_version=4)
    del notebook.cells[-2:]
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": FOLDER}}).execute()
    said = [o.text for o in outputs(notebook) if o.output_type == "stream" and o.name == "stdout"]
    assert said == [
        "The text part is left out: run `python -m xattn.models.fetch text` once, then this notebook again.\n"
    ]


@each
def test_it_is_kept_small_and_shows_its_results(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    first, *others = notebook.cells
    assert first.cell_type == "markdown"
    assert re.match(r"# .*\?$", first.source.splitlines()[0]), "it starts with the question that it answers"
    assert max(len(cell.source.splitlines()) for cell in others) <= LINES
    assert path.stat().st_size < 1000 * KILOBYTES
    code = [cell for cell in others if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert all(output.output_type != "error" for output in outputs(notebook))


@each
def test_it_names_nobody_s_machine(path):
    assert re.findall(r"(?<![\w.])/(?:home|root|work|tmp|usr|Users)/|site-packages", path.read_text()) == []


def test_all_are_listed():
    listed = re.findall(r"\((\w+\.ipynb)\)", (FOLDER / "README.md").read_text())
    assert listed == [path.name for path in NOTEBOOKS]
