"""Maps of several methods, where one that refuses the model does not take the others with it."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from xattn._subject import Target
from xattn.errors import ArgumentError, CaptureError, LayoutError, UnsupportedModelError
from xattn.explain import explain
from xattn.explanation import Explanation
from xattn.models.model import Model

DEFAULT_METHODS = (
    "tokenrank",
    "n_bounce",
    "lambda2_rollout",
    "attention_rollout",
    "generic_attention",
    "prediction_attention",
    "attnlrp",
)

T = TypeVar("T")

_REFUSALS = (UnsupportedModelError, LayoutError, CaptureError)


def explain_with(model: Model, picture: Tensor, methods: Sequence[str], target: Target = None) -> Explanation:
    """As `explain`, but methods that refuse the model are noted in `skipped`.

    Args:
        model: A loaded model.
        picture: (3, H, W) in [0, 1].
        methods: Names.
        target: The class; None is the predicted one.

    Raises:
        ArgumentError: If no method was chosen, or there is no such class.
        UnsupportedModelError: Or what else the first method said, if all refuse.
    """
    if not methods:
        raise ArgumentError("methods: choose at least one.")
    batch = model.preprocess(picture)[None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # kept in the explanation, and shown on the page
        try:
            return explain(model, batch, methods, target)
        except _REFUSALS:
            return _one_by_one(model, batch, methods, target)


def _one_by_one(model: Model, batch: Tensor, methods: Sequence[str], target: Target) -> Explanation:
    found: list[Explanation] = []
    refused: dict[str, Exception] = {}
    for name in methods:
        try:
            found.append(explain(model, batch, name, target))
        except _REFUSALS as error:
            refused[name] = error
    if not found:
        raise next(iter(refused.values()))
    return replace(
        found[0],
        maps=_merged(one.maps for one in found),
        methods=_merged(one.methods for one in found),
        seconds=_merged(one.seconds for one in found),
        warnings=_merged(one.warnings for one in found),
        skipped={name: str(error) for name, error in refused.items()},
    )


def _merged(parts: Iterable[dict[str, T]]) -> dict[str, T]:
    return {name: entry for part in parts for name, entry in part.items()}
