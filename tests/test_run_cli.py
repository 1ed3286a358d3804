"""`xattn evaluate`: what it prints and writes, its flags both ways, and its errors without a traceback."""

import pytest
from PIL import Image
from run_models import tiny
from text_models import tiny_text_model
from typer.testing import CliRunner

import xattn.models
from xattn import cli
from xattn._device import find_device
from xattn.evaluation import JUDGES, PRESETS
from xattn.evaluation import runner as runner_module


@pytest.fixture(autouse=True)
def _model(monkeypatch):
    load = xattn.models.load

    def with_tiny(name, device="cpu"):
        return tiny() if name == "tiny" and find_device(device) else load(name, device=device)

    monkeypatch.setattr(xattn.models, "load", with_tiny)


@pytest.fixture
def run(tmp_path):
    def call(*arguments, out="out", data="demo", limit=2):
        fixed = ["--model", "tiny", "--data", str(data), "--out", str(tmp_path / out), "--limit", str(limit)]
        return CliRunner().invoke(cli.app, ["evaluate", *fixed, *arguments])

    return call


@pytest.fixture
def seen(monkeypatch):
    """What `benchmark` is called with."""
    calls, real = [], runner_module.benchmark

    def spy(*args, **kwargs):
        calls.append((args, kwargs))
        return real(*args, **kwargs)

    monkeypatch.setattr(runner_module, "benchmark", spy)
    return calls


def test_a_run_prints_a_table_and_writes_everything(run, tmp_path):
    done = run("--method", "token_rank,raw_attention", "--method", "random", "--quick")
    assert done.exit_code == 0, done.output
    for text in ("perturbation", "positive ↓", "segmentation", "miou_dataset ↑", "tokenrank", "random", "2 images"):
        assert text in done.output
    assert max(map(len, done.output.split("2 images")[0].splitlines())) <= 80
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {"rows", "report.html", "rows.parquet", "table.csv", "table.md", "table.tex"}
    assert done.output.count("Quick run") == 1
    for name in ("report.html", "table.md", "table.tex"):
        assert "Quick run" in (tmp_path / "out" / name).read_text(), name
    assert "Quick run" not in run("--method", "raw_attention").output
    assert str(tmp_path / "out" / "report.html") in done.output.replace("\n", "")


def test_wide_tables_are_cut_between_metrics(run, monkeypatch):
    for width, number in ((80, 3), (200, 1)):
        monkeypatch.setenv("COLUMNS", str(width))
        done = run("--method", "attention_rollout", "--protocol", "segmentation")
        assert sum(line.startswith(" segmentation ") for line in done.output.splitlines()) == number
        assert "…" not in done.output
        assert done.output.count("[") == done.output.count("]") == 8
        assert max(map(len, done.output.split("2 images")[0].splitlines())) <= width


def orders(judge):
    return tuple(judge.configuration()["orders"])


@pytest.mark.parametrize(
    ("flag", "read", "expected"),
    [
        ("--negative", lambda a, k: orders(a[3][0]), ("positive", "negative")),
        ("--no-negative", lambda a, k: orders(a[3][0]), ("positive",)),
        ("--quick", lambda a, k: len(a[3][0].configuration()["fractions"]), 5),
        ("--no-quick", lambda a, k: len(a[3][0].configuration()["fractions"]), 11),
        ("--skip-broken", lambda a, k: k["on_broken"], "skip"),
        ("--stop-at-broken", lambda a, k: k["on_broken"], "raise"),
        ("--all-pictures", lambda a, k: k["target"], "predicted"),
    ],
)
def test_flags_both_ways(run, seen, flag, read, expected):
    done = run(flag, "--method", "raw_attention")
    assert done.exit_code == 0, done.output
    assert read(*seen[0]) == expected


def test_correct_only(run):
    done = run("--correct-only", "--method", "raw_attention", limit=12)
    everything = run("--all-pictures", "--method", "raw_attention", limit=12)
    assert "12 images" in everything.output
    assert "12 images" not in done.output


@pytest.mark.parametrize("argument", [("--negative", "false"), ("--no-negative=false",), ("--quick", "no")])
def test_flags_take_no_values(run, argument):
    assert run(*argument, "--method", "raw_attention").exit_code == 2


def test_numbers_reach_the_run(run, seen):
    run(
        "--method",
        "random",
        "--seed",
        "3",
        "--seeds",
        "2",
        "--chunk",
        "1",
        "--batch",
        "7",
        "--protocol",
        "localization",
    )
    (args, kwargs) = seen[0]
    assert (kwargs["seed"], kwargs["seeds"], kwargs["chunk_size"], kwargs["batch_size"]) == (3, 2, 1, 7)
    assert [judge.name for judge in args[3]] == ["localization"]
    assert len(args[1]) == 2


def test_presets(run, seen):
    assert run("--preset", "segmentation-2021", "--method", "raw_attention").exit_code == 0
    assert run("--preset", "masking", "--method", "raw_attention", "--no-negative").exit_code == 0
    first, second = ([(j.name, dict(j.options)) for j in args[3]] for args, _ in seen)
    assert first == [("segmentation", {"threshold": "mean", "interpolation": "bilinear"})]
    assert second == [
        ("token-masking", {"orders": ("positive",)}),
        ("token-masking-accuracy", {"orders": ("positive",), "score": "accuracy"}),
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--method", "nonsense"), 1, "error: --method: expected one of tokenrank"),
        (("--protocol", "nonsense"), 1, "error: --protocol: expected one of"),
        (("--preset", "nonsense"), 1, "error: --preset: expected one of perturbation-2021"),
        (("--preset", "masking", "--protocol", "segmentation"), 2, "either --preset or --protocol"),
        (("--target", "best"), 2, "expected predicted or label"),
        (("--workers", "2"), 2, "is for --engine ray"),
        (("--engine", "spark"), 1, "error: --engine: expected local, ray"),
        (("--chunk", "0"), 1, "error: --chunk: expected a positive integer"),
        (("--protocol", "discrimination"), 1, "two objects"),
        (("--device", "meta"), 1, "error: --device: 'meta' cannot be used"),
        (("--device", "quantum"), 1, "error: --device: 'quantum' cannot be used"),
        (("--model", "nothing"), 1, "there is no model 'nothing'"),
    ],
)
def test_mistakes_give_one_message(run, arguments, code, message):
    done = run(*arguments)
    assert done.exit_code == code
    assert message in " ".join(done.output.replace("│", " ").split())
    assert "Traceback" not in done.output


def test_data_that_is_not_there(run, tmp_path):
    done = run(data=tmp_path / "nowhere")
    assert done.exit_code == 1
    assert "error: --data: there is no file or folder" in done.output
    assert "demo-two-object" in done.output


def test_pictures_without_masks_are_perturbed_only(run, seen, tmp_path):
    (tmp_path / "data" / "ring").mkdir(parents=True)
    Image.new("RGB", (40, 40), "red").save(tmp_path / "data" / "ring" / "a.png")
    (tmp_path / "data" / "ring" / "b.png").write_bytes(b"no picture")
    done = run("--method", "raw_attention", "--quick", data=tmp_path / "data")
    assert done.exit_code == 0, done.output
    assert [judge.name for judge in seen[0][0][3]] == ["perturbation"]
    assert "1 samples could not be used" in done.output
    assert "b.png" in done.output
    assert run("--method", "raw_attention", "--stop-at-broken", data=tmp_path / "data").exit_code == 1
    assert "needs masks" in run("--protocol", "segmentation", data=tmp_path / "data").output


@pytest.mark.parametrize(
    ("kept", "said"),
    [(False, "interrupted: nothing was finished yet"), (True, "the same command goes on from there")],
)
def test_an_interrupt_says_how_to_go_on(run, monkeypatch, kept, said):
    real = runner_module.benchmark

    def interrupted(*args, **kwargs):
        if kept:
            real(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(runner_module, "benchmark", interrupted)
    done = run("--method", "random")
    assert done.exit_code == 130
    assert said in done.output


def test_protocols_and_presets_are_listed(run):
    done = run("--list")
    assert done.exit_code == 0
    for name in (*JUDGES, *PRESETS):
        assert name in done.output


def test_sentences_are_judged(tmp_path, monkeypatch):
    model = tiny_text_model(tmp_path)
    monkeypatch.setattr(xattn.models, "load", lambda name, **options: model)
    options = ["--model", "text", "--limit", "2", "--method", "tokenrank,random", "--quick", "--out", str(tmp_path)]
    done = CliRunner().invoke(cli.app, ["evaluate", *options])
    assert done.exit_code == 0, done.output
    for text in ("rationale_hit ↑", "removal_positive ↓", "comprehensiveness ↑", "sufficiency ↓", "2 sentences"):
        assert text in done.output
