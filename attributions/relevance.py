"""Relevance propagation: from the target's score back through every operation, to attention or to the input."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from xattn.attributions._forward import ForwardPass
from xattn.attributions._relevance import Precision, RelevanceAttribution
from xattn.attributions._resolution import result_dtype
from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.layout import TokenLayout
from xattn.relevance import Recording, RuleSet


class LRP(RelevanceAttribution):
    """Layer-wise relevance propagation to the input.

    The rules of the chosen set share out the relevance of each operation's result among its operands, from the
    target's logit to the pixels, or to the embeddings of token ids, summed over their width. Signed. The default is
    the full LRP baseline of Chefer et al., CVPR 2021 (its relevance grows by up to two in every dense layer).

    Where relevance goes, with `return_convergence_delta`: to biases, constant terms (position embeddings) and
    stabilisers in all sets; the sets "lrp" and "transinterp" do not conserve it by design.

    Args:
        forward_func: Module or callable that returns logits.
        rules: Rule set or its name.
        layout: Roles of the tokens.
        precision: "float32" (default) or "float64".
    """

    name = "lrp"
    summary = "relevance propagated through every layer to the input"
    paper = "Bach et al., PLOS ONE 2015; Chefer et al., CVPR 2021"
    level = "pixel"
    is_signed = True
    _from_sums = 10.0

    def __init__(
        self,
        forward_func: Callable[..., Any],
        *,
        rules: str | RuleSet = "lrp",
        layout: TokenLayout | None = None,
        precision: Precision = None,
    ) -> None:
        super().__init__(forward_func, rules=rules, layers=-1, layout=layout, precision=precision)

    def _read(self, forward: ForwardPass, recording: Recording, score: Tensor) -> Tensor:
        assert recording.input is not None  # _followed checked
        (relevance,) = self._propagate(recording, score, [recording.input])
        if recording.ids is not None:
            return relevance.sum(-1).to(torch.float32)
        limit = torch.finfo(torch.float32).max
        return relevance.clamp(-limit, limit).to(result_dtype(forward.inputs))


class AttnLRP(LRP):
    """LRP with rules for attention: softmax by its first-order expansion, norms with fixed statistics.

    Achtibat et al., ICML 2024. Starts with the logit and conserves it but for biases, constant terms, the stabiliser
    and the constant term of the softmax. `rules=attnlrp(gamma=0.05)` of `xattn.relevance` uses the gamma rule in
    dense layers.

    Args:
        forward_func: Module or callable that returns logits.
        rules: Rule set or its name.
        layout: Roles of the tokens.
        precision: "float32" (default) or "float64".
    """

    name = "attnlrp"
    summary = "relevance propagation with rules made for attention"
    paper = "Achtibat et al., ICML 2024"

    def __init__(
        self,
        forward_func: Callable[..., Any],
        *,
        rules: str | RuleSet = "attnlrp",
        layout: TokenLayout | None = None,
        precision: Precision = None,
    ) -> None:
        super().__init__(forward_func, rules=rules, layout=layout, precision=precision)


class PartialLRP(RelevanceAttribution):
    """Relevance of the last attention layer: mean_h (R_h)+ in the class token's row.

    The partial LRP baseline of Chefer et al., CVPR 2021, after Voita et al., ACL 2019. Without a class token rows are
    averaged with the weights of the model's pooling.

    Args:
        forward_func: Module or callable that returns logits.
        rules: Rule set or its name.
        layer: Which attention layer.
        layout: Roles of the tokens.
        precision: "float32" (default) or "float64".
    """

    name = "partial_lrp"
    summary = "relevance of the class token's attention in the last layer"
    paper = "Voita et al., ACL 2019; Chefer et al., CVPR 2021"

    def __init__(
        self,
        forward_func: Callable[..., Any],
        *,
        rules: str | RuleSet = "lrp",
        layer: int = -1,
        layout: TokenLayout | None = None,
        precision: Precision = None,
    ) -> None:
        super().__init__(forward_func, rules=rules, layers=layer, layout=layout, precision=precision)

    def _read(self, forward: ForwardPass, recording: Recording, score: Tensor) -> Tensor:
        (record,) = forward.records
        (relevance,) = self._propagate(recording, score, [record.attention])
        matrix = relevance.clamp(min=0).mean(1).to(forward.inputs.device)
        return torch.einsum("bi,bij->bj", _tokens_read(forward).to(matrix.dtype), matrix)


class RelevanceRollout(RelevanceAttribution):
    """Relevance of attention, multiplied over layers: C_l = I + mean_h (R_lh)+, the class token's row of the product.

    The ablation of TransInterp without gradients (Chefer et al., CVPR 2021). Rows are not normalised. Without a class
    token rows are averaged with the weights of the model's pooling.

    Args:
        forward_func: Module or callable that returns logits.
        start_layer: First layer of the product.
        rules: Rule set or its name.
        layout: Roles of the tokens.
        precision: "float32" (default) or "float64".
    """

    name = "relevance_rollout"
    summary = "relevance of attention multiplied over layers"
    paper = "Chefer et al., CVPR 2021"

    def __init__(
        self,
        forward_func: Callable[..., Any],
        *,
        start_layer: int = 0,
        rules: str | RuleSet = "transinterp",
        layout: TokenLayout | None = None,
        precision: Precision = None,
    ) -> None:
        super().__init__(forward_func, rules=rules, layers="all", layout=layout, precision=precision)
        if not isinstance(start_layer, int) or isinstance(start_layer, bool):
            raise ArgumentTypeError(f"start_layer: expected an integer, got {type(start_layer).__name__}")
        if start_layer < 0:
            raise ArgumentError(f"start_layer: expected zero or more, got {start_layer}")
        self.start_layer = start_layer

    def _read(self, forward: ForwardPass, recording: Recording, score: Tensor) -> Tensor:
        attention = [record.attention for record in forward.records[self.start_layer :]]
        if not attention:
            raise ArgumentError(
                f"start_layer: expected a layer in 0..{len(forward.records) - 1}, got {self.start_layer}"
            )
        weights = self._weights(score, attention)
        relevance = self._propagate(recording, score, attention)
        row = _tokens_read(forward).to(relevance[0].dtype)
        for weight, share in reversed(list(zip(weights, relevance, strict=True))):
            matrix = (share if weight is None else share * weight).clamp_(min=0).mean(1)
            row = row + torch.einsum("bi,bij->bj", row, matrix.to(row.device))
        return row

    def _weights(self, score: Tensor, attention: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Factors of the relevance of each layer's attention."""
        return [None] * len(attention)


class TransInterp(RelevanceRollout):
    """Gradient times relevance of attention, multiplied over layers.

    C_l = I + mean_h (G_lh * R_lh)+ with G the gradient of the target's logit with respect to the attention and R its
    relevance; the class token's row of C_L ... C_1 (Chefer et al., CVPR 2021, equations 13 and 14, without row
    normalisation, as published). Without a class token rows are averaged with the weights of the model's pooling.

    Args:
        forward_func: Module or callable that returns logits.
        start_layer: First layer of the product.
        rules: Rule set or its name.
        layout: Roles of the tokens.
        precision: "float32" (default) or "float64".
    """

    name = "transinterp"
    summary = "gradient times relevance of attention, multiplied over layers"
    paper = "Chefer et al., CVPR 2021"
    backwards = 2

    def _weights(self, score: Tensor, attention: Sequence[Tensor]) -> Sequence[Tensor | None]:
        return torch.autograd.grad(
            score, attention, torch.ones_like(score), retain_graph=True, allow_unused=True, materialize_grads=True
        )


def _tokens_read(forward: ForwardPass) -> Tensor:
    """(B, N) weights of the tokens that the answer is read from, also where a class token is there and not read."""
    layout = forward.layout
    if layout.pooling != "avg":
        return forward.tokens_read()
    patches = torch.ones(forward.inputs.shape[0], layout.num_patches, device=forward.inputs.device)
    weights = layout.tokens(patches)
    weights = weights if forward.valid is None else weights * forward.valid
    return weights / weights.sum(-1, keepdim=True)
