"""Attention multiplied over layers, one layer at a time."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xattn.attention import AttentionRecord
from xattn.attributions._chain import HeadFusion
from xattn.attributions._forward import ForwardPass, Reducer
from xattn.attributions.base import TransformerAttribution
from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.layout import TokenLayout
from xattn.markov import Rollout
from xattn.markov.chain import check_unit


class StreamedRollout:
    """Keeps the product of the layers so far: (B, N, N), whatever the depth.

    Args:
        how: How heads are fused.
        start_layer: Layers before it are left out.
        residual: Share of the skip connection in each layer.
        discard: Share of the smallest entries of each fused map that is set to zero.
    """

    def __init__(self, how: HeadFusion, start_layer: int = 0, residual: float = 0.5, discard: float = 0.0) -> None:
        self._start = start_layer
        self._depth = 0
        self._rollout = Rollout(how, residual, discard)

    def update(self, record: AttentionRecord, layout: TokenLayout) -> None:
        """Multiply the next layer in."""
        self._depth += 1
        if record.layer >= self._start:
            self._rollout.update(record.attention)

    @property
    def matrix(self) -> Tensor:
        """(B, N, N) product of the layers.

        Raises:
            ArgumentError: If `start_layer` lies behind the last layer.
        """
        if self._start >= self._depth:
            raise ArgumentError(f"start_layer: expected a layer in 0..{self._depth - 1}, got {self._start}")
        return self._rollout.matrix


class RolloutAttribution(TransformerAttribution):
    """Base of rollouts: the row of the tokens that the answer is read from, in the product of all layers."""

    family = "rollout"

    def __init__(
        self,
        forward_func: Callable[..., Any],
        head_fusion: HeadFusion,
        start_layer: int,
        residual: float,
        discard: float,
        layout: TokenLayout | None,
    ) -> None:
        super().__init__(forward_func, layers="all", layout=layout)
        if not isinstance(start_layer, int) or isinstance(start_layer, bool):
            raise ArgumentTypeError(f"start_layer: expected an integer, got {type(start_layer).__name__}")
        if start_layer < 0:
            raise ArgumentError(f"start_layer: expected zero or more, got {start_layer}")
        check_unit(residual, "residual")
        check_unit(discard, "discard")
        self.head_fusion: HeadFusion = head_fusion
        self.start_layer = start_layer
        self.residual = residual
        self.discard = discard

    def _reducer(self) -> Reducer | None:
        return StreamedRollout(self.head_fusion, self.start_layer, self.residual, self.discard)

    def _relevance(self, forward: ForwardPass, reducer: Any) -> Tensor:  # noqa: ANN401
        matrix = reducer.matrix
        return torch.einsum("bi,bij->bj", forward.tokens_read().to(matrix.dtype), matrix)
