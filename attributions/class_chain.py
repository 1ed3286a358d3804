"""Chains that lead where the target's evidence lies: attention weighted by its gradient."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xattn._layers import Layers
from xattn.attributions._chain import Tokens, without_padding
from xattn.attributions._forward import ForwardPass, Reducer, Request
from xattn.attributions._resolution import Resolution, check_resolution
from xattn.attributions._targets import Target
from xattn.attributions.base import as_args, check_inputs
from xattn.attributions.gradient import attention_gradients, from_its_layers
from xattn.attributions.markov import Personalization, TokenRank
from xattn.errors import ArgumentError, UnsupportedModelError
from xattn.layout import TokenLayout
from xattn.markov import normalize_rows
from xattn.markov.chain import Direction


class ClassTokenRank(TokenRank):
    """TokenRank of the attention that speaks for the target: a walk that follows it where it raises the score.

    C = mean_l mean_h max(0, dy/dA_lh * A_lh), cut to the chosen tokens; rows renormalised to a stochastic matrix, a
    row of zeros becomes the personalization p; then pi = pi (alpha C + (1 - alpha) 1 p).

    In the last layer of a model that reads its class token only that token's row has a gradient, so that all other
    tokens restart: the map is that row above the personalization. Earlier layers connect patches as well, but their
    evidence tells classes apart less well (on two-object scenes of the demo set), so they are not the default.

    Args:
        forward_func: Module or callable.
        layers: Which self-attention layers are averaged; the last by default.
        tokens: "all", or "patches" to leave class token and registers out of the walk.
        direction: "forward" (query to key) or "backward".
        alpha: Probability of following the chain rather than restarting from p.
        personalization: As for `TokenRank`.
        layout: Roles of the tokens.
    """

    name = "class_tokenrank"
    summary = "stationary distribution of gradient-weighted attention"
    paper = "gradient-weighted attention (Chefer et al., ICCV 2021) as a chain"
    is_class_specific = True
    needs_gradient = True
    backwards = 1

    def __init__(
        self,
        forward_func: Callable[..., Any],
        *,
        layers: Layers = -1,
        tokens: Tokens = "all",
        direction: Direction = "forward",
        alpha: float = 0.99,
        personalization: Personalization = None,
        layout: TokenLayout | None = None,
    ) -> None:
        super().__init__(
            forward_func,
            layers=layers,
            tokens=tokens,
            direction=direction,
            alpha=alpha,
            personalization=personalization,
            layout=layout,
        )
        self.is_class_specific = True

    def _reducer(self) -> Reducer | None:
        return None  # gradients come when the forward call is over

    def _request(self, reducer: Reducer | None) -> Request:
        return from_its_layers(super()._request(reducer))

    def _relevance(self, forward: ForwardPass, reducer: Any) -> Tensor:  # noqa: ANN401
        layers = [evidence.mean(1) for evidence in self._evidence(forward)]
        matrix = torch.stack(layers).mean(0)
        empty = self._walked(matrix, forward).flatten(1).amax(1) == 0
        if bool(empty.any()):
            warnings.warn(
                f"layers: no attention in layers {self.layers} speaks for the target in {int(empty.sum())} of "
                f"{len(empty)} samples; their map is the personalization",
                stacklevel=4,
            )
        return self._rank(matrix, forward)

    @torch.no_grad()
    def maps(
        self,
        inputs: Tensor,
        additional_forward_args: Any = None,  # noqa: ANN401
        *,
        target: Target = None,
        resolution: Resolution = "patch",
    ) -> Tensor:
        """The same walk on the chain of every single layer and head.

        Args:
            inputs: As in `attribute`.
            additional_forward_args: As in `attribute`.
            target: As in `attribute`.
            resolution: "patch" or "token".

        Returns:
            (B, layers, heads, h, w), (B, layers, heads, words), or (B, layers, heads, N).

        Raises:
            ArgumentError: For resolution "input" and everything that `attribute` refuses.
        """
        check_resolution(resolution, "nearest")
        if resolution == "input":
            raise ArgumentError('resolution: expected "patch" or "token" for many maps at once, got "input"')
        tensor, _ = check_inputs(inputs)
        forward = self._forward(tensor, target, as_args(additional_forward_args), None)
        walks = [self._rank(evidence, forward) for evidence in self._evidence(forward)]
        return self._shown(torch.stack(walks, 1), forward, resolution)

    def _evidence(self, forward: ForwardPass) -> list[Tensor]:
        """Positive part of gradient times attention, (B, heads, N, N) for each layer.

        Raises:
            UnsupportedModelError: If the score has no gradient by any entry of the chain.
        """
        gradients = attention_gradients(forward)
        if not any(bool(self._walked(gradient, forward).any()) for gradient in gradients):
            raise UnsupportedModelError(
                f"layers: the score does not depend on attention among {self.tokens} in layers {self.layers} (as in "
                'the last layer of a model that reads its class token); choose earlier layers or tokens="all"'
            )
        pairs = zip(gradients, forward.records, strict=True)
        return [(gradient * record.attention.detach().to(gradient.device)).clamp_min(0) for gradient, record in pairs]

    def _walked(self, matrix: Tensor, forward: ForwardPass) -> Tensor:
        first = forward.layout.num_prefix if self.tokens == "patches" else 0
        return matrix[..., first:, first:]

    def _rank(self, evidence: Tensor, forward: ForwardPass) -> Tensor:
        """(..., N) TokenRank of evidence (..., N, N), whose rows are scaled first: gradients can be tiny."""
        largest = evidence.amax(-1, keepdim=True)
        chain = normalize_rows(evidence / torch.where(largest > 0, largest, 1))
        valid = forward.records[0].valid_keys
        return self._walk(without_padding(chain, valid), forward)
