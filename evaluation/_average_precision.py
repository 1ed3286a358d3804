"""Precision and recall along all thresholds of a map, many maps at once, exact with ties."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sweep:
    """Counts for the prediction "score >= value", for each value of each sample from the largest down.

    Attributes:
        value: (B, n) sorted scores.
        last: (B, n) bool, the last position of each distinct value: only there the counts are those of a threshold.
        hits: (B, n) positives predicted so far, float64.
        predicted: (B, n) labelled pixels predicted so far, float64.
    """

    value: Tensor
    last: Tensor
    hits: Tensor
    predicted: Tensor


def sweep(scores: Tensor, positive: Tensor, labelled: Tensor) -> Sweep:
    """Sort (B, n) scores and count; pixels that are not labelled count for nothing."""
    value, order = scores.sort(dim=1, descending=True, stable=True)
    hits = (positive & labelled).gather(1, order).double().cumsum(1)
    predicted = labelled.gather(1, order).double().cumsum(1)
    last = torch.ones_like(value, dtype=torch.bool)
    last[:, :-1] = value[:, 1:] != value[:, :-1]
    return Sweep(value, last, hits, predicted)


def average_precision(curve: Sweep) -> Tensor:
    """Step-wise average precision, (B,) float64: sum of (recall step) x precision; NaN without positives."""
    hits = torch.where(curve.last, curve.hits, 0.0)
    before = torch.nn.functional.pad(hits.cummax(1).values, (1, -1))
    precision = curve.hits / curve.predicted.clamp(min=1)
    area = ((hits - before) * precision).masked_fill(~curve.last, 0.0).sum(1)
    return area / curve.hits[:, -1]


def best_threshold(curve: Sweep) -> Tensor:
    """(B,) value below which nothing is predicted, so that "score > value" has the largest F1 (and IoU)."""
    f1 = 2 * curve.hits / (curve.predicted + curve.hits[:, -1:]).clamp(min=1)
    best = f1.masked_fill(~curve.last, -1.0).argmax(1, keepdim=True)
    below = torch.nn.functional.pad(curve.value, (0, 1), value=-torch.inf)
    return below.gather(1, best + 1).squeeze(1)
