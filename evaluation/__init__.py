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
from xattn.evaluation.text import comprehensiveness, rationale_hit, sufficiency, token_removal, word_groups

if TYPE_CHECKING:
    from xattn.evaluation import stats as stats
    from xattn.evaluation.datasets import Dataset, load_dataset
    from xattn.evaluation.judges import Judge, Measured
    from xattn.evaluation.lambda2 import Lambda2Study, lambda2_study
    from xattn.evaluation.presets import JUDGES, PRESETS
    from xattn.evaluation.probing import Probing, linear_probing
    from xattn.evaluation.results import Results
    from xattn.evaluation.runner import benchmark

__all__ = [
    "JUDGES",
    "METRICS",
    "PRESETS",
    "Curve",
    "Dataset",
    "Judge",
    "Lambda2Study",
    "Measured",
    "Metric",
    "Probing",
    "QuantusResult",
    "Removal",
    "Results",
    "average_drop_increase",
    "benchmark",
    "class_discrimination",
    "complexity",
    "comprehensiveness",
    "control_maps",
    "deletion",
    "infidelity",
    "insertion",
    "lambda2_study",
    "linear_probing",
    "load_dataset",
    "parameter_randomization",
    "perturbation",
    "perturbation_2021",
    "perturbation_curves",
    "pointing_game",
    "quantus_metric",
    "random_logit",
    "rank_correlation",
    "rationale_hit",
    "relevance_mass",
    "relevance_rank",
    "road",
    "segmentation_scores",
    "segmentation_totals",
    "sensitivity_max",
    "sparseness",
    "sufficiency",
    "token_masking",
    "token_removal",
    "word_groups",
]


# What brings scipy.stats or pyarrow, which are slow to import, is imported when it is asked for.
_LAZY = {
    "Dataset": "datasets",
    "JUDGES": "presets",
    "Judge": "judges",
    "Lambda2Study": "lambda2",
    "Measured": "judges",
    "PRESETS": "presets",
    "Probing": "probing",
    "Results": "results",
    "benchmark": "runner",
    "lambda2_study": "lambda2",
    "linear_probing": "probing",
    "load_dataset": "datasets",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name == "stats":
        return import_module("xattn.evaluation.stats")
    if name in _LAZY:
        return getattr(import_module(f"xattn.evaluation.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'xattn.evaluation' has no attribute {name!r}")
