"""Rules: small frozen objects, each an equation, from which rule sets are composed.

A rule is called with a `Call` and the relevance of its result, and returns one share for each of `call.inputs`: its
relevance, or None for nothing. A new rule is one class like these.
"""

from xattn.relevance.rules.addition import Add as Add
from xattn.relevance.rules.base import Rule as Rule
from xattn.relevance.rules.gate import KeepValue as KeepValue
from xattn.relevance.rules.gate import Uniform as Uniform
from xattn.relevance.rules.identity import Identity as Identity
from xattn.relevance.rules.identity import Reweigh as Reweigh
from xattn.relevance.rules.linear import AlphaBeta as AlphaBeta
from xattn.relevance.rules.linear import Epsilon as Epsilon
from xattn.relevance.rules.linear import Flat as Flat
from xattn.relevance.rules.linear import Gamma as Gamma
from xattn.relevance.rules.linear import z_plus as z_plus
from xattn.relevance.rules.norm import FixedNorm as FixedNorm
from xattn.relevance.rules.pixels import ZBox as ZBox
from xattn.relevance.rules.product import Bilinear as Bilinear
from xattn.relevance.rules.softmax import SoftmaxTaylor as SoftmaxTaylor
from xattn.relevance.rules.stabilizer import Guarded as Guarded
from xattn.relevance.rules.stabilizer import Signed as Signed
from xattn.relevance.rules.stabilizer import Stabilizer as Stabilizer
