"""Where in a model a patch already knows the answer: statistics of patch predictions over layers and heads.

Everything is returned as tensors by name; `as_frame` turns them into a data frame, and `xattn.viz.layer_curves` and
`xattn.viz.head_histogram` draw them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from xattn._state import find_modules
from xattn.attributions._forward import ForwardPass
from xattn.attributions._head import Head, LayerTokens
from xattn.attributions._targets import Target
from xattn.attributions.base import as_args, check_inputs
from xattn.attributions.prediction import (
    PredictionAttention,
    PredictionAttribution,
    PredictionMap,
    Similarity,
    Space,
    find_head,
)
from xattn.errors import ArgumentError, UnsupportedModelError
from xattn.layout import TokenLayout

if TYPE_CHECKING:
    from pandas import DataFrame


@torch.no_grad()
def layer_statistics(
    forward_func: Callable[..., Any],
    inputs: Tensor,
    target: Target = None,
    additional_forward_args: Any = None,  # noqa: ANN401
    *,
    head: Head | None = None,
    layout: TokenLayout | None = None,
) -> dict[str, Tensor]:
    """How patches answer after each layer, averaged over the patches (words without padding) of a sample.

    Args:
        forward_func: Module or callable.
        inputs: As in `PredictionMap.attribute`.
        target: The true classes; None takes the predicted ones.
        additional_forward_args: As in `PredictionMap.attribute`.
        head: Function from tokens (..., D) to logits (..., classes); None finds the model's own.
        layout: Roles of the tokens.

    Returns:
        Each (B, layers): "accuracy" (share of patches whose first class is the target), "probability" (of the
        target), "margin" (first minus second logit), "entropy" (of the probabilities, in nats).

    Raises:
        UnsupportedModelError: If the model has a single output, or its head cannot be asked at one token.
    """
    method = _EveryLayer(forward_func, head=head, layout=layout)
    forward, tokens = _run(method, inputs, target, additional_forward_args)
    if forward.logits is None or forward.logits.ndim != 2 or forward.logits.shape[1] < 2:
        raise UnsupportedModelError("forward_func: expected logits of at least two classes, got a single output")
    first = forward.layout.num_prefix
    statistics, answer = [], find_head(head, forward, tokens)
    for layer in range(tokens.depth):
        logits = answer(tokens.after(layer)[:, first:])
        counted = logits.new_ones(logits.shape[:2]) if forward.valid is None else forward.valid[:, first:].to(logits)
        statistics.append(_of_patches(logits, forward.target_index, counted))
    return {name: torch.stack([layer[name] for layer in statistics], 1) for name in statistics[0]}


@torch.no_grad()
def similar_heads(
    forward_func: Callable[..., Any],
    inputs: Tensor,
    target: Target = None,
    additional_forward_args: Any = None,  # noqa: ANN401
    *,
    similarity: Similarity = "dot",
    layer: int | Sequence[int] = -2,
    space: Space = "probability",
    head: Head | None = None,
    layout: TokenLayout | None = None,
) -> dict[str, Tensor]:
    """Which layer and head looks where the prediction map of the target is high.

    Args:
        forward_func: Module or callable.
        inputs: As in `PredictionAttention.attribute`, as are the arguments not named here.
        target: The true classes; None takes the predicted ones.
        additional_forward_args: See there.
        similarity: "dot", "cosine" or "kl".
        layer: After which layer tokens are read for the prediction map.
        space: "probability" or "logit".
        head: Function from tokens (..., D) to logits (..., classes); None finds the model's own.
        layout: Roles of the tokens.

    Returns:
        "similarity" (B, layers, heads); "layer" and "head" (B,) of the most similar one; "histogram" (layers, heads):
        for how many samples it was the most similar.

    Raises:
        UnsupportedModelError: If the head cannot be asked at one token, or layers differ in their number of heads.
    """
    method = PredictionAttention(
        forward_func, similarity=similarity, layer=layer, space=space, head=head, layout=layout
    )
    forward, tokens = _run(method, inputs, target, additional_forward_args)
    rows = tokens.rows(forward)
    scores = method._similarities(rows.flatten(1, 2), method._target_maps(forward, tokens), forward)
    similar = scores.squeeze(-1).unflatten(1, rows.shape[1:3])
    best = similar.flatten(1).argmax(1)
    heads = similar.shape[-1]
    counts = torch.bincount(best, minlength=similar[0].numel()).reshape(similar.shape[1:])
    return {"similarity": similar, "layer": best // heads, "head": best % heads, "histogram": counts}


def as_frame(statistics: Mapping[str, Tensor], axes: Sequence[str]) -> "DataFrame":
    """Tensors of one shape as a data frame: a row per entry, its position along the named axes first.

    Args:
        statistics: Name to tensor, such as what `layer_statistics` returns.
        axes: Names of the dimensions: ("sample", "layer") for `layer_statistics`; ("sample", "layer", "head") for the
            "similarity" and ("layer", "head") for the "histogram" of `similar_heads`.

    Raises:
        ArgumentError: If there are none, their shapes differ, or not every dimension has a name.

    Example:
        >>> as_frame({"margin": torch.tensor([[0.5, 2.0]])}, ("sample", "layer"))
           sample  layer  margin
        0       0      0     0.5
        1       0      1     2.0
    """
    import pandas as pd

    shapes = {tuple(values.shape) for values in statistics.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != len(axes):
        raise ArgumentError(f"statistics: expected tensors of one shape with axes {tuple(axes)}, got {sorted(shapes)}")
    positions = np.indices(next(iter(shapes))).reshape(len(axes), -1)
    columns = {name: values.detach().cpu().flatten().numpy() for name, values in statistics.items()}
    return pd.DataFrame(dict(zip(axes, positions, strict=True)) | columns)


class _EveryLayer(PredictionMap):
    """Keeps the tokens of all layers."""

    def _reducer(self) -> LayerTokens:
        return LayerTokens(find_modules(self.forward_func), None)


def _run(
    method: PredictionAttribution,
    inputs: Tensor,
    target: Target,
    args: Any,  # noqa: ANN401
) -> tuple[ForwardPass, Any]:
    tensor, _ = check_inputs(inputs)
    tokens = method._reducer()
    with torch.inference_mode(False), torch.no_grad():
        return method._forward(tensor, target, as_args(args), tokens), tokens


def _of_patches(logits: Tensor, target: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """Statistics (B,) of logits (B, P, classes), averaged with weights (B, P)."""
    top = logits.topk(2, dim=-1)
    probabilities = logits.softmax(-1)
    index = target.unsqueeze(1).expand(-1, logits.shape[1], -1)
    values = {
        "accuracy": (top.indices[..., :1] == index).squeeze(-1).to(logits.dtype),
        "probability": probabilities.gather(-1, index).squeeze(-1),
        "margin": top.values[..., 0] - top.values[..., 1],
        "entropy": torch.special.entr(probabilities).sum(-1),
    }
    return {name: (value * weights).sum(1) / weights.sum(1) for name, value in values.items()}
