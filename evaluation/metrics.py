"""What each number means: its direction, its range and what it needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType


@dataclass(frozen=True)
class Metric:
    """One number per sample (or data set) that judges an explanation.

    Attributes:
        name: Key in tables.
        higher_is_better: None where neither direction is better in itself.
        range: Smallest and largest possible value.
        needs_mask: Whether the object's mask is needed.
        needs_model: Whether the model is called.
        about: One line for tables and reports.
    """

    name: str
    higher_is_better: bool | None
    range: tuple[float, float]
    needs_mask: bool
    needs_model: bool
    about: str

    @property
    def arrow(self) -> str:
        """The better direction as an arrow, empty where there is none."""
        return {True: "↑", False: "↓", None: ""}[self.higher_is_better]


def _curve(name: str, higher: bool, about: str) -> Metric:
    return Metric(name, higher, (0.0, 1.0), needs_mask=False, needs_model=True, about=about)


def _mask(name: str, about: str) -> Metric:
    return Metric(name, True, (0.0, 1.0), needs_mask=True, needs_model=False, about=about)


_ALL = (
    _curve("perturbation_positive", False, "area under the score, most relevant pixels removed first"),
    _curve("perturbation_negative", True, "area under the score, least relevant pixels removed first"),
    _curve("deletion", False, "area under the score, most relevant pixels removed first"),
    _curve("insertion", True, "area under the score, most relevant pixels revealed first"),
    _curve("road_positive", False, "ROAD, most relevant first"),
    _curve("road_negative", True, "ROAD, least relevant first"),
    _curve("token_masking_positive", False, "area under the score, most relevant tokens taken first"),
    _curve("token_masking_negative", True, "area under the score, least relevant tokens taken first"),
    _curve("average_drop", False, "loss of confidence when only the relevant part is shown"),
    _curve("average_increase", True, "how often confidence grows when only the relevant part is shown"),
    _mask("accuracy", "pixels labelled correctly"),
    _mask("iou", "intersection over union of the foreground"),
    _mask("miou_image", "mean IoU of both classes, per image"),
    _mask("miou_dataset", "mean IoU of both classes, counts pooled over the data set"),
    _mask("f1", "F1 of the foreground"),
    _mask("f1_rows", "mean F1 of image rows (published variant)"),
    _mask("ap", "average precision of the foreground"),
    _mask("ap_two_class", "average precision, both classes pooled (published variant)"),
    _mask("pointing_game", "the largest relevance lies on the object"),
    _mask("relevance_mass", "part of the positive relevance on the object"),
    _mask("relevance_rank", "part of the K most relevant pixels on an object of K"),
    Metric("class_discrimination", True, (0.0, 1.0), True, True, "both of two objects told apart by their maps"),
    Metric("parameter_randomization", False, (-1.0, 1.0), False, True, "rank correlation with a randomised model"),
    Metric("random_logit", False, (-1.0, 1.0), False, True, "rank correlation with the map of another class"),
    Metric("sensitivity_max", False, (0.0, inf), False, True, "largest relative change under small input noise"),
    Metric("infidelity", False, (0.0, inf), False, True, "squared error of the map as a linear model of the score"),
    _curve("rationale_hit", True, "the most relevant word is one that decides"),
    _curve("removal_positive", False, "area under the score, most relevant words removed first"),
    _curve("removal_negative", True, "area under the score, least relevant words removed first"),
    Metric("comprehensiveness", True, (-1.0, 1.0), False, True, "probability lost without the most relevant words"),
    Metric("sufficiency", False, (-1.0, 1.0), False, True, "probability lost with the most relevant words alone"),
    Metric("sparseness", None, (0.0, 1.0), False, False, "Gini index of absolute relevance"),
    Metric("complexity", None, (0.0, inf), False, False, "entropy of absolute relevance"),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _ALL})
