"""Protocols that judge explanations, and the statistics to compare them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from xattn.evaluation._curve import Curve
from xattn.evaluation.complexity import complexity, sparseness
from xattn.evaluation.localization import class_discrimination, pointing_game, relevance_mass, relevance_rank
from xattn.evaluation.masking import control_maps, token_masking
from xattn.evaluation.metrics import METRICS, Metric
from xattn.evaluation.perturbation import Removal, perturbation, perturbation_curves
from xattn.evaluation.protocols import average_drop_increase, deletion, insertion, perturbation_2021, road
from xattn.evaluation.quantus_adapter import QuantusResult, quantus_metric
from xattn.evaluation.sanity import (
    infidelity,
    parameter_randomization,
    random_logit,
    rank_correlation,
    sensitivity_max,
)
from xattn.evaluation.segmentation import segmentation_scores, segmentation_totals

if TYPE_CHECKING:
    from xattn.evaluation import stats as stats

__all__ = [
    "METRICS",
    "Curve",
    "Metric",
    "QuantusResult",
    "Removal",
    "average_drop_increase",
    "class_discrimination",
    "complexity",
    "control_maps",
    "deletion",
    "infidelity",
    "insertion",
    "parameter_randomization",
    "perturbation",
    "perturbation_2021",
    "perturbation_curves",
    "pointing_game",
    "quantus_metric",
    "random_logit",
    "rank_correlation",
    "relevance_mass",
    "relevance_rank",
    "road",
    "segmentation_scores",
    "segmentation_totals",
    "sensitivity_max",
    "sparseness",
    "stats",
    "token_masking",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name == "stats":  # brings scipy.stats, which is slow to import
        return import_module("xattn.evaluation.stats")
    raise AttributeError(f"module 'xattn.evaluation' has no attribute {name!r}")
