"""Intervals and tests over images: which differences between explanations are real."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import scipy.stats
from torch import Tensor

from xattn.errors import ArgumentError
from xattn.evaluation._bootstrap import Floats, Interval, Method, as_values, interval
from xattn.evaluation._ranks import Ranking, rank_methods
from xattn.evaluation._shapes import check_choice

__all__ = [
    "Comparison",
    "Interval",
    "Ranking",
    "compare",
    "compare_all",
    "holm",
    "mean_interval",
    "miou_interval",
    "over_seeds",
    "rank_methods",
]

Alternative: TypeAlias = Literal["two-sided", "greater", "less"]


@dataclass(frozen=True)
class Comparison:
    """A paired comparison of one method with another.

    Attributes:
        first: Name of the method.
        second: Name of the one it is compared with.
        difference: Mean of first - second over the images where both are defined.
        p_value: Wilcoxon's signed-rank test; 1 where all differences are zero.
        p_adjusted: After Holm's correction over all comparisons made together.
        effect: Matched-pairs rank-biserial correlation, -1..1; positive where the first is larger.
        n: Number of images used.
        undefined: Number of images left out because one of the two is NaN.
        alternative: "two-sided", "greater" (the first is larger) or "less".
    """

    first: str
    second: str
    difference: float
    p_value: float
    p_adjusted: float
    effect: float
    n: int
    undefined: int
    alternative: Alternative = "two-sided"


def mean_interval(
    values: object, *, confidence: float = 0.95, method: Method = "bca", resamples: int = 2000, seed: int = 0
) -> Interval:
    """Mean over images with its bootstrap interval.

    Args:
        values: (n,) one value per image; NaN is left out and counted.
        confidence: Of the interval.
        method: "bca" (bias-corrected and accelerated), or "percentile". Constant values give a percentile interval of
            width 0.
        resamples: Number of bootstrap samples.
        seed: Equal seeds give equal intervals.

    Raises:
        ArgumentError: If values are not (n,), or an argument is out of range.

    Example:
        >>> mean_interval([0.5, 0.5, 0.5, float("nan")])
        Interval(estimate=0.5, low=0.5, high=0.5, n=3, undefined=1, method='percentile', confidence=0.95)
    """
    return interval((as_values(values),), np.mean, confidence, method, resamples, seed)


def miou_interval(
    tp: object,
    fp: object,
    fn: object,
    tn: object,
    *,
    confidence: float = 0.95,
    method: Method = "bca",
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Data-set mIoU of foreground and background, with a bootstrap interval over images.

    Whole images are drawn and their counts pooled anew, so the interval is one of the pooled quantity, not of a mean
    of per-image IoU.

    Args:
        tp: (n,) true foreground pixels of each image; NaN leaves the image out.
        fp: (n,) background pixels predicted as foreground.
        fn: (n,) foreground pixels predicted as background.
        tn: (n,) true background pixels.
        confidence: Of the interval.
        method: As in `mean_interval`.
        resamples: Number of bootstrap samples.
        seed: Equal seeds give equal intervals.

    Raises:
        ArgumentError: If the counts are not (n,) each.
    """
    counts = tuple(as_values(x, name) for x, name in ((tp, "tp"), (fp, "fp"), (fn, "fn"), (tn, "tn")))
    if len({len(count) for count in counts}) > 1:
        raise ArgumentError(f"tp: expected as many values as fp, fn and tn, got {[len(c) for c in counts]}")
    return interval(counts, _miou, confidence, method, resamples, seed)


def compare(
    first: object,
    second: object,
    *,
    alternative: Alternative = "two-sided",
    names: tuple[str, str] = ("first", "second"),
) -> Comparison:
    """Wilcoxon's paired signed-rank test of two methods on the same images.

    Zero differences take no part, as Wilcoxon proposed; if there are no others, p = 1 and the effect is 0.

    Args:
        first: (n,) values of a method.
        second: (n,) values of another on the same images; pairs with NaN are left out and counted.
        alternative: "two-sided", "greater" (the first is larger) or "less".
        names: Of the two methods.

    Raises:
        ArgumentError: If the values differ in length, or for an unknown alternative.
    """
    check_choice("alternative", alternative, ("two-sided", "greater", "less"))
    a, b = as_values(first, names[0]), as_values(second, names[1])
    if len(a) != len(b):
        raise ArgumentError(f"second: expected values of the same {len(a)} images as first, got {len(b)}")
    difference = a - b
    difference[(a == b) & np.isinf(a)] = 0.0
    used = difference[~np.isnan(difference)]
    n, undefined = len(used), len(difference) - len(used)
    mean = float(used.mean()) if n else float("nan")
    changed = used[used != 0]
    if not len(changed):
        p, effect = (1.0, 0.0) if n else (float("nan"), float("nan"))
    else:
        p = float(scipy.stats.wilcoxon(changed, alternative=alternative).pvalue)
        signed = scipy.stats.rankdata(np.abs(changed)) * np.sign(changed)
        effect = float(signed.sum() / np.abs(signed).sum())
    return Comparison(*names, mean, p, p, effect, n, undefined, alternative)


def compare_all(
    scores: Mapping[str, object], *, reference: str | None = None, alternative: Alternative = "two-sided"
) -> list[Comparison]:
    """All pairs of methods, or each method against one, with Holm's correction over these comparisons.

    Args:
        scores: Values (n,) of each method on the same images.
        reference: Name of the method that the others are compared with, as `second`; None compares all pairs.
        alternative: As in `compare`.

    Raises:
        ArgumentError: If the reference is not among the methods, or lengths differ.
    """
    names = list(scores)
    if reference is not None and reference not in scores:
        raise ArgumentError(f"reference: expected one of {names}, got {reference!r}")
    if reference is None:
        pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    else:
        pairs = [(name, reference) for name in names if name != reference]
    results = [compare(scores[a], scores[b], alternative=alternative, names=(a, b)) for a, b in pairs]
    adjusted = holm([result.p_value for result in results])
    return [replace(result, p_adjusted=float(p)) for result, p in zip(results, adjusted, strict=True)]


def holm(p_values: object) -> Floats:
    """Holm's step-down correction of (m,) p-values; NaN takes no part and stays NaN.

    Example:
        >>> holm([0.01, 0.04, 0.03]).tolist()
        [0.03, 0.06, 0.06]
    """
    p = as_values(p_values, "p_values")
    adjusted = np.full_like(p, np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    factors = len(order) - np.arange(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1.0)
    return adjusted


def over_seeds(values: Tensor | Floats) -> tuple[float, float]:
    """Mean and standard deviation (n - 1) over seeds of the mean over images.

    Args:
        values: (seeds, n); NaN is left out of the means over images.

    Raises:
        ArgumentError: If there are not two dimensions.
    """
    array = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else np.asarray(values, np.float64)
    if array.ndim != 2:
        raise ArgumentError(f"values: expected (seeds, n), got shape {array.shape}")
    defined = [row[~np.isnan(row)] for row in array]
    means = np.array([row.mean() if len(row) else np.nan for row in defined])
    return float(means.mean()), deviation(means)


def deviation(values: object) -> float:
    """Standard deviation (n - 1) of (n,) values; NaN for one."""
    found = as_values(values)
    return float(found.std(ddof=1)) if len(found) > 1 else float("nan")


def pooled_miou(tp: object, fp: object, fn: object, tn: object) -> float:
    """Data-set mIoU of (n,) counts, images with NaN left out; NaN without pixels."""
    counts = np.stack([as_values(x, name) for x, name in ((tp, "tp"), (fp, "fp"), (fn, "fn"), (tn, "tn"))])
    return float(_miou(*counts[:, ~np.isnan(counts).any(0)]))


def _miou(tp: Floats, fp: Floats, fn: Floats, tn: Floats, axis: int = -1) -> Floats:
    """Mean of the IoU of both classes from pooled counts; a class without pixels does not count."""
    hits, wrong, missed, rest = (x.sum(axis) for x in (tp, fp, fn, tn))
    classes = np.stack([np.asarray(rest), np.asarray(hits)])
    unions = classes + wrong + missed
    iou = np.divide(classes, unions, out=np.zeros_like(classes), where=unions > 0)
    present = (unions > 0).sum(0)
    total: Floats = np.divide(iou.sum(0), present, out=np.full(iou.shape[1:], np.nan), where=present > 0)
    return total
