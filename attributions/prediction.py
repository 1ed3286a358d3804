"""What the model would answer if it were asked at each patch: prediction maps, and attention that agrees with them.

The final norm and the classification head, made for the class token, are applied to the tokens of patches. Layers
share one residual stream, so the head reads tokens of late layers as well. No gradient is needed.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from xattn._layers import Layers, check_layers
from xattn._state import find_modules
from xattn.attention import AttentionRecord
from xattn.attributions._forward import ForwardPass, Reducer, Request
from xattn.attributions._head import Head, LayerTokens, own_head
from xattn.attributions._resolution import Resolution, check_resolution, from_tokens
from xattn.attributions.base import TransformerAttribution, as_args, check_inputs
from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.layout import TokenLayout
from xattn.markov import normalize_rows

Similarity: TypeAlias = Literal["dot", "cosine", "kl"]
Space: TypeAlias = Literal["probability", "logit"]


class PredictionAttribution(TransformerAttribution):
    """Base of methods that ask the model's head at each patch.

    Args:
        forward_func: Module or callable.
        layer: After which layer tokens are read; several layers are concatenated along the features, for a `head`
            that reads several.
        space: "probability" (softmax over classes; sigmoid for a single output) or "logit".
        head: Function from tokens (..., D) to logits (..., classes); None finds the model's own.
        layout: Roles of the tokens.

    Attributes:
        needs_token_head: Models whose head cannot be asked at a single token are refused without `head`.
    """

    family = "prediction"
    paper = "prediction maps"
    is_class_specific = True
    needs_token_head = True

    def __init__(
        self,
        forward_func: Callable[..., Any],
        *,
        layer: int | Sequence[int] = -2,
        space: Space = "probability",
        head: Head | None = None,
        layout: TokenLayout | None = None,
    ) -> None:
        super().__init__(forward_func, layout=layout)
        indices = check_layers(layer)
        if indices is None:
            raise ArgumentError('layer: expected an integer or a list of integers, got "all"')
        if space not in get_args(Space):
            raise ArgumentError(f'space: expected "probability" or "logit", got {space!r}')
        if head is not None and not callable(head):
            raise ArgumentTypeError(f"head: expected a callable or None, got {type(head).__name__}")
        if head is None and len(indices) > 1:
            raise ArgumentError(f"layer: several layers need head=, which reads their concatenation; got {layer!r}")
        self.layer = layer
        self.space = space
        self.head = head
        self.is_signed = space == "logit"
        self._layer_indices = indices

    def _reducer(self) -> LayerTokens:
        return LayerTokens(find_modules(self.forward_func), self._layer_indices)

    def _request(self, reducer: Reducer | None) -> Request:
        assert isinstance(reducer, LayerTokens)
        return Request("all", self.layout, reducer, around=reducer)

    def _check(self, forward: ForwardPass) -> None:
        super()._check(forward)
        if forward.logits is None or forward.logits.ndim > 2:
            raise ArgumentError(
                f"forward_func: {type(self).__name__} expects logits (B, classes), got an output of several dimensions"
            )

    def _relevance(self, forward: ForwardPass, reducer: Any) -> Tensor:  # noqa: ANN401
        chosen = self._target_maps(forward, reducer)
        return forward.layout.tokens(self._explained(chosen, forward, reducer).squeeze(1))

    def _explained(self, maps: Tensor, forward: ForwardPass, tokens: Any) -> Tensor:  # noqa: ANN401
        """(B, K, patches) relevance from prediction maps (B, K, patches) of K classes."""
        return maps

    def _target_maps(self, forward: ForwardPass, tokens: LayerTokens) -> Tensor:
        """(B, 1, patches) prediction maps of the targets."""
        maps = self._class_maps(forward, tokens)
        index = forward.target_index.to(maps.device)
        if index.shape[1] == 0:  # logits (B,): nothing to choose
            return maps
        return maps.gather(1, index.unsqueeze(-1).expand(-1, -1, maps.shape[-1]))

    def _class_maps(self, forward: ForwardPass, tokens: LayerTokens) -> Tensor:
        """(B, classes, patches) prediction maps; 0 at padding."""
        assert forward.logits is not None  # _check saw to it
        there, home = forward.logits.device, forward.inputs.device
        read = torch.cat([tokens.after(layer).to(there) for layer in self._layer_indices], -1)
        logits = find_head(self.head, forward, tokens)(read[:, forward.layout.num_prefix :]).to(home)
        maps = (logits if self.space == "logit" else probabilities(logits)).mT.contiguous()
        return maps if forward.valid is None else maps * forward.valid[:, None, forward.layout.num_prefix :]

    @torch.no_grad()
    def maps(
        self,
        inputs: Tensor,
        additional_forward_args: Any = None,  # noqa: ANN401
        *,
        resolution: Resolution = "patch",
    ) -> Tensor:
        """The maps of all classes.

        Args:
            inputs: As in `attribute`.
            additional_forward_args: As in `attribute`.
            resolution: "patch" or "token".

        Returns:
            (B, classes, h, w), (B, classes, words), or (B, classes, N).

        Raises:
            ArgumentError: For resolution "input" and everything that `attribute` refuses.
        """
        check_resolution(resolution, "nearest")
        if resolution == "input":
            raise ArgumentError('resolution: expected "patch" or "token" for many maps at once, got "input"')
        tensor, _ = check_inputs(inputs)
        tokens = self._reducer()
        forward = self._forward(tensor, None, as_args(additional_forward_args), tokens)
        with torch.inference_mode(False), torch.no_grad():
            maps = self._explained(self._class_maps(forward, tokens), forward, tokens)
        return from_tokens(forward.layout.tokens(maps), forward.layout, forward.inputs, resolution, "nearest")


class PredictionMap(PredictionAttribution):
    """Probability of the target if the answer were read at this patch instead of the class token.

    softmax_c(head(norm(t_j))) for each patch token t_j after layer `layer`, the last but one by default. A model that
    reads its answer in several places (class and distillation token, class token and mean patch) is given t_j in all
    of them. A head that is not found (attention pooling, concatenated layers) is passed as `head`.
    `.maps()` gives all classes.
    """

    name = "prediction_map"
    summary = "the classification head applied to each patch"


class PredictionAttention(PredictionAttribution):
    """Attention of all heads, each weighted by its similarity with the target's prediction map.

    R_j = m_j sum_{l,h} max(0, s(a_lh, m)) a_lh,j, where a_lh is the class token's attention to patches in head h of
    layer l and m the target's prediction map. s is the dot product, the cosine, or exp(-KL(a || m)) of both
    normalised to distributions (logits by a softmax over patches). Without a class token a_lh is the mean row of the
    tokens that the answer is read from; then whole matrices are kept until the forward call ends.

    Args:
        forward_func: Module or callable.
        similarity: "dot", "cosine" or "kl".
        layer: After which layer tokens are read for the prediction map.
        space: "probability" or "logit".
        layers: Which attention layers take part.
        head: Function from tokens (..., D) to logits (..., classes); None finds the model's own.
        layout: Roles of the tokens.
    """

    name = "prediction_attention"
    summary = "attention of all heads, weighted by agreement with the prediction map"

    def __init__(
        self,
        forward_func: Callable[..., Any],
        *,
        similarity: Similarity = "dot",
        layer: int | Sequence[int] = -2,
        space: Space = "probability",
        layers: Layers = "all",
        head: Head | None = None,
        layout: TokenLayout | None = None,
    ) -> None:
        super().__init__(forward_func, layer=layer, space=space, head=head, layout=layout)
        if similarity not in get_args(Similarity):
            raise ArgumentError(f'similarity: expected "dot", "cosine" or "kl", got {similarity!r}')
        check_layers(layers)
        self.similarity: Similarity = similarity
        self.layers = layers

    def _reducer(self) -> LayerTokens:
        return AttentionRows(find_modules(self.forward_func), self._layer_indices)

    def _explained(self, maps: Tensor, forward: ForwardPass, tokens: Any) -> Tensor:  # noqa: ANN401
        rows = tokens.rows(forward)[:, chosen_layers(self.layers, tokens.depth)].flatten(1, 2)
        weights = self._similarities(rows, maps, forward).clamp_min(0)
        return maps * torch.einsum("brk,brp->bkp", weights, rows)

    def _similarities(self, rows: Tensor, maps: Tensor, forward: ForwardPass) -> Tensor:
        """(B, R, K) similarity of attention rows (B, R, patches) with prediction maps (B, K, patches)."""
        distributions = as_distributions(maps, self.space, forward) if self.similarity == "kl" else maps
        return similarities(rows, distributions, self.similarity)


class AttentionRows(LayerTokens):
    """Keeps of each layer and head the row that the answer is read from, beside the tokens."""

    def __init__(self, roots: Sequence[torch.nn.Module], layers: Sequence[int] | None) -> None:
        super().__init__(roots, layers)
        self._attentions: list[Tensor] = []

    def update(self, record: AttentionRecord, layout: TokenLayout) -> None:
        """Take the next layer: one row where there is a class token, else all."""
        super().update(record, layout)
        attention = record.attention.detach()
        cls = layout.cls_index
        self._attentions.append(attention if cls is None else attention[:, :, cls : cls + 1].clone())

    def rows(self, forward: ForwardPass) -> Tensor:
        """(B, layers, heads, patches) attention to patches."""
        if forward.layout.cls_index is not None:
            rows = torch.stack(self._attentions, 1).squeeze(-2)
        else:
            start = forward.tokens_read()
            rows = torch.stack([torch.einsum("bi,bhij->bhj", start.to(a.dtype), a) for a in self._attentions], 1)
        return rows[..., forward.layout.num_prefix :]


def find_head(head: Head | None, forward: ForwardPass, tokens: LayerTokens) -> Head:
    """Function from tokens (B, M, D) to logits (B, M, classes), float32 at least: the given head or the model's own."""
    asked = tokens.head(forward) if head is None else partial(own_head, head, logits=forward.logits)

    def answer(read: Tensor) -> Tensor:
        logits = asked(read).detach()
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    return answer


def probabilities(logits: Tensor) -> Tensor:
    """Softmax over classes (..., classes); sigmoid of a single output."""
    return logits.softmax(-1) if logits.shape[-1] > 1 else logits.sigmoid()


def similarities(rows: Tensor, maps: Tensor, how: Similarity) -> Tensor:
    """Similarity (B, R, K) of attention rows (B, R, P) and maps (B, K, P); maps are distributions for "kl"."""
    if how == "cosine":
        rows, maps = (torch.nn.functional.normalize(x, dim=-1, eps=1e-30) for x in (rows, maps))
    if how != "kl":
        return torch.einsum("brp,bkp->brk", rows, maps)
    rows = normalize_rows(rows)
    entropy = torch.special.entr(rows).sum(-1, keepdim=True)
    cross = torch.einsum("brp,bkp->brk", rows, maps.clamp_min(torch.finfo(maps.dtype).tiny).log())
    return torch.exp(entropy + cross)


def as_distributions(maps: Tensor, space: Space, forward: ForwardPass) -> Tensor:
    """Maps (B, K, P) as distributions over patches: probabilities divided by their sum, a softmax of logits."""
    if space == "probability":
        return normalize_rows(maps)
    if forward.valid is not None:
        maps = maps.masked_fill(~forward.valid[:, None, forward.layout.num_prefix :], -torch.inf)
    return maps.softmax(-1)


def chosen_layers(layers: Layers, depth: int) -> list[int]:
    """Positions of the asked layers.

    Raises:
        ArgumentError: If one does not exist.
    """
    indices = check_layers(layers)
    for index in indices or ():
        if not -depth <= index < depth:
            raise ArgumentError(f"layers: no self-attention layer {index}; the explained layers are {depth}")
    return list(range(depth)) if indices is None else [index % depth for index in indices]
