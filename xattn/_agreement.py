"""How far maps agree: rank correlation, which no rescaling of a map changes."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import rankdata
from torch import Tensor


def rank_agreement(maps: Mapping[str, Tensor]) -> pd.DataFrame:
    """Spearman's rank correlation of every pair of maps, which have one shape.

    Ties share their mean rank. A constant map, or one with NaN, has no ranks: NaN, on the diagonal as well.
    """
    values = np.stack([relevance.double().flatten().numpy() for relevance in maps.values()])
    ranks = np.stack([rankdata(row) for row in values])
    ranks -= ranks.mean(1, keepdims=True)
    norms = np.linalg.norm(ranks, axis=1)
    undefined = (norms == 0) | np.isnan(values).any(1)
    norms[undefined] = np.nan
    correlation = (ranks @ ranks.T) / np.outer(norms, norms)
    return pd.DataFrame(np.clip(correlation, -1, 1), index=list(maps), columns=list(maps))
