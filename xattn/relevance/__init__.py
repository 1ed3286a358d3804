"""Relevance propagation on unmodified models: a second reading of the autograd graph.

`Recording` opens one forward call, rule sets say how relevance is shared out, `Recording.relevance` takes it. One
recorded forward serves ordinary gradients and any number of relevance passes.
"""

from xattn.relevance.account import Account
from xattn.relevance.call import Call
from xattn.relevance.recording import Recording
from xattn.relevance.rule_set import RULE_SETS, RuleSet, attnlrp, epsilon, lrp, rule_set, transinterp

__all__ = [
    "RULE_SETS",
    "Account",
    "Call",
    "Recording",
    "RuleSet",
    "attnlrp",
    "epsilon",
    "lrp",
    "rule_set",
    "transinterp",
]
