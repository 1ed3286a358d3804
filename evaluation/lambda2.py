"""Does weighting heads by their second eigenvalue help? Uniform against lambda2-weighted averages, on masks.

The question of the rebuttal of "Attention (as Discrete-Time Markov) Chains" (NeurIPS 2025): both kinds of average are
made for the same images, and a one-sided paired Wilcoxon test asks whether the weighted one scores higher.

Example::

    study = lambda2_study("demo", load_dataset("demo", n=200))
    print(study.to_markdown())
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xattn._subject import find_subject
from xattn.attributions import AttentionRollout, ColumnSum, Lambda2Rollout, NBounceAttention, RawAttention, TokenRank
from xattn.errors import ArgumentError
from xattn.evaluation._usable import picture_model, usable_batches
from xattn.evaluation.datasets import Dataset
from xattn.evaluation.segmentation import segmentation_scores
from xattn.evaluation.stats import Comparison, Interval, compare, holm, mean_interval

if TYPE_CHECKING:
    from xattn.models.model import Model

Pair: TypeAlias = tuple[tuple[type, Mapping[str, Any]], tuple[type, Mapping[str, Any]]]

METRICS = ("ap", "iou", "accuracy")
"""Scores that are compared: average precision, and IoU and pixel accuracy with maps cut at their mean."""

_HEAD = (
    *("method", "metric", "uniform", "lambda2", "difference [95% interval]"),
    *("p, one-sided", "p, Holm", "effect", "better / worse"),
)
_UNIFORM, _WEIGHTED = {"head_fusion": "mean"}, {"head_fusion": "lambda2"}

PAIRS: Mapping[str, Pair] = {
    "raw_attention": ((RawAttention, _UNIFORM), (RawAttention, _WEIGHTED)),
    "column_sum": ((ColumnSum, _UNIFORM), (ColumnSum, _WEIGHTED)),
    "tokenrank": ((TokenRank, _UNIFORM), (TokenRank, _WEIGHTED)),
    "n_bounce": ((NBounceAttention, _UNIFORM), (NBounceAttention, _WEIGHTED)),
    "rollout": ((AttentionRollout, {}), (Lambda2Rollout, {})),
}
"""What is compared: the same method with both kinds of average. The last is the rollout over all layers."""


@dataclass(frozen=True, eq=False)
class Weighing:
    """One method under one metric, with both kinds of average.

    Attributes:
        method: Name in `PAIRS`.
        metric: Name in `METRICS`.
        uniform: Mean over images with equal weights.
        weighted: Mean over images with lambda2 as weight.
        difference: Mean of weighted - uniform over images, with its bootstrap interval.
        test: Wilcoxon's signed-rank test of "weighted is larger", with Holm's correction over all methods and metrics.
        better: Number of images where weighted scores higher.
        worse: Number of images where it scores lower.
        values: (2, n) scores, uniform first; NaN where a map cannot be judged.
    """

    method: str
    metric: str
    uniform: Interval
    weighted: Interval
    difference: Interval
    test: Comparison
    better: int
    worse: int
    values: NDArray[np.float64]


@dataclass(frozen=True)
class Lambda2Study:
    """What `lambda2_study` found.

    Attributes:
        results: One for each method and metric.
        samples: Names of the images.
        skipped: Name to reason of images that could not be used.
    """

    results: tuple[Weighing, ...]
    samples: tuple[str, ...]
    skipped: Mapping[str, str]

    def to_markdown(self) -> str:
        """A GitHub table."""
        return "\n".join([f"| {' | '.join(_HEAD)} |", f"|{'---|' * len(_HEAD)}", *map(_line, self.results)])


def lambda2_study(
    model: "str | Model",
    dataset: Dataset,
    *,
    methods: Sequence[str] = tuple(PAIRS),
    metrics: Sequence[str] = METRICS,
    layers: int = -1,
    batch_size: int = 16,
    on_broken: str = "skip",
) -> Lambda2Study:
    """Compare uniform with lambda2-weighted averages of heads on images with masks.

    Args:
        model: A name for `load`, or a loaded `Model`.
        dataset: Images with masks.
        methods: Names in `PAIRS`.
        metrics: Names in `METRICS`.
        layers: Which layer's heads are averaged; rollouts take all.
        batch_size: Largest number of rows of one forward call.
        on_broken: "skip" counts images that cannot be used in `Lambda2Study.skipped`, "raise" stops.

    Raises:
        ArgumentError: If there are no masks, or for an unknown method or metric.
        BrokenSampleError: If an image cannot be used and `on_broken` is "raise".
    """
    for argument, given, known in (("methods", methods, PAIRS), ("metrics", metrics, METRICS)):
        unknown = [name for name in given if name not in known]
        if unknown or not given:
            raise ArgumentError(f"{argument}: expected some of {', '.join(known)}, got {', '.join(unknown) or 'none'}")
    if not dataset.has_masks:
        raise ArgumentError(f"dataset: the study needs masks, and {dataset.name!r} has none")
    loaded = picture_model(model)
    pairs = {name: [_build(loaded, *one, layers) for one in PAIRS[name]] for name in methods}
    scores: dict[tuple[str, str], list[Tensor]] = {(name, metric): [] for name in methods for metric in metrics}
    names, skipped = [], dict[str, str]()
    for samples in usable_batches(loaded, dataset, batch_size, skipped, on_broken):
        inputs = torch.stack([sample.image for sample in samples])
        masks = torch.stack([sample.mask for sample in samples if sample.mask is not None])
        names += [sample.name for sample in samples]
        for name, pair in pairs.items():
            found = [segmentation_scores(m.attribute(inputs, resolution="patch"), masks) for m in pair]
            for metric in metrics:
                scores[name, metric].append(torch.stack([_defined(one, metric) for one in found]))
    results = [_weigh(*key, torch.cat(parts, 1).cpu().numpy()) for key, parts in scores.items()]
    adjusted = holm([result.test.p_value for result in results])
    return Lambda2Study(
        tuple(replace(r, test=replace(r.test, p_adjusted=float(p))) for r, p in zip(results, adjusted, strict=True)),
        tuple(names),
        skipped,
    )


def _weigh(method: str, metric: str, values: NDArray[np.float64]) -> Weighing:
    uniform, weighted = values
    difference = weighted - uniform
    return Weighing(
        method,
        metric,
        mean_interval(uniform),
        mean_interval(weighted),
        mean_interval(difference),
        compare(weighted, uniform, alternative="greater", names=("lambda2", "uniform")),
        int((difference > 0).sum()),
        int((difference < 0).sum()),
        values,
    )


def _build(model: "Model", method: type, options: Mapping[str, Any], layers: int) -> Any:  # noqa: ANN401
    chosen = {} if method in (AttentionRollout, Lambda2Rollout) else {"layers": layers}
    return method(model, **options, **chosen, **find_subject(model, None).options(method))


def _defined(scores: Mapping[str, Tensor], metric: str) -> Tensor:
    return scores[metric].double().masked_fill(scores["undefined"], torch.nan)


def _line(r: Weighing) -> str:
    d = r.difference
    cells = (
        *(r.method, r.metric, f"{r.uniform.estimate:.3f}", f"{r.weighted.estimate:.3f}"),
        f"{d.estimate:+.3f} [{d.low:+.3f}, {d.high:+.3f}]",
        *(f"{r.test.p_value:.2g}", f"{r.test.p_adjusted:.2g}", f"{r.test.effect:+.2f}", f"{r.better} / {r.worse}"),
    )
    return f"| {' | '.join(cells)} |"
