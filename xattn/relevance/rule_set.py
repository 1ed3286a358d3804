"""Rule sets: which rule for which kind of operation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.relevance.call import Call
from xattn.relevance.operations import KINDS
from xattn.relevance.rules import (
    Add,
    AlphaBeta,
    Bilinear,
    Epsilon,
    FixedNorm,
    Gamma,
    Guarded,
    Identity,
    Reweigh,
    Rule,
    Signed,
    SoftmaxTaylor,
    Stabilizer,
    Uniform,
    ZBox,
)


@dataclass(frozen=True)
class RuleSet:
    """A mapping from operations to rules.

    Keys are kinds of operation, or the name of one function ("erf", "gelu"), which goes before its kind. The kinds:
    "linear" (dense layers, products with a constant matrix), "conv", "input_conv" (the first one of the forward),
    "matmul" (both factors depend on the input), "add", "mix" (sum of two scaled terms: rotary embeddings),
    "sum" (sums and averages over a dimension), "softmax", "norm", "normalize" (division by a statistic),
    "activation", "gate" (elementwise product), "scale" (product with constants), "shift" (a constant added) and
    "select" (one token picked).

    Attributes:
        name: For messages and tables.
        rules: The mapping.
        split: What becomes of the sum of relevances that come back to a tensor read several times; None leaves it.
        start: What each sample starts with at its score: "one", or the "score" itself.
        robust: Whether maps stay the same where weights are rounded to half precision (measured for "attnlrp").
    """

    name: str
    rules: Mapping[str, Rule] = field(repr=False)
    split: Reweigh | None = None
    start: Literal["one", "score"] = "one"
    robust: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", MappingProxyType(dict(self.rules)))

    def find(self, call: Call) -> Rule | None:
        """The rule for a call, None without one."""
        by_name = None if call.name in KINDS else self.rules.get(call.name)
        return by_name or self.rules.get(call.kind)

    def extended(self, rules: Mapping[str, Rule], name: str | None = None) -> "RuleSet":
        """A copy with more or other rules.

            rule_set("lrp").extended({"erf": Identity(), "input_conv": Flat()})

        Args:
            rules: Added to, and before, those there are.
            name: Name of the copy.
        """
        return replace(self, name=name or f"{self.name}, extended", rules={**self.rules, **rules})

    def start_value(self, score: Tensor) -> Tensor:
        """(B,) relevance at the start."""
        return torch.ones_like(score) if self.start == "one" else score


_COMMON: Mapping[str, Rule] = {
    **dict.fromkeys(("softmax", "norm", "normalize", "activation", "scale", "shift"), Identity()),
    **dict.fromkeys(("pow", "__pow__", "square"), Identity()),  # in activations that are written out
    "gate": Uniform(),
}


def transinterp() -> RuleSet:
    """Rules of Chefer et al., CVPR 2021 (`layers_ours`): z-plus, residual sums rescaled per sample. No conservation.

    Biases and the position embedding take no relevance with them; the denominator's 1e-9 and the rescaled sums do.
    """
    return RuleSet("transinterp", {**_published(separate=False), "add": Add(normalize=True)}, split=Reweigh())


def lrp() -> RuleSet:
    """The older rules published with it (`layers_lrp`), used there for the full and partial LRP baselines.

    Positive and negative operands of a dense layer each get all relevance, so totals grow by up to two in each.
    """
    return RuleSet("lrp", _published(separate=True), split=Reweigh())


def epsilon(epsilon: float = 1e-6) -> RuleSet:
    """The epsilon rule throughout, softmax and norms handing relevance on. It starts with the score.

    Conserves relevance but for the shares of biases, constant terms and `epsilon`.
    """
    return RuleSet("epsilon", {**_proportional(Signed(epsilon)), "matmul": Bilinear(Signed(epsilon))}, start="score")


def attnlrp(epsilon: float = 1e-6, gamma: float | None = None) -> RuleSet:
    """Rules of Achtibat et al., ICML 2024. It starts with the score.

    Conserves relevance but for the shares of biases, constant terms, `epsilon` and the softmax's constant term.

    Args:
        epsilon: The stabiliser.
        gamma: Use the gamma rule in dense layers and convolutions; the paper does for vision transformers.
    """
    rules: dict[str, Rule] = {
        **_proportional(Signed(epsilon)),
        "matmul": Bilinear(Signed(epsilon / 2)),
        "softmax": SoftmaxTaylor(),
        "norm": FixedNorm(Signed(epsilon)),
    }
    if gamma is not None:
        rules |= dict.fromkeys(("linear", "conv", "input_conv"), Gamma(gamma, Signed(epsilon)))
    return RuleSet("attnlrp", rules, start="score", robust=True)


def _published(separate: bool) -> dict[str, Rule]:
    dense, share = AlphaBeta(separate=separate), Epsilon(Guarded())
    return {
        **_COMMON,
        "linear": dense,
        "conv": dense,
        "input_conv": ZBox(),
        "matmul": Bilinear(),
        "add": Add(),
        "mix": share,
        "sum": share,
        "select": Reweigh(),
    }


def _proportional(stabilizer: Stabilizer) -> dict[str, Rule]:
    share = Epsilon(stabilizer)
    linear = dict.fromkeys(("linear", "conv", "input_conv", "mix", "sum"), share)
    return {**_COMMON, **linear, "add": Add(stabilizer=stabilizer), "select": Identity()}


RULE_SETS: Mapping[str, Callable[[], RuleSet]] = MappingProxyType(
    {"transinterp": transinterp, "lrp": lrp, "attnlrp": attnlrp, "epsilon": epsilon}
)
"""Named rule sets."""


def rule_set(name: str) -> RuleSet:
    """The rule set of that name.

    Raises:
        ArgumentError: If there is none; it lists them.
    """
    if name not in RULE_SETS:
        raise ArgumentError(f"rules: expected a RuleSet or one of {', '.join(RULE_SETS)}, got {name!r}")
    return RULE_SETS[name]()


def ensure_rule_set(rules: str | RuleSet) -> RuleSet:
    """A rule set, given itself or its name."""
    if isinstance(rules, str):
        return rule_set(rules)
    if not isinstance(rules, RuleSet):
        raise ArgumentTypeError(f"rules: expected a RuleSet or its name, got {type(rules).__name__}")
    return rules
