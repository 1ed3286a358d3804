"""The classifier of linear probing: fitted, cross-validated and judged with scikit-learn."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from xattn.errors import ArgumentError

Features: TypeAlias = NDArray[np.float64]
Labels: TypeAlias = NDArray[np.str_]

_ITERATIONS = 5000


def classifier(strength: float) -> Any:  # noqa: ANN401
    """The probe: features standardised, then multinomial logistic regression with inverse regularisation C."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=_ITERATIONS))


def check_labels(fitted: Labels, judged: Labels, folds: int) -> None:
    """Refuse labels that cannot be told apart in folds.

    Raises:
        ArgumentError: For fewer than two classes, too few images of one, or judged ones that the fit lacks.
    """
    classes, counts = np.unique(fitted, return_counts=True)
    if len(classes) < 2:
        raise ArgumentError(f"dataset: probing needs at least two classes, got {', '.join(classes)}")
    few = [f"{name} ({count})" for name, count in zip(classes, counts, strict=True) if count < folds]
    if few:
        raise ArgumentError(f"folds: each class needs at least {folds} images; fewer have {', '.join(few)}")
    unknown = sorted(set(judged) - set(classes))
    if unknown:
        raise ArgumentError(f"test: expected the classes of dataset, got also {', '.join(unknown)}")


def judge(
    x: Features,
    y: Labels,
    judged: tuple[Features, Labels] | None,
    *,
    strengths: tuple[float, ...],
    folds: int,
    seed: int,
) -> tuple[NDArray[np.bool_], tuple[float, ...]]:
    """Whether each image is classified correctly while it is not in the fit, and the strength C of each fit.

    Args:
        x: (n, D) features.
        y: (n,) labels.
        judged: Features and labels of other images, which a fit on all of x is judged on; None cross-validates x.
        strengths: Several are chosen from by cross-validation within the images of the fit.
        folds: Number of stratified folds.
        seed: Of the folds.
    """
    if judged is not None:
        probe, strength = _fit(x, y, strengths, folds, seed)
        return probe.predict(judged[0]) == judged[1], (strength,)
    right, chosen = np.zeros(len(y), dtype=bool), []
    for train, held_out in _folds(folds, seed).split(x, y):
        probe, strength = _fit(x[train], y[train], strengths, folds, seed)
        right[held_out] = probe.predict(x[held_out]) == y[held_out]
        chosen.append(strength)
    return right, tuple(chosen)


def _fit(x: Features, y: Labels, strengths: tuple[float, ...], folds: int, seed: int) -> tuple[Any, float]:
    """The probe on all of x, with the strength that cross-validates best on it; of equal ones the smallest."""
    best = strengths[0]
    if len(strengths) > 1:
        from sklearn.model_selection import cross_val_score

        fewest = int(np.unique(y, return_counts=True)[1].min())
        inner = _folds(max(2, min(folds, fewest)), seed)
        scores = [cross_val_score(classifier(c), x, y, cv=inner).mean() for c in strengths]
        best = strengths[int(np.argmax(scores))]
    return classifier(best).fit(x, y), best


def _folds(folds: int, seed: int) -> Any:  # noqa: ANN401
    from sklearn.model_selection import StratifiedKFold

    return StratifiedKFold(folds, shuffle=True, random_state=seed)
