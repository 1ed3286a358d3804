"""Sorting the attention that a forward call shows: which stream of layers owns the input, and what is in its way."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from xattn._layers import Layers, check_layers
from xattn.attention import AttentionRecord, AttentionTap
from xattn.errors import ArgumentError, UnsupportedModelError, XattnError
from xattn.layout import TokenLayout, find_image_layout, find_text_layout

ADD_BATCH = "expected a batch of images (B, C, H, W); add the batch dimension of a single image with x[None]"
_WORKS_EVERYWHERE = (
    "TokenGradCAM works where blocks have tokens on a grid, captum's Saliency and IntegratedGradients everywhere"
)


class Reducer(Protocol):
    """Takes the attention of one layer after the other, so that memory need not grow with depth."""

    def update(self, record: AttentionRecord, layout: TokenLayout) -> None:
        """Take one layer's record; it is not kept afterwards."""


class Gathering:
    """Sorts the records of a forward call: which stream owns the input, and what is in its way."""

    def __init__(self, inputs: Tensor, layers: Layers, layout: TokenLayout | None, reducer: Reducer | None) -> None:
        self.kept: list[AttentionRecord] = []
        self.pooling: Tensor | None = None
        self.valid: Tensor | None = None
        self._inputs = inputs
        self._layers = layers
        self._given = layout
        self._layout: TokenLayout | None = None
        self._reducer = reducer
        self._poolings: list[tuple[str, Tensor]] = []
        self._owner: AttentionRecord | None = None
        self._others: dict[str, AttentionRecord] = {}
        self._decoders: set[str] = set()
        self._unreadable: AttentionRecord | None = None

    def take(self, record: AttentionRecord) -> None:
        if record.kind in ("window", "channel"):
            self._unreadable = self._unreadable or record
        elif record.kind == "pooling":
            self._poolings.append((record.stream, record.attention.detach().mean(dim=(1, 2)).to(self._inputs.device)))
        elif record.kind == "cross":
            self._decoders.add(record.stream)
        elif record.kind == "self" and self._unreadable is None:
            self._take_self(record)

    def finish(self, tap: AttentionTap) -> TokenLayout:
        if self._unreadable is not None:
            over = "windows" if self._unreadable.kind == "window" else "channels, not tokens:"
            raise UnsupportedModelError(
                f"forward_func: attention in {self._unreadable.path!r} runs over {over} "
                f"{tuple(self._unreadable.attention.shape)}, so layers cannot be read as one chain over all tokens; "
                + _WORKS_EVERYWHERE
            )
        if self._layout is None or self._owner is None:
            raise self._nothing_owned(tap.depth)
        self._check_depth(tap.depth[self._owner.stream])
        if self._inputs.ndim == 4 and (times := tap.times(self._owner.stream)) > 1:
            raise UnsupportedModelError(
                f"forward_func: the layers of {self._owner.stream!r} read {times} images in one call (as with "
                "test-time augmentation), so they cannot be read as one chain; explain a call that runs them once"
            )
        self._refuse_second_owner(self._owner)
        own = [weights for stream, weights in self._poolings if stream == self._owner.stream]
        reads = (_over_tokens(weights, self._inputs.shape[0], self._layout) for weights in own)
        self.pooling = next((weights for weights in reads if weights is not None), None)
        return self._layout if self.pooling is None else replace(self._layout, pooling="map")

    def _nothing_owned(self, depth: Mapping[str, int]) -> XattnError:
        """Why no attention over the input's tokens was found."""
        shape, other = tuple(self._inputs.shape), next(iter(self._others.values()), None)
        if other is not None and other.attention.shape[0] == shape[0] and len(shape) == 4:
            self._owner = other
            self._check_tokens(other, self._given or self._find_layout(other))  # one of both has its reason to raise
        if other is not None and other.grid is not None and len(shape) == 3:
            return ArgumentError(f"inputs: got shape {shape}; {ADD_BATCH}")
        seen = f"; seen was {other.path!r} with {tuple(other.attention.shape)}" if other is not None else ""
        if self._layers != "all":
            seen += f"; asked for were layers={self._layers} of {dict(depth)}"
        return UnsupportedModelError(
            f"forward_func: no self-attention over the tokens of an input of shape {shape}{seen}; {_WORKS_EVERYWHERE}"
        )

    def _check_depth(self, depth: int) -> None:
        """An index that only another stream has is no reason to explain fewer layers than were asked for."""
        for index in check_layers(self._layers) or ():
            if not -depth <= index < depth:
                raise ArgumentError(f"layers: no self-attention layer {index}; the explained layers are {depth}")

    def _take_self(self, record: AttentionRecord) -> None:
        if self._owner is None and self._owns_input(record):
            self._owner = record
            self._layout = self._given or self._find_layout(record)
        if self._owner is None or self._layout is None or record.stream != self._owner.stream:
            self._others.setdefault(record.stream, record)
            return
        self._check_tokens(record, self._layout)
        record = self._at_home(record)
        if self.valid is None and record.valid_keys is not None:
            self.valid = _some_valid(record.valid_keys, self._layout)
        if self._reducer is None:
            self.kept.append(record)
        else:
            self._reducer.update(record, self._layout)

    def _at_home(self, record: AttentionRecord) -> AttentionRecord:
        """The record on the input's device, where all is accumulated; a model may be spread over several."""
        home, valid = self._inputs.device, record.valid_keys
        valid = valid if valid is None else valid.to(home)
        if torch.is_grad_enabled():  # a copy would not be what the score depends on
            return replace(record, valid_keys=valid)
        return replace(record, attention=record.attention.to(home), valid_keys=valid)

    def _owns_input(self, record: AttentionRecord) -> bool:
        """Images own the tokens that a convolution made, words the others; a given layout decides by its length."""
        batch, *_, tokens = record.attention.shape
        if batch != self._inputs.shape[0]:
            return False
        given = self._given is not None and self._given.num_tokens == tokens
        if self._inputs.ndim == 4:
            return record.grid is not None or given
        return (record.grid is None or given) and tokens == self._inputs.shape[1]

    def _refuse_second_owner(self, owner: AttentionRecord) -> None:
        """Later stages of a hierarchical model may have a stream of their own; so have decoders and text towers."""
        if self._inputs.ndim != 4 or self._given is not None:
            return
        self._refuse_reduced_keys(owner)
        tower = set() if owner.tower is None else set(owner.tower.modules())
        for stream, record in self._others.items():
            if stream not in self._decoders and (self._owns_input(record) or record.tower in tower):
                raise UnsupportedModelError(
                    f"forward_func: the image has tokens in {owner.stream!r} and other ones in {stream!r}: a "
                    f"hierarchical model or several models, which cannot be read as one chain; {_WORKS_EVERYWHERE}"
                )

    def _refuse_reduced_keys(self, owner: AttentionRecord) -> None:
        if owner.stream in self._decoders:
            raise UnsupportedModelError(
                f"forward_func: some layers of {owner.stream!r} attend to other tokens than their own (reduced keys, "
                f"another sequence), so they cannot be read as one chain; {_WORKS_EVERYWHERE}"
            )

    def _find_layout(self, record: AttentionRecord) -> TokenLayout:
        tokens = record.attention.shape[-1]
        self._refuse_hierarchy(record, record.first_keys)
        if self._inputs.ndim == 4:
            self._refuse_reduced_keys(record)
            height, width = self._inputs.shape[-2:]
            return find_image_layout(tokens, record.grid, record.tower, (height, width))
        has_cls = not self._inputs.is_floating_point()
        return find_text_layout(tokens, record.is_causal, has_cls, type(record.tower).__name__)

    def _check_tokens(self, record: AttentionRecord, layout: TokenLayout) -> None:
        tokens = record.attention.shape[-1]
        if self._given is not None and record is self._owner and tokens != layout.num_tokens:
            raise ArgumentError(
                f"layout: it has {layout.num_tokens} tokens, the attention {tokens}; given was {layout}"
            )
        self._refuse_hierarchy(record, layout.num_tokens)

    def _refuse_hierarchy(self, record: AttentionRecord, expected: int) -> None:
        tokens = record.attention.shape[-1]
        if tokens != expected:
            raise UnsupportedModelError(
                f"forward_func: {record.path!r} has {tokens} tokens where earlier layers have {expected}: a "
                f"hierarchical model, whose layers cannot be read as one chain; {_WORKS_EVERYWHERE}"
            )


def _some_valid(valid: Tensor, layout: TokenLayout) -> Tensor:
    """The mask (B, N), refused where it leaves nothing of a sample to explain."""
    empty = (~valid[:, layout.num_prefix :].any(-1)).nonzero().flatten().tolist()
    if empty:
        raise ArgumentError(
            f"attention_mask: expected at least one {'patch' if layout.is_image else 'word'} of each sample to take "
            f"part, got none of sample(s) {', '.join(map(str, empty))} of the batch"
        )
    return valid


def _over_tokens(weights: Tensor, batch: int, layout: TokenLayout) -> Tensor | None:
    """Pooling weights (B, N); those of a class token that joins after the layers (as in CaiT) less its own."""
    late = 0 if layout.num_prefix else weights.shape[-1] - layout.num_tokens
    if weights.shape[0] != batch or weights.shape[-1] - late != layout.num_tokens or not 0 <= late <= 1:
        return None
    return weights if not late else weights[:, 1:] / weights[:, 1:].sum(-1, keepdim=True)
