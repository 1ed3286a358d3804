"""Attention read as a Markov chain: TokenRank, n-bounce attention, column sums and lambda2-weighted rollout.

Source: "Attention (as Discrete-Time Markov) Chains", NeurIPS 2025.
"""

import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from xattn._layers import Layers
from xattn.attributions._chain import ChainAttribution, HeadFusion, MeanAttention, Tokens, along_batch, restrict
from xattn.attributions._forward import ForwardPass, Reducer
from xattn.attributions._resolution import Resolution
from xattn.attributions._rollout import RolloutAttribution, StreamedRollout
from xattn.attributions.base import TransformerAttribution
from xattn.errors import ArgumentError, ArgumentTypeError, UnsupportedModelError
from xattn.layout import TokenLayout
from xattn.markov import backward, bounce, normalize_rows, stationary
from xattn.markov.chain import Direction, check_unit

Start: TypeAlias = Literal["auto", "cls"] | int | tuple[int, int] | Tensor
Personalization: TypeAlias = Tensor | TransformerAttribution | None

_PAPER = "Attention (as Discrete-Time Markov) Chains, NeurIPS 2025"


class TokenRank(ChainAttribution):
    """Stationary distribution of the attention chain: where a walk that follows attention stays in the long run.

    pi = pi (alpha A + (1 - alpha) 1 p), A the chain on the chosen tokens.

    Args:
        forward_func: Module or callable.
        layers: Which self-attention layers are averaged (`on="chain"`) or multiplied (`on="rollout"`).
        tokens: "patches" leaves class token and registers out of the walk, "all" keeps them.
        head_fusion: How heads become one chain.
        direction: "forward" (who is attended to) or "backward".
        alpha: Probability of following attention rather than restarting from p.
        personalization: p: None is uniform; a tensor (N,) or (B, N); or an attribution object, whose positive part
            is used (uniform, with a warning, where it has none).
        on: "chain" ranks the averaged layers, "rollout" the product of all of them.
        layout: Roles of the tokens.
    """

    name = "tokenrank"
    summary = "stationary distribution of the attention chain"
    paper = _PAPER

    def __init__(
        self,
        forward_func: Callable[..., Any],
        *,
        layers: Layers = -1,
        tokens: Tokens = "patches",
        head_fusion: HeadFusion = "mean",
        direction: Direction = "forward",
        alpha: float = 0.99,
        personalization: Personalization = None,
        on: Literal["chain", "rollout"] = "chain",
        layout: TokenLayout | None = None,
    ) -> None:
        super().__init__(
            forward_func, layers=layers, tokens=tokens, head_fusion=head_fusion, direction=direction, layout=layout
        )
        check_unit(alpha, "alpha")
        if on not in ("chain", "rollout"):
            raise ArgumentError(f'on: expected "chain" or "rollout", got {on!r}')
        if personalization is not None and not isinstance(personalization, (Tensor, TransformerAttribution)):
            raise ArgumentTypeError(
                f"personalization: expected None, a tensor or an attribution, got {type(personalization).__name__}"
            )
        self.alpha = alpha
        self.on = on
        self.personalization = personalization
        self.is_class_specific = (
            isinstance(personalization, TransformerAttribution) and personalization.is_class_specific
        )

    def _reducer(self) -> Reducer | None:
        if self.on == "rollout":
            return StreamedRollout(self.head_fusion)
        return super()._reducer()

    def _walk(self, matrix: Tensor, forward: ForwardPass) -> Tensor:
        chain = restrict(matrix, forward.layout, self.tokens)
        start = self._restart(chain, forward)
        rank = stationary(chain, self.alpha, start, self.direction).distribution
        return self._as_tokens(rank, forward)

    def _restart(self, chain: Tensor, forward: ForwardPass) -> Tensor:
        """Restart distribution over the states of the chain."""
        uniform = self._uniform(forward, chain)
        if self.personalization is None:
            return uniform
        if isinstance(self.personalization, TransformerAttribution):
            seed = self.personalization.attribute(
                forward.inputs, forward.target, forward.additional_args, resolution="token"
            ).clamp_min(0)
            seed = self._states(seed, forward)
            if bool((seed.sum(-1) == 0).any()):
                warnings.warn("personalization: no positive relevance in a sample; it restarts uniformly", stacklevel=5)
        else:
            seed = self._given(self.personalization, forward)
        seed = along_batch(seed.to(chain.device, chain.dtype), uniform)
        return torch.where(seed.sum(-1, keepdim=True) > 0, seed, uniform)

    def _given(self, seed: Tensor, forward: ForwardPass) -> Tensor:
        tokens, batch = forward.layout.num_tokens, forward.inputs.shape[0]
        if seed.shape not in ((tokens,), (batch, tokens)):
            raise ArgumentError(
                f"personalization: expected shape ({tokens},) or ({batch}, {tokens}), got {tuple(seed.shape)}"
            )
        states = self._states(seed, forward)
        if not bool((states.isfinite() & (states >= 0)).all()) or not bool((states.sum(-1) > 0).all()):
            raise ArgumentError(
                f"personalization: expected finite, non-negative values with a positive sum over the {self.tokens} "
                "tokens of each sample"
            )
        return states.expand(batch, -1)


class ColumnSum(ChainAttribution):
    """Mean attention that each token receives: TokenRank after one step from a uniform start.

    (1/N) sum_i A[i, j].
    """

    name = "column_sum"
    summary = "attention received, averaged over all tokens"
    paper = _PAPER

    def _walk(self, matrix: Tensor, forward: ForwardPass) -> Tensor:
        chain = restrict(matrix, forward.layout, self.tokens)
        return self._as_tokens(bounce(chain, self._uniform(forward, chain), 1, self.direction), forward)


class NBounceAttention(ChainAttribution):
    """Attention propagated n steps from a start: v A^n.

    From the class token with `tokens="patches"`, the first bounce is its row restricted to the patches and
    renormalised; further bounces walk on the patches.

    Args:
        forward_func: Module or callable.
        n: Number of bounces, zero or more.
        start: "auto" (class token, else pooling weights, else the last token of a causal model, else uniform);
            "cls"; a token's index; a pixel (y, x); or a tensor: weights (h, w) or (B, h, w) of patches, (N,) or
            (B, N) of tokens.
        layers: Which self-attention layers are averaged.
        tokens: "patches" or "all".
        head_fusion: How heads become one chain.
        direction: "forward" or "backward".
        layout: Roles of the tokens.
    """

    name = "n_bounce"
    summary = "attention propagated n steps from the class token"
    paper = _PAPER

    def __init__(
        self,
        forward_func: Callable[..., Any],
        *,
        n: int = 2,
        start: Start = "auto",
        layers: Layers = -1,
        tokens: Tokens = "patches",
        head_fusion: HeadFusion = "mean",
        direction: Direction = "forward",
        layout: TokenLayout | None = None,
    ) -> None:
        super().__init__(
            forward_func, layers=layers, tokens=tokens, head_fusion=head_fusion, direction=direction, layout=layout
        )
        if not isinstance(n, int) or isinstance(n, bool):
            raise ArgumentTypeError(f"n: expected an integer, got {type(n).__name__}")
        if n < 0:
            raise ArgumentError(f"n: expected zero or more bounces, got {n}")
        self.n = n
        self.start = start

    def _walk(self, matrix: Tensor, forward: ForwardPass) -> Tensor:
        return self._frames(matrix, forward, self.n)[..., -1, :]

    @torch.no_grad()
    def film(
        self,
        inputs: Tensor,
        additional_forward_args: Any = None,  # noqa: ANN401
        *,
        resolution: Resolution = "patch",
    ) -> Tensor:
        """All bounces from 0 (the start itself) to n.

        Args:
            inputs: As in `attribute`.
            additional_forward_args: As in `attribute`.
            resolution: "patch" or "token".

        Returns:
            (B, n + 1, h, w), (B, n + 1, words) or (B, n + 1, N).
        """
        mean = MeanAttention(self.head_fusion, self.tokens)
        forward = self._gather(inputs, additional_forward_args, resolution, mean)
        return self._shown(self._frames(mean.matrix, forward, self.n), forward, resolution)

    def _frames(self, matrix: Tensor, forward: ForwardPass, n: int) -> Tensor:
        """(..., n + 1, N): the walk from its start on."""
        start = along_batch(self._distribution(forward).to(matrix.dtype), matrix[..., 0, :])
        start = start.expand(matrix.shape[:-1])
        if self.tokens == "all":
            return bounce(normalize_rows(matrix), start, n, self.direction, film=True)
        chain = restrict(matrix, forward.layout, "patches")
        patches = self._states(start, forward)
        if forward.layout.num_prefix == 0 or not bool((start[..., : forward.layout.num_prefix] > 0).any()):
            return self._as_tokens(bounce(chain, patches, n, self.direction, film=True), forward)
        if n == 0:
            return start.unsqueeze(-2)
        whole = normalize_rows(matrix)
        whole = backward(whole) if self.direction == "backward" else whole
        first = self._states(torch.einsum("...i,...ij->...j", start, whole), forward)
        first = torch.where(first.sum(-1, keepdim=True) > 0, first, self._uniform(forward, chain))
        rest = bounce(chain, first, n - 1, self.direction, film=True)
        return torch.cat([start.unsqueeze(-2), self._as_tokens(rest, forward)], -2)

    def _distribution(self, forward: ForwardPass) -> Tensor:
        """(B, N) distribution of the start."""
        layout, start, batch = forward.layout, self.start, forward.inputs.shape[0]
        if isinstance(start, Tensor):
            return self._weights(start.to(forward.inputs.device), forward)
        if isinstance(start, str):
            if start not in ("auto", "cls"):
                raise ArgumentError(f'start: expected "auto" or "cls" among words, got {start!r}')
            if start == "cls" and layout.cls_index is None:
                raise UnsupportedModelError(f'start: "cls" needs a class token, this model has {layout}; use "auto"')
            return forward.tokens_read()
        index = self._index(forward)
        if not -layout.num_tokens <= index < layout.num_tokens:
            raise ArgumentError(f"start: expected a token index below {layout.num_tokens}, got {index}")
        return torch.eye(layout.num_tokens, device=forward.inputs.device)[index].expand(batch, -1)

    def _index(self, forward: ForwardPass) -> int:
        if isinstance(self.start, int) and not isinstance(self.start, bool):
            return self.start
        if isinstance(self.start, tuple) and len(self.start) == 2 and forward.inputs.ndim == 4:
            height, width = forward.inputs.shape[-2:]
            return forward.layout.token_at(*self.start, (height, width))
        raise ArgumentTypeError(
            f"start: expected a word, a token index, a pixel (y, x) of an image, or a tensor, got {self.start!r}"
        )

    def _weights(self, start: Tensor, forward: ForwardPass) -> Tensor:
        layout, batch = forward.layout, forward.inputs.shape[0]
        if layout.grid is not None and start.shape in (layout.grid, (batch, *layout.grid)):
            start = layout.tokens(start.flatten(-2).float())
        elif start.shape not in ((layout.num_tokens,), (batch, layout.num_tokens)):
            raise ArgumentError(
                f"start: expected weights of patches {layout.grid}, of tokens ({layout.num_tokens},), or a batch of "
                f"them, got shape {tuple(start.shape)}"
            )
        start = start.float().expand(batch, layout.num_tokens)
        if not bool((start.isfinite() & (start >= 0)).all()) or not bool((start.sum(-1) > 0).all()):
            raise ArgumentError("start: expected finite, non-negative weights, not all zero in any sample")
        return normalize_rows(start)


class Lambda2Rollout(RolloutAttribution):
    """Rollout over layers whose heads are weighted by the modulus of their second eigenvalue.

    A_l = sum_h lambda2_h A_h / sum_h lambda2_h; then as `AttentionRollout`. A head whose walk forgets its start at
    once (lambda2 near 0) carries no structure and counts little.

    Args:
        forward_func: Module or callable.
        start_layer: First layer of the product.
        residual: Share of the skip connection.
        layout: Roles of the tokens.
    """

    name = "lambda2_rollout"
    summary = "rollout with heads weighted by their second eigenvalue"
    paper = _PAPER

    def __init__(
        self,
        forward_func: Callable[..., Any],
        *,
        start_layer: int = 0,
        residual: float = 0.5,
        layout: TokenLayout | None = None,
    ) -> None:
        super().__init__(forward_func, "lambda2", start_layer, residual, 0.0, layout)
