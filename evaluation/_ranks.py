"""Average ranks of several methods on the same images, with the critical difference between them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy.stats

from xattn.errors import ArgumentError
from xattn.evaluation._bootstrap import as_values


@dataclass(frozen=True)
class Ranking:
    """Methods in order of their average rank, 1 being the best.

    Attributes:
        names: (k,) methods, best first.
        ranks: (k,) average ranks; ties share their mean rank.
        critical_difference: Nemenyi: methods whose ranks differ by less are not told apart.
        p_value: Friedman's test of "all methods are alike"; 1 where no image tells them apart.
        n: Number of images used.
        undefined: Number of images left out because some method's value is NaN.
        alpha: Level of the critical difference.
    """

    names: tuple[str, ...]
    ranks: tuple[float, ...]
    critical_difference: float
    p_value: float
    n: int
    undefined: int
    alpha: float

    def cliques(self) -> list[tuple[str, ...]]:
        """Largest groups of neighbours that are not told apart, for the bars of a critical-difference figure."""
        groups: list[tuple[int, int]] = []
        for start, rank in enumerate(self.ranks):
            stop = max(
                i for i, other in enumerate(self.ranks) if other - rank <= self.critical_difference or i == start
            )
            if stop > start and not any(a <= start and stop <= b for a, b in groups):
                groups.append((start, stop))
        return [self.names[start : stop + 1] for start, stop in groups]


def rank_methods(scores: Mapping[str, object], *, higher_is_better: bool = True, alpha: float = 0.05) -> Ranking:
    """Average ranks with Friedman's test and Nemenyi's critical difference (Demsar 2006).

    Args:
        scores: Values (n,) of each method on the same images; an image with a NaN of any method is left out.
        higher_is_better: Direction of the values.
        alpha: Level of the critical difference.

    Raises:
        ArgumentError: With fewer than two methods, values of different length, or `alpha` outside 0..1.
    """
    names = list(scores)
    if len(names) < 2:
        raise ArgumentError(f"scores: expected at least two methods, got {names}")
    if not 0 < alpha < 1:
        raise ArgumentError(f"alpha: expected a number between 0 and 1, got {alpha}")
    columns = [as_values(scores[name], f"scores[{name!r}]") for name in names]
    if len({len(column) for column in columns}) > 1:
        raise ArgumentError(f"scores: expected as many values for each method, got {[len(c) for c in columns]}")
    table = np.stack(columns, 1)
    table = table[~np.isnan(table).any(1)]
    n, k = table.shape
    undefined = len(columns[0]) - n
    if n == 0:
        return Ranking(tuple(names), (np.nan,) * k, np.nan, np.nan, 0, undefined, alpha)
    ranks = scipy.stats.rankdata(-table if higher_is_better else table, axis=1)
    average = ranks.mean(0)
    order = np.argsort(average, kind="stable")
    quantile = scipy.stats.studentized_range.ppf(1 - alpha, k, np.inf) / np.sqrt(2)
    difference = float(quantile * np.sqrt(k * (k + 1) / (6 * n)))
    return Ranking(
        tuple(names[i] for i in order),
        tuple(float(average[i]) for i in order),
        difference,
        _friedman(ranks),
        n,
        undefined,
        alpha,
    )


def _friedman(ranks: "np.ndarray[tuple[int, int], np.dtype[np.float64]]") -> float:
    """Friedman's chi-square with correction for ties; also for two methods, where scipy refuses."""
    n, k = ranks.shape
    spread = float(((ranks - (k + 1) / 2) ** 2).sum())
    if spread == 0:
        return 1.0
    between = float(((ranks.mean(0) - (k + 1) / 2) ** 2).sum())
    return float(scipy.stats.chi2.sf(n * n * (k - 1) * between / spread, k - 1))
