"""What `mkdocs.yml` adds to MkDocs: equations without a script from elsewhere, and the public names of the package."""

import ast
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

ROOT = Path(__file__).parent.parent
BUILT = ROOT / "build" / "docs"
_EQUATION = re.compile(r"^```math\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
_EXPORTS = re.compile(r"^<!-- exports of ([\w.]+) -->$", re.MULTILINE)


def on_startup(**_: Any) -> None:  # noqa: ANN401
    """Lay the folders out as setuptools does: attributions/ and evaluation/ are subpackages of xattn only there.

    At the start, since the plugins look for the folder before any hook is given the configuration.
    """
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    shutil.rmtree(BUILT, ignore_errors=True)
    for package, folder in setup["package-dir"].items():
        target = BUILT / Path(*package.split("."))
        shutil.copytree(ROOT / folder, target, ignore=shutil.ignore_patterns("weights", "__pycache__"))
    for file in BUILT.glob("**/*.py"):  # the reference knows the heading in the plural only
        file.write_text(re.sub(r"^( *)Example:$", r"\1Examples:", file.read_text(), flags=re.MULTILINE))


def on_page_markdown(markdown: str, **_: Any) -> str:  # noqa: ANN401
    """Turn ```math blocks into MathML, which browsers show as it is, and lists of exports into their references."""
    markdown = _EXPORTS.sub(lambda package: "\n".join(map(_reference, exports(package[1]))), markdown)
    return _EQUATION.sub(lambda block: f'<div class="equation">{convert(block[1], display="block")}</div>', markdown)


def exports(package: str) -> list[tuple[str, str, str]]:
    """(package, module, name) of what the `__init__.py` of a package hands out, in its order; no private constants."""
    tree = ast.parse((BUILT / Path(*package.split(".")) / "__init__.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    own = [node for node in imports if node.module and node.module.startswith(f"{package}.")]
    found = [(package, str(node.module), alias.name) for node in own for alias in node.names]
    return [entry for entry in found if not (entry[2].isupper() and "._" in entry[1])]


def _reference(exported: tuple[str, str, str]) -> str:
    package, module, name = exported
    return f"::: {module}.{name}\n    options: {{heading: {package}.{name}, toc_label: {name}}}\n"
