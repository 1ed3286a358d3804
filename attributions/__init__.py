"""Attribution methods, one file per family, each a captum `Attribution`."""

from xattn.attributions.attention import AttentionRollout, DINOAttention, RawAttention
from xattn.attributions.base import TransformerAttribution
from xattn.attributions.bimodal import BimodalAttention
from xattn.attributions.class_chain import ClassTokenRank
from xattn.attributions.controls import CenterPrior, RandomAttribution
from xattn.attributions.gradient import AttentionGradCAM, GenericAttention, GradientRollout
from xattn.attributions.markov import ColumnSum, Lambda2Rollout, NBounceAttention, TokenRank
from xattn.attributions.prediction import PredictionAttention, PredictionMap
from xattn.attributions.registry import find_method, methods
from xattn.attributions.relevance import LRP, AttnLRP, PartialLRP, RelevanceRollout, TransInterp
from xattn.attributions.token_gradcam import TokenGradCAM

__all__ = [
    "LRP",
    "AttentionGradCAM",
    "AttentionRollout",
    "AttnLRP",
    "BimodalAttention",
    "CenterPrior",
    "ClassTokenRank",
    "ColumnSum",
    "DINOAttention",
    "GenericAttention",
    "GradientRollout",
    "Lambda2Rollout",
    "NBounceAttention",
    "PartialLRP",
    "PredictionAttention",
    "PredictionMap",
    "RandomAttribution",
    "RawAttention",
    "RelevanceRollout",
    "TokenGradCAM",
    "TokenRank",
    "TransInterp",
    "TransformerAttribution",
    "find_method",
    "methods",
]
