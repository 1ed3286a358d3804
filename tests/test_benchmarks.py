"""The comparison of two benchmark files, and that all benchmarks are run and explained."""

import importlib.util
import json
from pathlib import Path

import pytest

_PATH = Path(__file__).parents[1] / "benchmarks" / "compare.py"
_SPEC = importlib.util.spec_from_file_location("compare_benchmarks", _PATH)
compare = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(compare)


def write(path, **values):
    rows = [
        {"benchmark": "b", "case": "c", "metric": metric, "value": value, "better": better}
        for metric, (value, better) in values.items()
    ]
    path.write_text(json.dumps({"facts": {"load_average": [0, 0, 0], "threads": 1}, "rows": rows}))
    return path


def test_what_got_worse_is_printed_with_the_worst_first(tmp_path, capsys):
    before = write(
        tmp_path / "a.json",
        time=(1.0, "lower"),
        speed_up=(10.0, "higher"),
        steady=(1.0, "lower"),
        error=(1.0, None),
        gone=(1.0, "lower"),
    )
    after = write(
        tmp_path / "b.json",
        time=(1.2, "lower"),
        speed_up=(5.0, "higher"),
        steady=(1.14, "lower"),
        error=(9.0, None),
        new=(9.0, "lower"),
    )
    assert compare.main(before, after) == 2
    lines = [line for line in capsys.readouterr().out.splitlines() if "->" in line]
    assert [line.split(" | ")[2].split(":")[0] for line in lines] == ["speed_up", "time"]
    assert "+100%" in lines[0]
    assert "1 -> 1.2 (+20%)" in lines[1]
    assert compare.main(after, after) == 0


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_better_numbers_are_no_news(better):
    old, new = (2.0, 1.0) if better == "lower" else (1.0, 2.0)
    key = ("b", "c", "m")
    assert compare.slower({key: (old, better)}, {key: (new, better)}) == {}


def test_every_benchmark_is_explained_and_run():
    folder = _PATH.parent
    scripts = {path.stem: path.read_text() for path in folder.glob("[a-z]*.py") if path.stem != "compare"}
    readme, together = (folder / "README.md").read_text(), (folder / "__main__.py").read_text()
    assert len(scripts) > 10
    for name, text in scripts.items():
        assert f"`{name}`" in readme, name
        assert (f'"{name}",' in together) == ("-> list[Row]:" in text), name
