"""One forward call with its attention, layout and scores: what every method works on."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from xattn._layers import Layers
from xattn._state import find_modules, first_tensor_device, undisturbed
from xattn.attention import AttentionRecord, AttentionTap
from xattn.attributions._gathering import ADD_BATCH, Gathering
from xattn.attributions._gathering import Reducer as Reducer
from xattn.attributions._targets import Target, logits_of, resolve_target, scores
from xattn.errors import ArgumentError, XattnError
from xattn.layout import TokenLayout

_DTYPE_COMPLAINT = re.compile(r"should be the same|same dtype|expected scalar type", re.IGNORECASE)
_SIZE_COMPLAINT = re.compile(r"size|height|width|shape|channels|divisible|unpack|dimension", re.IGNORECASE)


@dataclass
class ForwardPass:
    """What one forward call on a batch left behind.

    Attributes:
        inputs: The explained tensor (B, ...).
        additional_args: The other arguments of the forward function.
        target: As the caller gave it, for this batch.
        layout: Roles of the N tokens.
        records: Kept self-attentions of the stream that owns the input, in order; empty with a reducer.
        pooling: (B, N) weights with which attention pooling read the tokens, None without.
        valid: (B, N) bool, false for padding; None without a mask.
        logits: The model's logits in the autograd graph, None if it returns none.
    """

    inputs: Tensor
    additional_args: tuple[Any, ...]
    target: Target
    layout: TokenLayout
    records: list[AttentionRecord]
    pooling: Tensor | None
    valid: Tensor | None
    logits: Tensor | None
    _index: Tensor | None = field(default=None, repr=False)

    @property
    def target_index(self) -> Tensor:
        """(B, D) resolved target; the predicted class where the caller gave None.

        Raises:
            ArgumentError: If the model returned no logits, or the target does not fit them.
        """
        if self._index is None:
            if self.logits is None:
                raise ArgumentError(
                    "forward_func: expected logits to choose a target from, got an output without .logits; "
                    "wrap the model so that it returns a tensor (B, classes)"
                )
            self._index = resolve_target(self.logits, self.target)
        return self._index

    def score(self) -> Tensor:
        """(B,) value of each sample's target, in the autograd graph."""
        index = self.target_index
        assert self.logits is not None  # target_index raised otherwise
        with torch.enable_grad():
            return scores(self.logits, index)

    def gradients(self, tensors: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Gradient of each sample's score by tensors of the graph; None where the score does not depend on one."""
        score = self.score()
        return torch.autograd.grad(score, tensors, torch.ones_like(score), allow_unused=True)

    def patch_mean(self, values: Tensor, dim: int) -> Tensor:
        """Mean over the patches (words) along `dim` of (B, ...), which is kept; padding does not count."""
        if self.valid is None:
            return values.mean(dim, keepdim=True)
        shape = [1] * values.ndim
        shape[0], shape[dim] = values.shape[0], values.shape[dim]
        valid = self.valid[:, self.layout.num_prefix :].reshape(shape)
        return (values * valid).sum(dim, keepdim=True) / valid.sum(dim, keepdim=True)

    def tokens_read(self) -> Tensor:
        """(B, N) distribution of the tokens that the answer is read from.

        The weights of attention pooling where there is one, uniform over the valid patches or words where the model
        averages them, else the class token, else the last valid token of a causal model, else uniform.
        """
        batch, layout = self.inputs.shape[0], self.layout
        start = torch.zeros(batch, layout.num_tokens, device=self.inputs.device)
        if self.pooling is not None:
            start = self.pooling
        elif layout.cls_index is not None and layout.pooling != "avg":
            start[:, layout.cls_index] = 1.0
        elif layout.pooling == "last":
            positions = torch.arange(layout.num_tokens, device=start.device)
            last = positions.expand(batch, -1) if self.valid is None else positions * self.valid
            start.scatter_(1, last.amax(1, keepdim=True), 1.0)
        else:
            start[:, layout.num_prefix :] = 1.0
            start = start if self.valid is None else start * self.valid
            start = start / start.sum(-1, keepdim=True)
        return start


def run_forward(
    forward_func: Callable[..., Any],
    inputs: Tensor,
    additional_args: tuple[Any, ...] = (),
    *,
    target: Target = None,
    layers: Layers = "all",
    layout: TokenLayout | None = None,
    reducer: Reducer | None = None,
    needs_gradient: bool = False,
    around: AbstractContextManager[object] | None = None,
) -> ForwardPass:
    """Call the model once on a batch, in evaluation mode, and gather its attention.

    Args:
        forward_func: Module or callable.
        inputs: (B, C, H, W) images, (B, N) token ids or (B, N, D) embeddings.
        additional_args: Further positional arguments of the call.
        target: Kept for `ForwardPass.target_index`.
        layers: Which self-attentions of the stream that owns the input.
        layout: Roles of the tokens; None finds them.
        reducer: Takes each record in place of keeping it.
        needs_gradient: Keep the graph, so that scores can be differentiated by the matrices.
        around: Entered around the call, outside the tap, so that a function mode sees the attention's own products.

    Raises:
        CaptureError: If attention could not be read.
        LayoutError: If the tokens' roles are unknown.
        UnsupportedModelError: For windowed or hierarchical models.
        ArgumentError: If the model refuses the input's size, or a layer does not exist.
    """
    gathering = Gathering(inputs, layers, layout, reducer)
    with _gradient(needs_gradient), undisturbed(forward_func):
        _check_device(forward_func, inputs)
        if inputs.is_inference():
            inputs = inputs.clone()
        args = tuple(a.clone() if isinstance(a, Tensor) and a.is_inference() else a for a in additional_args)
        with (
            around or nullcontext(),
            AttentionTap(
                layers,
                consumer=gathering.take,
                batch_size=inputs.shape[0],
                require_grad=needs_gradient,
                roots=find_modules(forward_func),
            ) as tap,
        ):
            output = _call(forward_func, inputs, args)
    found = gathering.finish(tap.depth)
    del tap
    return ForwardPass(
        inputs, args, target, found, gathering.kept, gathering.pooling, gathering.valid, logits_of(output)
    )


@contextmanager
def _gradient(wanted: bool) -> Iterator[None]:
    with torch.inference_mode(False), torch.set_grad_enabled(wanted):
        yield


def _check_device(forward_func: Callable[..., Any], inputs: Tensor) -> None:
    device = first_tensor_device(forward_func)
    if device is not None and device != inputs.device:
        raise ArgumentError(f"inputs: they are on {inputs.device}, the model on {device}; move one of them")


def _call(forward_func: Callable[..., Any], inputs: Tensor, args: tuple[Any, ...]) -> Any:  # noqa: ANN401
    try:
        return forward_func(inputs, *args)
    except XattnError:
        raise
    except (AssertionError, ValueError, RuntimeError) as error:
        if _DTYPE_COMPLAINT.search(str(error)):
            raise ArgumentError(
                f"inputs: they are {inputs.dtype}, and the model computes in another type: {error}; convert one of them"
            ) from error
        image_like = inputs.ndim == 3 and inputs.is_floating_point() and inputs.shape[0] in (1, 3, 4)
        if image_like and _SIZE_COMPLAINT.search(str(error)):
            raise ArgumentError(
                f"inputs: the model refused shape {tuple(inputs.shape)}: {error}. If this is an image: {ADD_BATCH}"
            ) from error
        if inputs.ndim == 4 and _SIZE_COMPLAINT.search(str(error)):
            raise ArgumentError(f"inputs: the model refused images of shape {tuple(inputs.shape)}: {error}") from error
        raise
