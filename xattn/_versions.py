"""Versions of what numbers depend on."""

import sys
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("xattn", "torch", "captum", "timm", "transformers", "torchvision", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Version of Python and of each package that is installed."""
    found = {"python": sys.version.split()[0]}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
