"""Rules: small frozen objects, each an equation, from which rule sets are composed.

A rule is called with a `Call` and the relevance of its result, and returns one share for each of `call.inputs`: its
relevance, or None for nothing. A new rule is one class like these.
"""

from xattn.relevance.rules.addition import Add
from xattn.relevance.rules.base import Rule
from xattn.relevance.rules.gate import KeepValue, Uniform
from xattn.relevance.rules.identity import Identity, Reweigh
from xattn.relevance.rules.linear import AlphaBeta, Epsilon, Flat, Gamma, z_plus
from xattn.relevance.rules.norm import FixedNorm
from xattn.relevance.rules.pixels import ZBox
from xattn.relevance.rules.product import Bilinear
from xattn.relevance.rules.softmax import SoftmaxTaylor
from xattn.relevance.rules.stabilizer import Guarded, Signed, Stabilizer

__all__ = [
    "Add",
    "AlphaBeta",
    "Bilinear",
    "Epsilon",
    "FixedNorm",
    "Flat",
    "Gamma",
    "Guarded",
    "Identity",
    "KeepValue",
    "Reweigh",
    "Rule",
    "Signed",
    "SoftmaxTaylor",
    "Stabilizer",
    "Uniform",
    "ZBox",
    "z_plus",
]
