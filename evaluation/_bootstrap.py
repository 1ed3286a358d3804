"""Bootstrap intervals over images."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import scipy.stats
from numpy.typing import NDArray
from torch import Tensor

from xattn.errors import ArgumentError
from xattn.evaluation._shapes import check_choice

Method: TypeAlias = Literal["bca", "percentile"]
Floats: TypeAlias = NDArray[np.float64]
Statistic: TypeAlias = Callable[..., Any]

_CHUNK = 2_000_000  # numbers drawn at once


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval.

    Attributes:
        estimate: Value on all defined images; NaN without any.
        low: Lower end; NaN with fewer than two images.
        high: Upper end.
        n: Number of images used.
        undefined: Number of images left out because their value is NaN.
        method: "bca", or "percentile" where BCa does not exist.
        confidence: Of the interval.
    """

    estimate: float
    low: float
    high: float
    n: int
    undefined: int
    method: Method
    confidence: float

    def __str__(self) -> str:
        missing = f", {self.undefined} undefined" if self.undefined else ""
        return f"{self.estimate:.4g} [{self.low:.4g}, {self.high:.4g}] (n={self.n}{missing})"


def as_values(values: object, name: str = "values") -> Floats:
    """(n,) float64 from a tensor, array or sequence.

    Raises:
        ArgumentError: If it is not one-dimensional.
    """
    array = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else np.asarray(values, np.float64)
    if array.ndim != 1:
        raise ArgumentError(f"{name}: expected one value per image (n,), got shape {array.shape}")
    return array


def interval(
    samples: tuple[Floats, ...], statistic: Statistic, confidence: float, method: Method, resamples: int, seed: int
) -> Interval:
    """Interval of `statistic(*samples, axis=)` over images drawn jointly from paired samples (n,).

    Images with NaN in any sample are left out and counted. Where the statistic does not vary over the resamples or
    over the leave-one-out sets, BCa does not exist and the percentile interval is given.

    Raises:
        ArgumentError: If confidence, method or resamples are out of range.
    """
    check_choice("method", method, get_args(Method))
    if not 0 < confidence < 1:
        raise ArgumentError(f"confidence: expected a number between 0 and 1, got {confidence}")
    if resamples < 1:
        raise ArgumentError(f"resamples: expected a positive number, got {resamples}")
    bad = np.any([np.isnan(sample) for sample in samples], axis=0)
    used = tuple(sample[~bad] for sample in samples)
    n, undefined = len(used[0]), int(bad.sum())
    if n == 0:
        return Interval(np.nan, np.nan, np.nan, 0, undefined, "percentile", confidence)
    estimate = float(statistic(*used, axis=-1))
    if n == 1:
        return Interval(estimate, np.nan, np.nan, 1, undefined, "percentile", confidence)
    if all(np.all(sample == sample[0]) for sample in used):
        return Interval(estimate, estimate, estimate, n, undefined, "percentile", confidence)
    for wanted in (method, "percentile") if method == "bca" else (method,):
        low, high = _scipy(used, statistic, confidence, wanted, resamples, seed)
        if np.isfinite(low) and np.isfinite(high):
            break
    return Interval(estimate, low, high, n, undefined, wanted, confidence)


def _scipy(
    samples: tuple[Floats, ...], statistic: Statistic, confidence: float, method: str, resamples: int, seed: int
) -> tuple[float, float]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # scipy warns where BCa does not exist; the caller looks at the result
        found = scipy.stats.bootstrap(
            samples,
            statistic,
            n_resamples=resamples,
            batch=max(1, _CHUNK // len(samples[0])),
            vectorized=True,
            paired=True,
            confidence_level=confidence,
            method="BCa" if method == "bca" else "percentile",
            random_state=np.random.default_rng(seed),
        ).confidence_interval
    return float(found.low), float(found.high)
