"""Writing files: complete or not at all."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from xattn.errors import ArgumentError


def write_atomically(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> Path:
    """Let `write` fill a file beside `path`, then give it that name; missing folders are made.

    A failure leaves what was there before, and nothing else.

    Raises:
        ArgumentError: If the folder cannot be made or written to.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    except OSError as error:
        raise ArgumentError(f"path: cannot write {str(path)!r} ({error.strerror})") from None
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        Path(partial).chmod(0o666 & ~_umask())
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
