"""Relevance propagation on unmodified models: a second reading of the autograd graph.

`Recording` opens one forward call, rule sets say how relevance is shared out, `Recording.relevance` takes it. One
recorded forward serves ordinary gradients and any number of relevance passes.
"""

from xattn.relevance.account import Account as Account
from xattn.relevance.call import Call as Call
from xattn.relevance.recording import Recording as Recording
from xattn.relevance.rule_set import RULE_SETS as RULE_SETS
from xattn.relevance.rule_set import RuleSet as RuleSet
from xattn.relevance.rule_set import attnlrp as attnlrp
from xattn.relevance.rule_set import epsilon as epsilon
from xattn.relevance.rule_set import lrp as lrp
from xattn.relevance.rule_set import rule_set as rule_set
from xattn.relevance.rule_set import transinterp as transinterp
