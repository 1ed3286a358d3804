"""xattn: what a transformer looked at, what it saw there, and which explanation to believe."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xattn import markov as markov
    from xattn.attention import AttentionTap as AttentionTap
    from xattn.explain import Explanation as Explanation
    from xattn.explain import explain as explain
    from xattn.layout import TokenLayout as TokenLayout
    from xattn.models import load as load
    from xattn.zero_shot import ZeroShot as ZeroShot

__version__ = "0.1.0"

# Names are imported on first use (PEP 562), so `import xattn` and `xattn --help` stay fast.
_HOME = {
    "AttentionTap": "xattn.attention",
    "Explanation": "xattn.explain",
    "TokenLayout": "xattn.layout",
    "ZeroShot": "xattn.zero_shot",
    "explain": "xattn.explain",
    "load": "xattn.models",
}
_SUBMODULES = {"attributions", "errors", "evaluation", "markov", "models", "viz"}

__all__ = ["AttentionTap", "Explanation", "TokenLayout", "ZeroShot", "explain", "load", "markov"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _SUBMODULES:
        return import_module(f"xattn.{name}")
    raise AttributeError(f"module 'xattn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_SUBMODULES})
