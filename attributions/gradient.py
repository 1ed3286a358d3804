"""Attention weighted by the gradient of the target: AttentionGradCAM, gradient rollout and generic attention."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from xattn._layers import check_layers
from xattn.attributions._forward import ForwardPass, Reducer, Request
from xattn.attributions.base import TransformerAttribution
from xattn.errors import ArgumentError, ArgumentTypeError, UnsupportedModelError
from xattn.layout import TokenLayout
from xattn.markov import normalize_rows


class GradientAttention(TransformerAttribution):
    """Base of methods that need the gradient of the target's score by the attention matrices."""

    family = "gradient"
    is_class_specific = True
    needs_gradient = True
    backwards = 1

    def _request(self, reducer: Reducer | None) -> Request:
        return from_its_layers(super()._request(reducer))

    def _weighted(self, forward: ForwardPass) -> list[tuple[Tensor, Tensor]]:
        """Each layer's attention and its gradient, both (B, heads, N, N)."""
        home = forward.inputs.device
        attentions = [record.attention.detach().to(home) for record in forward.records]
        return list(zip(attentions, attention_gradients(forward), strict=True))


def from_its_layers(request: Request) -> Request:
    """The request with a graph that begins at the first of its layers, for gradients by these layers' attention."""
    layers = check_layers(request.layers)
    return replace(request, graph_from=None if layers is None else min(layers))


def attention_gradients(forward: ForwardPass) -> tuple[Tensor, ...]:
    """Gradient of each sample's score by each kept attention matrix.

    Raises:
        UnsupportedModelError: If a matrix has no influence on the score, or all gradients vanish.
    """
    attentions = [record.attention for record in forward.records]
    gradients = []
    for record, gradient in zip(forward.records, forward.gradients(attentions), strict=True):
        if gradient is None:
            raise UnsupportedModelError(
                f"forward_func: the score does not depend on the attention of {record.path!r}; "
                "choose other layers, or check that the model does not detach or recompute it"
            )
        gradients.append(gradient)
    if all(not bool(gradient.any()) for gradient in gradients):
        raise UnsupportedModelError(
            f"forward_func: the gradient of the score by the attention of {forward.records[-1].path!r} is zero "
            "everywhere; a constant or saturated score cannot be explained by gradients"
        )
    return tuple(gradients)


class AttentionGradCAM(GradientAttention):
    """GradCAM on the last attention: heads weighted by their mean gradient.

    w_h = mean_j dy/dA_h[cls, j],  M = max(0, mean_h w_h A_h[cls, :]), j over patches; un-normalised. The baseline of
    Chefer et al., CVPR 2021, after Selvaraju et al., ICCV 2017.

    Args:
        forward_func: Module or callable.
        layer: Which self-attention layer.
        layout: Roles of the tokens.
    """

    name = "attention_gradcam"
    summary = "last attention, heads weighted by their mean gradient"
    paper = "Selvaraju et al., ICCV 2017; Chefer et al., CVPR 2021"

    def __init__(self, forward_func: Callable[..., Any], *, layer: int = -1, layout: TokenLayout | None = None) -> None:
        super().__init__(forward_func, layers=layer, layout=layout)

    def _relevance(self, forward: ForwardPass, reducer: Any) -> Tensor:  # noqa: ANN401
        ((attention, gradient),) = self._weighted(forward)
        start, first = forward.tokens_read().to(attention.dtype), forward.layout.num_prefix
        rows, slopes = (torch.einsum("bi,bhij->bhj", start, x)[..., first:] for x in (attention, gradient))
        return forward.layout.tokens((forward.patch_mean(slopes, -1) * rows).mean(1).clamp_min(0))


class AccumulatedGradientAttention(GradientAttention):
    """Base of products over layers.

    Args:
        forward_func: Module or callable.
        start_layer: First layer of the product; negative counts from the end.
        layout: Roles of the tokens.
    """

    def __init__(
        self, forward_func: Callable[..., Any], *, start_layer: int = 0, layout: TokenLayout | None = None
    ) -> None:
        super().__init__(forward_func, layers="all", layout=layout)
        if not isinstance(start_layer, int) or isinstance(start_layer, bool):
            raise ArgumentTypeError(f"start_layer: expected an integer, got {type(start_layer).__name__}")
        self.start_layer = start_layer

    def _relevance(self, forward: ForwardPass, reducer: Any) -> Tensor:  # noqa: ANN401
        depth = len(forward.records)
        if not -depth <= self.start_layer < depth:
            raise ArgumentError(f"start_layer: expected a layer in {-depth}..{depth - 1}, got {self.start_layer}")
        product: Tensor | None = None
        for attention, gradient in self._weighted(forward)[self.start_layer :]:
            step = self._step(attention, gradient)
            product = step if product is None else step @ product
        assert product is not None  # start_layer was checked
        return torch.einsum("bi,bij->bj", forward.tokens_read().to(product.dtype), product)

    @abstractmethod
    def _step(self, attention: Tensor, gradient: Tensor) -> Tensor:
        """(B, N, N) factor of one layer from its (B, heads, N, N) attention and gradient."""


class GenericAttention(AccumulatedGradientAttention):
    """Gradient-weighted attention accumulated over layers.

    R = I;  R <- R + mean_h (dy/dA_h * A_h)^+ R  from the first layer to the last; relevance is the class token's row
    (Chefer et al., ICCV 2021, eqs. 5 and 6). For a two-tower model each tower is explained by giving its input; where
    two sequences attend to each other, `BimodalAttention` explains both.
    """

    name = "generic_attention"
    summary = "gradient-weighted attention accumulated over layers"
    paper = "Chefer et al., ICCV 2021"

    def _step(self, attention: Tensor, gradient: Tensor) -> Tensor:
        return identity_like(attention) + (gradient * attention).clamp_min(0).mean(1)


class GradientRollout(AccumulatedGradientAttention):
    """Attention rollout whose heads are weighted by their gradient.

    B_l = rows(I + (mean_h dy/dA_h * A_h)^+), R = B_L ... B_1; relevance is the class token's row (the variant of
    rollout known from vit-explain).
    """

    name = "gradient_rollout"
    summary = "rollout with attention weighted by its gradient"
    paper = "after Abnar and Zuidema, ACL 2020"

    def _step(self, attention: Tensor, gradient: Tensor) -> Tensor:
        return normalize_rows(identity_like(attention) + (gradient * attention).mean(1).clamp_min(0))


def identity_like(attention: Tensor) -> Tensor:
    """(N, N) identity in the dtype and on the device of (..., N, N)."""
    return torch.eye(attention.shape[-1], dtype=attention.dtype, device=attention.device)
