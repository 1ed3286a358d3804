"""Attribution methods, one file per family, each a captum `Attribution`."""

from xattn.attributions.attention import AttentionRollout as AttentionRollout
from xattn.attributions.attention import DINOAttention as DINOAttention
from xattn.attributions.attention import RawAttention as RawAttention
from xattn.attributions.base import TransformerAttribution as TransformerAttribution
from xattn.attributions.bimodal import BimodalAttention as BimodalAttention
from xattn.attributions.class_chain import ClassTokenRank as ClassTokenRank
from xattn.attributions.controls import CenterPrior as CenterPrior
from xattn.attributions.controls import RandomAttribution as RandomAttribution
from xattn.attributions.gradient import AttentionGradCAM as AttentionGradCAM
from xattn.attributions.gradient import GenericAttention as GenericAttention
from xattn.attributions.gradient import GradientRollout as GradientRollout
from xattn.attributions.markov import ColumnSum as ColumnSum
from xattn.attributions.markov import Lambda2Rollout as Lambda2Rollout
from xattn.attributions.markov import NBounceAttention as NBounceAttention
from xattn.attributions.markov import TokenRank as TokenRank
from xattn.attributions.prediction import PredictionAttention as PredictionAttention
from xattn.attributions.prediction import PredictionMap as PredictionMap
from xattn.attributions.registry import find_method as find_method
from xattn.attributions.registry import methods as methods
from xattn.attributions.relevance import LRP as LRP
from xattn.attributions.relevance import AttnLRP as AttnLRP
from xattn.attributions.relevance import PartialLRP as PartialLRP
from xattn.attributions.relevance import RelevanceRollout as RelevanceRollout
from xattn.attributions.relevance import TransInterp as TransInterp
from xattn.attributions.token_gradcam import TokenGradCAM as TokenGradCAM
