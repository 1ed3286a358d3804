"""Reading weight files: the expected file or one clear error."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from xattn.errors import WeightsError


def check_sha256(path: Path, expected: str) -> None:
    """Raises WeightsError, with both sums, if the file is missing or not the expected one."""
    if not path.is_file():
        raise WeightsError(f"there is no weights file {path}.")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise WeightsError(f"{path.name} has a wrong checksum: expected SHA-256 {expected}, found {found}.")


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} is not a readable safetensors file ({error}).") from None


def content_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names and values of tensors, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def read_checked_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file that carries its own `content_sha256`; a damaged byte is noticed."""
    from safetensors import safe_open

    tensors = read_weights(path)
    with safe_open(path, framework="pt") as file:
        expected = (file.metadata() or {}).get("content_sha256", "none")
    found = content_sha256(tensors)
    if found != expected:
        raise WeightsError(f"{path.name} is damaged: expected content with SHA-256 {expected}, found {found}.")
    return tensors
