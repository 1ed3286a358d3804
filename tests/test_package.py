"""The package itself: light imports, public names, and examples in docstrings that are true."""

import doctest
import importlib
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import torch

import xattn
from xattn.attributions import methods

ROOT = Path(__file__).parent.parent
HEAVY = ("timm", "torchvision", "transformers", "quantus", "ray", "gradio")


def modules_after(statement):
    code = f"import sys\n{statement}\nprint(' '.join(sys.modules))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import xattn", (*HEAVY, "torch", "captum", "matplotlib")),
        ("from xattn import AttentionTap, TokenLayout, markov, load", (*HEAVY, "captum", "matplotlib")),
        ("import xattn.attributions", HEAVY),
    ],
)
def test_imports_are_light(statement, absent):
    assert set(absent).isdisjoint(modules_after(statement))


def test_public_names_exist():
    for name in xattn.__all__:
        assert getattr(xattn, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'rolout'"):
        _ = xattn.rolout


def test_every_method_is_exported():
    package = importlib.import_module("xattn.attributions")
    for method in methods.values():
        assert getattr(package, method.__name__) is method


PACKAGES = ("attributions", "evaluation", "markov", "models", "relevance", "relevance.rules", "viz")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_star_import_brings_no_modules(package):
    """Names like `markov`, `stats` or `base` are likely to be taken where it is written."""
    brought = {}
    exec(f"from xattn.{package} import *", brought)
    del brought["__builtins__"]
    assert brought
    assert [name for name, value in brought.items() if isinstance(value, ModuleType)] == []


def test_the_version_is_the_same_everywhere():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == xattn.__version__


def test_every_package_is_shipped():
    packages = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    folders = {"xattn": "xattn", "xattn.attributions": "attributions", "xattn.evaluation": "evaluation"}
    found = set(folders)
    for name, folder in folders.items():
        inits = (ROOT / folder).glob("**/__init__.py")
        found |= {".".join([name, *init.parent.relative_to(ROOT / folder).parts]) for init in inits}
    assert packages == found


def test_nothing_is_imported_from_inside_transformers():
    """Its modules of single models are rewritten from one minor release to the next."""
    sources = [file for folder in ("xattn", "attributions", "evaluation") for file in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 100
    assert [str(file.relative_to(ROOT)) for file in sources if "transformers.models." in file.read_text()] == []


def modules():
    for package in ("xattn", "xattn.attributions", "xattn.evaluation"):
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not found.name.endswith("__main__"):
                yield found.name


@pytest.mark.parametrize("name", sorted(set(modules())))
def test_docstring_examples(name):
    options = {"optionflags": doctest.NORMALIZE_WHITESPACE, "extraglobs": {"torch": torch}}
    failed, _ = doctest.testmod(importlib.import_module(name), **options)
    assert failed == 0
