"""Maps of several methods, where one that refuses the model does not take the others with it."""

import warnings
from collections.abc import Sequence

from torch import Tensor

from xattn._subject import Target
from xattn.errors import ArgumentError
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
        return explain(model, batch, methods, target, skip_refused=True)
