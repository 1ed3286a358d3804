"""What `mkdocs.yml` adds to MkDocs: equations without a script from elsewhere, and the package as it is installed."""

import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

ROOT = Path(__file__).parent.parent
BUILT = ROOT / "build" / "docs"
_EQUATION = re.compile(r"^```math\n(.*?)\n```$", re.DOTALL | re.MULTILINE)


def on_config(config: Any) -> Any:  # noqa: ANN401
    """Lay the folders out as setuptools does: attributions/ and evaluation/ are subpackages of xattn only there."""
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    shutil.rmtree(BUILT, ignore_errors=True)
    for package, folder in setup["package-dir"].items():
        shutil.copytree(ROOT / folder, BUILT / Path(*package.split(".")), ignore=shutil.ignore_patterns("weights"))
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:  # noqa: ANN401
    """Turn ```math blocks, which code hosts show as they are, into MathML, which browsers show as it is."""
    return _EQUATION.sub(lambda block: f'<div class="equation">{convert(block[1], display="block")}</div>', markdown)
