"""From attention to one chain per sample: the part that chain methods share."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from xattn._layers import Layers
from xattn.attention import AttentionRecord
from xattn.attributions._forward import ForwardPass, Reducer
from xattn.attributions._resolution import Resolution, check_resolution, from_tokens
from xattn.attributions.base import TransformerAttribution, as_args, check_inputs
from xattn.errors import ArgumentError
from xattn.layout import TokenLayout
from xattn.markov import fuse_heads, lambda2_weights, normalize_rows
from xattn.markov.chain import Direction, check_direction

Tokens: TypeAlias = Literal["patches", "all"]
HeadFusion: TypeAlias = Literal["mean", "max", "min", "lambda2"] | int


def restrict(matrix: Tensor, layout: TokenLayout, tokens: Tokens) -> Tensor:
    """The chain on the patches alone: rows and columns of prefix tokens dropped, rows renormalised."""
    if tokens == "patches" and layout.num_prefix:
        matrix = matrix[..., layout.num_prefix :, layout.num_prefix :]
    return normalize_rows(matrix)


def fuse(attention: Tensor, layout: TokenLayout, how: HeadFusion, tokens: Tokens) -> Tensor:
    """(B, heads, N, N) to (B, N, N); "lambda2" weighs a head by the second eigenvalue of its chain on `tokens`."""
    if how != "lambda2":
        return fuse_heads(attention, how)
    return fuse_heads(attention, lambda2_weights(restrict(attention, layout, tokens)))


class MeanAttention:
    """Heads fused, layers averaged, one layer at a time."""

    def __init__(self, how: HeadFusion, tokens: Tokens) -> None:
        self._how = how
        self._tokens = tokens
        self._layers = 0
        self._sum: Tensor | None = None

    @property
    def matrix(self) -> Tensor:
        """(B, N, N) mean of the layers so far."""
        assert self._sum is not None  # a forward call without layers has already raised
        return self._sum / self._layers

    def update(self, record: AttentionRecord, layout: TokenLayout) -> None:
        """Take one layer into the mean."""
        fused = without_padding(fuse(record.attention.detach(), layout, self._how, self._tokens), record.valid_keys)
        self._layers += 1
        self._sum = fused if self._sum is None else self._sum + fused


def without_padding(matrix: Tensor, valid: Tensor | None) -> Tensor:
    """(B, ..., N, N) in which padding tokens lead to themselves alone: no walk enters or leaves, whatever direction."""
    if valid is None:
        return matrix
    valid = along_batch(valid, matrix[..., 0])
    return matrix * valid.unsqueeze(-1) + torch.diag_embed((~valid).to(matrix.dtype))


class ChainAttribution(TransformerAttribution):
    """Base of methods that take a step, or many, on a chain of tokens.

    The order is: float32, fuse heads, average the layers, drop prefix tokens and renormalise, walk.

    Args:
        forward_func: Module or callable.
        layers: Which self-attention layers; the last by default.
        tokens: "patches" walks on patches (words) alone, "all" on prefix tokens too.
        head_fusion: "mean", "max", "min", "lambda2" (heads weighted by their second eigenvalue), or one head's index.
        direction: "forward" follows attention from query to key, "backward" from key to query.
        layout: Roles of the tokens; None finds them.
    """

    family = "chain"

    def __init__(
        self,
        forward_func: Callable[..., Any],
        *,
        layers: Layers = -1,
        tokens: Tokens = "patches",
        head_fusion: HeadFusion = "mean",
        direction: Direction = "forward",
        layout: TokenLayout | None = None,
    ) -> None:
        super().__init__(forward_func, layers=layers, layout=layout)
        if tokens not in get_args(Tokens):
            raise ArgumentError(f'tokens: expected "patches" or "all", got {tokens!r}')
        is_head = isinstance(head_fusion, int) and not isinstance(head_fusion, bool)
        if not is_head and head_fusion not in ("mean", "max", "min", "lambda2"):
            raise ArgumentError(
                f'head_fusion: expected "mean", "max", "min", "lambda2" or the index of a head, got {head_fusion!r}'
            )
        check_direction(direction)
        self.tokens: Tokens = tokens
        self.head_fusion: HeadFusion = head_fusion
        self.direction: Direction = direction

    @abstractmethod
    def _walk(self, matrix: Tensor, forward: ForwardPass) -> Tensor:
        """(..., N) relevance of tokens from (B, ..., N, N) attention over all tokens."""

    def _reducer(self) -> Reducer | None:
        return MeanAttention(self.head_fusion, self.tokens)

    def _relevance(self, forward: ForwardPass, reducer: Any) -> Tensor:  # noqa: ANN401
        return self._walk(reducer.matrix, forward)

    @torch.no_grad()
    def maps(
        self,
        inputs: Tensor,
        additional_forward_args: Any = None,  # noqa: ANN401
        *,
        resolution: Resolution = "patch",
    ) -> Tensor:
        """The same walk on the chain of every single layer and head, nothing fused or averaged.

        Args:
            inputs: As in `attribute`.
            additional_forward_args: As in `attribute`.
            resolution: "patch" or "token".

        Returns:
            (B, layers, heads, h, w), (B, layers, heads, words), or (B, layers, heads, N).

        Raises:
            ArgumentError: For resolution "input" and everything that `attribute` refuses.
        """
        forward = self._gather(inputs, additional_forward_args, resolution, None)
        matrices = [without_padding(record.attention.detach(), record.valid_keys) for record in forward.records]
        walks = [self._walk(matrix, forward) for matrix in matrices]
        return self._shown(torch.stack(walks, 1), forward, resolution)

    def _gather(
        self,
        inputs: Tensor,
        additional_forward_args: Any,  # noqa: ANN401
        resolution: Resolution,
        reducer: Reducer | None,
    ) -> ForwardPass:
        check_resolution(resolution, "nearest")
        if resolution == "input":
            raise ArgumentError('resolution: expected "patch" or "token" for many maps at once, got "input"')
        tensor, _ = check_inputs(inputs)
        return self._forward(tensor, None, as_args(additional_forward_args), reducer)

    def _shown(self, tokens: Tensor, forward: ForwardPass, resolution: Resolution) -> Tensor:
        if forward.valid is not None:
            tokens = tokens * along_batch(forward.valid, tokens)
        return from_tokens(tokens, forward.layout, forward.inputs, resolution, "nearest")

    def _uniform(self, forward: ForwardPass, matrix: Tensor) -> Tensor:
        """Uniform distribution over the valid states of the chain, shaped to go with (B, ..., M, M)."""
        weights = torch.ones_like(matrix[..., 0, :]) if forward.valid is None else self._states(forward.valid, forward)
        weights = along_batch(weights, matrix[..., 0, :]).to(matrix.dtype)
        return normalize_rows(weights)

    def _states(self, tokens: Tensor, forward: ForwardPass) -> Tensor:
        """(..., N) of tokens cut to the states of the chain."""
        return tokens[..., forward.layout.num_prefix :] if self.tokens == "patches" else tokens

    def _as_tokens(self, states: Tensor, forward: ForwardPass) -> Tensor:
        """(..., states) back to (..., N) tokens."""
        return forward.layout.tokens(states) if self.tokens == "patches" else states


def along_batch(values: Tensor, like: Tensor) -> Tensor:
    """(B, M) values as (B, 1, ..., M), to broadcast against `like` (B, ..., M)."""
    while values.ndim < like.ndim:
        values = values.unsqueeze(1)
    return values
