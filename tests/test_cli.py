import json
import resource
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from text_models import tiny_text_model
from tiny_models import timm_vit
from typer.testing import CliRunner

import xattn.models
from xattn import __version__, cli
from xattn._device import find_device
from xattn.attributions import methods
from xattn.errors import WeightsError
from xattn.models.image import Preprocess
from xattn.models.model import Model

CLASSES = ("star", "ring", "cross", "heart", "fish")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def model():
    return Model("tiny", timm_vit().eval(), Preprocess((32, 32)), CLASSES)


@pytest.fixture(autouse=True)
def _models(monkeypatch, model):
    load = xattn.models.load

    def with_tiny(name, device="cpu"):
        return model if name == "tiny" and find_device(device) else load(name, device=device)

    monkeypatch.setattr(xattn.models, "load", with_tiny)


@pytest.fixture
def picture(tmp_path):
    generator = np.random.default_rng(0)
    file = tmp_path / "picture.png"
    Image.fromarray(generator.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(file)
    return file


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def explain(picture, out, *arguments):
    return run("explain", picture, "--model", "tiny", "--out", out, *arguments)


def pixels(file):
    with Image.open(file) as image:
        return np.asarray(image)


def flat(text):
    """Without the box and the line breaks of a usage error."""
    return " ".join(text.replace("│", " ").split())


def test_help_is_fast_and_imports_nothing_heavy():
    code = """
import sys
from xattn.cli import main
try:
    main(["--help"])
except SystemExit as done:
    assert done.code == 0
heavy = {"torch", "numpy", "matplotlib", "captum", "timm", "transformers", "torchvision"} & set(sys.modules)
print("imported:", sorted(heavy))
"""
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Processor time, so that a machine that is busy with other things does not matter.
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert "imported: []" in done.stdout
    for command in ("explain", "methods", "models", "demo"):
        assert command in done.stdout
    assert min(seconds) < 0.5


def test_every_command_has_help():
    for command in ("explain", "methods", "models", "demo"):
        result = run(command, "--help")
        assert result.exit_code == 0
        assert "--debug" in result.output


def test_version():
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"xattn {__version__}\n")


def test_methods_lists_the_registry():
    result = run("methods")
    assert result.exit_code == 0
    first_words = [line.split()[0] for line in result.stdout.splitlines() if line.strip()]
    assert [word for word in first_words if word in methods] == list(methods)
    assert "…" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_models_lists_what_load_takes():
    result = run("models")
    assert result.exit_code == 0
    for name in ("demo", "photos", "timm:NAME", "hf:NAME", "torchvision:NAME"):
        assert name in result.stdout
    assert "not the published" in flat(result.stdout).replace("  ", " ") or "not the" in result.stdout


def test_explain_writes_a_figure_and_prints_the_prediction(picture, tmp_path, model):
    out = tmp_path / "figure.png"
    result = explain(picture, out, "--method", "tokenrank,NBounceAttention", "--method", "center")
    assert result.exit_code == 0, result.output
    assert out.read_bytes().startswith(PNG)
    width, height = pixels(out).shape[1::-1]
    assert width > 2.5 * height  # the picture and three methods in a row
    best = int(model(model.preprocess(picture)[None]).argmax())
    lines = result.stdout.splitlines()
    assert lines[0] == f"{picture} (tiny)"
    assert lines[1].endswith(f"{CLASSES[best]}  <- explained")
    assert "%" in lines[1]
    assert len([line for line in lines if "%" in line]) == 5
    assert "3 methods in" in result.stdout
    assert lines[-1] == f"Wrote {out}"


def test_explain_writes_numbers(picture, tmp_path):
    out = tmp_path / "new" / "folder" / "numbers.npz"
    result = explain(picture, out, "--target", "heart", "--layer", "0,1", "--method", "tokenrank", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "heart" in result.stdout
    with np.load(out) as arrays:
        facts = json.loads(str(arrays["facts"]))[0]
        assert arrays["map/tokenrank"].shape == (1, 4, 4)
    assert (facts["target"], facts["target_name"]) == (3, "heart")
    assert facts["methods"]["tokenrank"]["layers"] == [0, 1]
    assert [path.name for path in out.parent.iterdir()] == ["numbers.npz"]


@pytest.mark.parametrize(("layer", "expected"), [("-1", -1), ("all", "all"), ("0", 0)])
def test_layer_forms(layer, expected, picture, tmp_path):
    out = tmp_path / "numbers.npz"
    assert explain(picture, out, "--method", "tokenrank", "--layer", layer).exit_code == 0
    with np.load(out) as arrays:
        assert json.loads(str(arrays["facts"]))[0]["methods"]["tokenrank"]["layers"] == expected


def test_all_methods_by_default_and_several_pictures_give_a_grid(picture, tmp_path):
    other = tmp_path / "other.png"
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(other)
    numbers = tmp_path / "numbers.npz"
    result = run("explain", picture, other, "--model", "tiny", "--out", numbers)
    assert result.exit_code == 0, result.output
    with np.load(numbers) as arrays:
        assert arrays["methods"].tolist() == list(methods)
        assert len(arrays["map/tokenrank"]) == 2
    figure = tmp_path / "figure.png"
    assert run("explain", picture, other, "-m", "tiny", "--method", "center", "-o", figure).exit_code == 0
    width, height = pixels(figure).shape[1::-1]
    assert 0.6 < width / height < 1.1  # two pictures and one method: two by two


@pytest.mark.parametrize("suffix", [".png", ".PNG", ".pdf", ".svg"])
def test_figure_formats(suffix, picture, tmp_path):
    out = tmp_path / f"figure{suffix}"
    assert explain(picture, out, "--method", "center").exit_code == 0
    head = out.read_bytes()[:300]
    assert head.startswith((PNG, b"%PDF")) or b"<svg" in head or b"<?xml" in head


@pytest.mark.parametrize("flag", ["shared-scale", "smooth"])
def test_flags_work_both_ways(flag, picture, tmp_path):
    opposite = {"shared-scale": "own-scale", "smooth": "patches"}[flag]
    files = {}
    for name in (flag, opposite, None):
        out = tmp_path / f"{name}.png"
        extra = [] if name is None else [f"--{name}"]
        assert explain(picture, out, "--method", "tokenrank,random", *extra).exit_code == 0
        files[name] = pixels(out)
    assert np.array_equal(files[opposite], files[None])
    assert files[flag].shape != files[None].shape or not np.array_equal(files[flag], files[None])


def corrupt(tmp_path):
    file = tmp_path / "corrupt.jpg"
    file.write_bytes(b"\xff\xd8\xff\xe0 this is no picture")
    return file


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{picture}", "--method", "shap"], "method: expected one of tokenrank"),
        (["{picture}", "--target", "5"], "target: "),
        (["{picture}", "--target", "dog"], "'dog'"),
        (["{picture}", "--method", "tokenrank", "--layer", "9"], "no self-attention layer 9"),
        (["{picture}", "--method", "rollout-of-nothing,tokenrank"], "got 'rollout-of-nothing'"),
        (["{picture}", "--model", "nothing"], "no model 'nothing'"),
        (["{picture}", "--device", "quantum"], "device: 'quantum' cannot be used"),
        (["{picture}", "--device", "meta"], "device: 'meta' cannot be used (Cannot copy out of meta tensor; no data!)"),
        (["{corrupt}"], "is not a readable picture"),
        (["{picture}", "{corrupt}"], "is not a readable picture"),
        (["{folder}/missing.png"], "there is no file"),
        (["{folder}"], "there is no file"),
    ],
)
def test_errors_are_one_message_and_leave_no_file(arguments, message, picture, tmp_path):
    names = {"picture": picture, "corrupt": corrupt(tmp_path), "folder": tmp_path}
    before = sorted(tmp_path.iterdir())
    given = [argument.format(**names) for argument in arguments]
    if "--model" not in given:
        given += ["--model", "tiny"]
    for out in ("out/figure.png", "numbers.npz"):
        result = run("explain", *given, "--out", tmp_path / out)
        assert result.exit_code == 1
        assert result.stdout == ""
        *progress, error = result.stderr.splitlines()
        assert error.startswith("error: ")
        assert message in error
        assert all(line.startswith("explaining ") for line in progress)
        assert "Traceback" not in result.output
        assert sorted(tmp_path.iterdir()) == before


def test_debug_shows_the_traceback(tmp_path):
    code = "from xattn.cli import main; main()"
    arguments = ["explain", str(tmp_path / "missing.png"), "--model", "tiny", "--out", str(tmp_path / "a.png")]
    for flag, shown in (("--debug", True), ("--no-debug", False)):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments, flag], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert ("Traceback" in done.stderr) is shown
        assert "there is no file" in done.stderr


def test_unexpected_errors_are_named_too(picture, tmp_path, monkeypatch):
    def broken(name, **options):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(xattn.models, "load", broken)
    result = explain(picture, tmp_path / "a.png")
    assert result.exit_code == 1
    assert "unexpected ZeroDivisionError: by zero (--debug shows where)" in result.stderr


def test_missing_weights_say_what_to_do(picture, tmp_path, monkeypatch):
    def missing(name, **options):
        raise WeightsError("model 'photos': run `python -m xattn.models.fetch` once")

    monkeypatch.setattr(xattn.models, "load", missing)
    result = run("explain", picture, "--out", tmp_path / "a.png")
    assert result.exit_code == 1
    assert result.stderr == "error: model 'photos': run `python -m xattn.models.fetch` once\n"


def test_a_failure_while_writing_leaves_nothing(picture, tmp_path, monkeypatch):
    def full(self, file, **options):
        file.write(b"half a figure")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    before = sorted(tmp_path.iterdir())
    result = explain(picture, tmp_path / "a.png", "--method", "center")
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{picture}", "--out", "a.gif"], "one of .png, .pdf, .svg, .npz; got 'a.gif'"),
        (["{picture}", "--out", "a"], "got 'a'"),
        (["{picture}"], "Missing option"),
        (["--out", "a.png"], "Missing argument"),
        (["{picture}", "--out", "a.png", "--layer", "last"], "got 'last'"),
        (["{picture}", "--out", "a.png", "--speed", "9"], "No such option"),
        (["a sentence", "--out", "a.png", "--model", "text", "--smooth"], "only pictures are"),
        (["a sentence", "--out", "a.gif", "--model", "text"], ".npz, .html; got 'a.gif'"),
    ],
)
def test_wrong_usage_is_exit_code_two_before_any_work(arguments, message, picture, monkeypatch):
    monkeypatch.setattr(xattn.models, "load", lambda name, **options: pytest.fail("a model was loaded"))
    result = run("explain", *[argument.format(picture=picture) for argument in arguments])
    assert result.exit_code == 2
    assert message in flat(result.stderr)


def test_what_cannot_be_written_is_refused_before_any_work(picture, tmp_path, monkeypatch):
    monkeypatch.setattr(xattn.models, "load", lambda name, **options: pytest.fail("a model was loaded"))
    folder = tmp_path / "folder.png"
    folder.mkdir()
    result = explain(picture, folder)
    assert result.exit_code == 1
    assert "is a folder" in result.stderr
    result = explain(picture, picture / "a.png")  # below a file
    assert result.exit_code == 1
    assert "cannot write into" in result.stderr


def test_warnings_of_methods_are_printed(picture, tmp_path, monkeypatch):
    def worried(self, forward, reducer):
        warnings.warn("nothing here", stacklevel=2)
        return torch.zeros(1, forward.layout.num_tokens)

    monkeypatch.setattr(methods["center"], "_relevance", worried)
    result = explain(picture, tmp_path / "a.png", "--method", "center")
    assert result.exit_code == 0, result.output
    assert "  center warns: nothing here" in result.stdout.splitlines()


def test_skipped_methods_are_printed(picture, tmp_path, monkeypatch):
    pooled = Model("pooled", timm_vit(class_token=False, global_pool="avg").eval(), Preprocess((32, 32)), CLASSES)
    monkeypatch.setattr(xattn.models, "load", lambda name, **options: pooled)
    result = explain(picture, tmp_path / "a.npz")
    assert result.exit_code == 0
    assert "skipped dino_attention: forward_func: DINOAttention needs a class token" in result.stdout
    result = explain(picture, tmp_path / "b.npz", "--method", "dino_attention")
    assert result.exit_code == 1
    assert not (tmp_path / "b.npz").exists()


def test_markup_in_names_is_printed_as_it_is(picture, tmp_path):
    odd = tmp_path / "[red]odd[bold].png"
    picture.rename(odd)
    result = explain(odd, tmp_path / "a.npz", "--method", "center")
    assert result.exit_code == 0
    assert f"{odd} (tiny)" in result.stdout
    assert torch.is_grad_enabled()


@pytest.fixture
def sentences(monkeypatch, tmp_path):
    text_model = tiny_text_model(tmp_path)
    monkeypatch.setattr(xattn.models, "load", lambda name, **options: {"text": text_model}[name])
    return ["The nurse, again.", "Was it the wolf or the choir?"]


@pytest.mark.parametrize("suffix", [".png", ".html"])
@pytest.mark.parametrize("count", [1, 2])
def test_sentences_are_explained_where_the_model_reads_text(suffix, count, sentences, tmp_path):
    out = tmp_path / f"out{suffix}"
    arguments = ["--model", "text", "--method", "tokenrank,random", "--target", "music", "--out", out]
    result = run("explain", *sentences[:count], *arguments)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "The nurse, again. (tiny)"
    assert sum("<- explained" in line or "explained: music" in line for line in lines) == count
    if suffix == ".png":
        assert out.read_bytes().startswith(PNG)
    else:
        page = out.read_text()
        assert page.count("<h2>") == count
        assert ">nurse</span>" in page
        assert page.count("tokenrank</th>") == 2 * count  # beside its words, and in how they were made


def test_numbers_of_sentences_are_filled_up_with_zeros(sentences, tmp_path):
    out = tmp_path / "numbers.npz"
    assert run("explain", *sentences, "--model", "text", "--method", "tokenrank", "--out", out).exit_code == 0
    with np.load(out) as arrays:
        tokens, words = arrays["tokens"], arrays["words"]
        assert words[0].tolist() == ["The", "nurse", ",", "again", ".", "", "", ""]
        assert (arrays["map/tokenrank"][tokens == ""] == 0).all()
        assert (arrays["words/tokenrank"][words == ""] == 0).all()
        assert json.loads(str(arrays["facts"]))[1]["text"] == sentences[1]


def test_a_page_is_for_sentences_only(picture, tmp_path):
    assert explain(picture, tmp_path / "a.html").exit_code == 2


def test_a_picture_is_no_sentence(picture, tmp_path):
    result = run("explain", picture, "--model", "text", "--out", tmp_path / "a.html")
    assert result.exit_code == 1
    assert "is a file; the model 'text' reads sentences" in flat(result.stderr)
    assert not (tmp_path / "a.html").exists()


def test_empty_method_names_are_refused_and_repeated_ones_run_once(picture, tmp_path):
    result = explain(picture, tmp_path / "a.npz", "--method", "")
    assert result.exit_code == 1
    assert "--method: expected names" in flat(result.stderr)
    assert explain(picture, tmp_path / "a.npz", "--method", "tokenrank,,tokenrank").exit_code == 0
    with np.load(tmp_path / "a.npz") as saved:
        assert saved["methods"].tolist() == ["tokenrank"]


def test_a_log_gets_a_line_for_each_of_several_pictures(picture, tmp_path):
    other = picture.with_name("other.png")
    other.write_bytes(picture.read_bytes())
    result = run("explain", picture, other, "--model", "tiny", "--method", "center", "--out", tmp_path / "a.png")
    assert "explaining picture.png" in result.stderr
    assert "explaining other.png" in result.stderr
