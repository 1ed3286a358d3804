"""Every method by name: the command line, the tables and the test suite read this list.

A new method is one file and its name here, and in what the package exports.
"""

from difflib import get_close_matches

from xattn.attributions.attention import AttentionRollout, DINOAttention, RawAttention
from xattn.attributions.base import TransformerAttribution
from xattn.attributions.class_chain import ClassTokenRank
from xattn.attributions.controls import CenterPrior, RandomAttribution
from xattn.attributions.gradient import AttentionGradCAM, GenericAttention, GradientRollout
from xattn.attributions.markov import ColumnSum, Lambda2Rollout, NBounceAttention, TokenRank
from xattn.attributions.prediction import PredictionAttention, PredictionMap
from xattn.attributions.relevance import LRP, AttnLRP, PartialLRP, RelevanceRollout, TransInterp
from xattn.attributions.token_gradcam import TokenGradCAM
from xattn.errors import ArgumentError

_METHODS: tuple[type[TransformerAttribution], ...] = (
    TokenRank,
    NBounceAttention,
    Lambda2Rollout,
    ColumnSum,
    RawAttention,
    AttentionRollout,
    DINOAttention,
    AttentionGradCAM,
    GradientRollout,
    GenericAttention,
    TokenGradCAM,
    PredictionMap,
    PredictionAttention,
    ClassTokenRank,
    TransInterp,
    RelevanceRollout,
    PartialLRP,
    LRP,
    AttnLRP,
    RandomAttribution,
    CenterPrior,
)

methods: dict[str, type[TransformerAttribution]] = {method.name: method for method in _METHODS}
"""Name to class, in the order of tables."""


def find_method(name: str) -> type[TransformerAttribution]:
    """The method of that name; class names, hyphens and capitals are understood ("TokenRank", "n-bounce").

    Raises:
        ArgumentError: If there is none; it lists them, and says which one may have been meant.
    """
    spellings = {_plain(spelling): key for key, method in methods.items() for spelling in (key, method.__name__)}
    wanted = _plain(name)
    if wanted in spellings:
        return methods[spellings[wanted]]
    close = get_close_matches(wanted, spellings, n=1)
    hint = f". Did you mean {spellings[close[0]]!r}?" if close else ""
    raise ArgumentError(f"method: expected one of {', '.join(methods)}; got {name!r}{hint}")


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").strip()
