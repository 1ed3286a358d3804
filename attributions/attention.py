"""Attention as it is: the last layer's row, rollout over layers, and DINO's thresholded heads."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xattn._layers import Layers
from xattn.attributions._chain import ChainAttribution, HeadFusion, along_batch
from xattn.attributions._forward import ForwardPass, Reducer
from xattn.attributions._rollout import RolloutAttribution
from xattn.errors import ArgumentError
from xattn.layout import TokenLayout
from xattn.markov import normalize_rows
from xattn.markov.chain import check_unit


class RawAttention(ChainAttribution):
    """Attention paid by the token that the answer is read from, averaged over heads.

    mean_h A_h[cls, :], as it is: entries of the patches sum to less than one where the class token also attends to
    itself. Without a class token the rows of all tokens are averaged with the weights of the model's pooling.

    Args:
        forward_func: Module or callable.
        layers: Which self-attention layers are averaged; the last by default.
        head_fusion: How heads become one map.
        layout: Roles of the tokens.
    """

    name = "raw_attention"
    family = "attention"
    summary = "the class token's attention in the last layer"
    paper = "common practice"

    def __init__(
        self,
        forward_func: Callable[..., Any],
        *,
        layers: Layers = -1,
        head_fusion: HeadFusion = "mean",
        layout: TokenLayout | None = None,
    ) -> None:
        super().__init__(forward_func, layers=layers, tokens="all", head_fusion=head_fusion, layout=layout)

    def _walk(self, matrix: Tensor, forward: ForwardPass) -> Tensor:
        start = along_batch(forward.tokens_read().to(matrix.dtype), matrix[..., 0, :])
        return torch.einsum("...i,...ij->...j", start.expand(matrix.shape[:-1]), matrix)


class AttentionRollout(RolloutAttribution):
    """Attention multiplied over layers with the skip connection counted in.

    R = B_L ... B_1 with B_l = residual I + (1 - residual) A_l, rows renormalised; relevance is the class token's row
    (Abnar and Zuidema, ACL 2020, with residual 0.5). Without a class token the rows are averaged with the weights of
    the model's pooling.

    Args:
        forward_func: Module or callable.
        head_fusion: "mean", "max", "min", "lambda2", or one head's index.
        start_layer: First layer of the product.
        residual: Share of the skip connection.
        discard: Share of the smallest entries of each layer's map that is dropped.
        layout: Roles of the tokens.
    """

    name = "attention_rollout"
    summary = "attention multiplied over layers, skip connections included"
    paper = "Abnar and Zuidema, ACL 2020"

    def __init__(
        self,
        forward_func: Callable[..., Any],
        *,
        head_fusion: HeadFusion = "mean",
        start_layer: int = 0,
        residual: float = 0.5,
        discard: float = 0.0,
        layout: TokenLayout | None = None,
    ) -> None:
        super().__init__(forward_func, head_fusion, start_layer, residual, discard, layout)


class DINOAttention(ChainAttribution):
    """Per head, the class token's attention cut to the fewest patches that hold `mass` of it; averaged over heads.

    The visualisation of Caron et al., ICCV 2021. `.maps()` gives the heads one by one.

    Args:
        forward_func: Module or callable.
        layers: Which self-attention layers are averaged; the last by default.
        mass: Share of each head's attention to patches that is kept, in (0, 1].
        layout: Roles of the tokens.
    """

    name = "dino_attention"
    family = "attention"
    summary = "the class token's attention, each head cut to its strongest patches"
    paper = "Caron et al., ICCV 2021"
    needs_class_token = True

    def __init__(
        self,
        forward_func: Callable[..., Any],
        *,
        layers: Layers = -1,
        mass: float = 0.6,
        layout: TokenLayout | None = None,
    ) -> None:
        super().__init__(forward_func, layers=layers, tokens="patches", layout=layout)
        check_unit(mass, "mass")
        if mass == 0:
            raise ArgumentError("mass: expected a share in (0, 1], got 0")
        self.mass = mass

    def _reducer(self) -> Reducer | None:
        return None  # heads are cut one by one, before they are averaged

    def _relevance(self, forward: ForwardPass, reducer: Any) -> Tensor:  # noqa: ANN401
        layers = [self._walk(record.attention, forward).mean(1) for record in forward.records]
        return torch.stack(layers).mean(0)

    def _walk(self, matrix: Tensor, forward: ForwardPass) -> Tensor:
        patches = normalize_rows(matrix[..., forward.layout.cls_index, forward.layout.num_prefix :])
        return self._as_tokens(keep_mass(patches, self.mass), forward)


def keep_mass(weights: Tensor, mass: float) -> Tensor:
    """Zero all but the fewest largest entries of each distribution (..., M) that together hold `mass`."""
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    before = torch.nn.functional.pad(ordered.cumsum(-1)[..., :-1], (1, 0))
    kept = torch.where(before < mass, ordered, 0)
    return torch.zeros_like(weights).scatter(-1, order, kept)
