"""One forward call with its attention, layout and scores, for one method or for several at once."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from xattn._layers import Layers, LayerSelection
from xattn._state import find_modules, first_tensor_device, outside_inference, undisturbed
from xattn.attention import AttentionRecord, AttentionTap
from xattn.attributions._forward_pass import ForwardPass as ForwardPass
from xattn.attributions._gathering import ADD_BATCH, Gathering
from xattn.attributions._gathering import Reducer as Reducer
from xattn.attributions._late_graph import LateGraph
from xattn.attributions._targets import Target, logits_of
from xattn.errors import ArgumentError, XattnError
from xattn.layout import TokenLayout
from xattn.zero_shot import advising_zero_shot

_DTYPE_COMPLAINT = re.compile(r"should be the same|same dtype|expected scalar type", re.IGNORECASE)
_ID_COMPLAINT = re.compile(r"index out of range in self|device-side assert", re.IGNORECASE)
_SIZE_COMPLAINT = re.compile(r"size|height|width|shape|channels|divisible|unpack|dimension", re.IGNORECASE)


@dataclass(frozen=True)
class Request:
    """What one method wants of a forward call.

    Attributes:
        layers: Which self-attentions of the stream that owns the input.
        layout: Roles of the tokens; None finds them.
        reducer: Takes each record in place of keeping it.
        around: Entered around the call, outside the tap, so that a function mode sees the attention's own products.
            It begins anew each time it is entered: the call may have to be repeated.
        graph_from: First self-attention layer (negative from the end) whose gradient is asked for, so that what lies
            before it needs no graph; None for a graph from the input on.
    """

    layers: Layers = "all"
    layout: TokenLayout | None = None
    reducer: Reducer | None = None
    around: AbstractContextManager[object] | None = None
    graph_from: int | None = None


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
        layers: As in `Request`, as the next three.
        layout: Roles of the tokens; None finds them.
        reducer: Takes each record in place of keeping it.
        needs_gradient: Keep the graph, so that scores can be differentiated by the matrices.
        around: Entered around the call.

    Raises:
        CaptureError: If attention could not be read.
        LayoutError: If the tokens' roles are unknown.
        UnsupportedModelError: For windowed or hierarchical models.
        ArgumentError: If the model refuses the input's size, or a layer does not exist.
    """
    request = Request(layers, layout, reducer, around)
    (found,) = run_forwards(
        forward_func, inputs, additional_args, [request], target=target, needs_gradient=needs_gradient
    )
    if isinstance(found, XattnError):
        raise found
    return found


def run_forwards(
    forward_func: Callable[..., Any],
    inputs: Tensor,
    additional_args: tuple[Any, ...],
    requests: Sequence[Request],
    *,
    target: Target = None,
    needs_gradient: bool = False,
) -> list[ForwardPass | XattnError]:
    """One call of the model for several requests; what is wrong with one of them stands in its place.

    Raises:
        XattnError: What is wrong for all of them, as in `run_forward`.
    """
    layers = [request.graph_from for request in requests if request.graph_from is not None]
    roots = find_modules(forward_func)
    late = LateGraph(roots, layers) if needs_gradient and len(layers) == len(requests) else None
    call = partial(_run, forward_func, inputs, additional_args, requests, target, needs_gradient, roots)
    found, depth = call(late)
    if late is not None and not late.is_right(depth):
        found, _ = call(None)
    return found


def _run(
    forward_func: Callable[..., Any],
    inputs: Tensor,
    additional_args: tuple[Any, ...],
    requests: Sequence[Request],
    target: Target,
    needs_gradient: bool,
    roots: Sequence[nn.Module],
    late: LateGraph | None,
) -> tuple[list[ForwardPass | XattnError], dict[str, int]]:
    """One call, and how many layers each stream had."""
    selections = [_Selection(request, inputs) for request in requests]

    def take(record: AttentionRecord) -> None:
        for selection in selections:
            selection.take(record)
        if all(selection.error is not None for selection in selections):
            raise selections[0].error  # type: ignore[misc]  # not None: just seen

    with _gradient(needs_gradient and late is None), undisturbed(forward_func):
        _check_device(forward_func, inputs)
        inputs, *others = outside_inference((inputs, *additional_args))
        args = tuple(others)
        own = inputs.clone()  # a model may work in place
        with ExitStack() as contexts:
            for request in requests:
                contexts.enter_context(request.around or nullcontext())
            with (
                AttentionTap(
                    consumer=take,
                    batch_size=inputs.shape[0],
                    require_grad=needs_gradient,
                    roots=roots,
                    before=None if late is None else late.before,
                ) as tap,
                advising_zero_shot(forward_func, args),
            ):
                output = _call(forward_func, own, args)
                logits = logits_of(output)
            depth = tap.depth
            layouts = [selection.finish(tap) for selection in selections]
    del tap, take
    if logits is not None and not bool((~logits.isnan()).all()):
        raise ArgumentError("forward_func: expected numbers as its output, got NaN; its weights or inputs overflow")
    passes = [
        found
        if isinstance(found, XattnError)
        else ForwardPass(inputs, args, target, found, own.kept, own.pooling, own.valid, logits)
        for found, own in zip(layouts, (selection.gathering for selection in selections), strict=True)
    ]
    return passes, depth


class _Selection:
    """The records that one request asked for, and what is wrong with it."""

    def __init__(self, request: Request, inputs: Tensor) -> None:
        self.gathering = Gathering(inputs, request.layers, request.layout, request.reducer)
        self.error: XattnError | None = None
        self._layers = LayerSelection(request.layers, self.gathering.take)

    def take(self, record: AttentionRecord) -> None:
        if self.error is None:
            try:
                self._layers.add(record)
            except XattnError as error:
                self.error = error

    def finish(self, tap: AttentionTap) -> TokenLayout | XattnError:
        try:
            if self.error is not None:
                return self.error
            self._layers.finish()
            return self.gathering.finish(tap)
        except XattnError as error:
            return error


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
    except (AssertionError, ValueError, RuntimeError, IndexError) as error:
        check_types(inputs, error)
        refused = _refused(inputs, args, str(error))
        if refused is None:
            raise
        raise ArgumentError(f"{refused}: {error}") from error


def check_types(inputs: Tensor, error: Exception) -> None:
    """Say so if a model failed because its type is not that of the inputs.

    Raises:
        ArgumentError: If it did.
    """
    if _DTYPE_COMPLAINT.search(str(error)):
        raise ArgumentError(
            f"inputs: they are {inputs.dtype}, and the model computes in another type: {error}; convert one of them"
        ) from error


def _refused(inputs: Tensor, args: tuple[Any, ...], complaint: str) -> str | None:
    """Which argument the model refused, as far as its complaint tells."""
    shape = tuple(inputs.shape)
    if inputs.ndim == 2 and _ID_COMPLAINT.search(complaint):
        return (
            f"inputs: expected token ids within the model's vocabulary and no more than it has positions, got ids "
            f"{_range(inputs)} of shape {shape}"
        )
    if not _SIZE_COMPLAINT.search(complaint):
        return None
    if inputs.ndim == 4:
        return f"inputs: the model refused images of shape {shape}"
    if inputs.ndim == 3:
        is_image = shape[0] in (1, 3, 4)
        return f"inputs: the model refused shape {shape}; if this is an image: {ADD_BATCH}" if is_image else None
    others = [tuple(arg.shape) for arg in args if isinstance(arg, Tensor)]
    if others and others[0] != shape:
        return f"additional_forward_args: expected a mask of the token ids' shape {shape}, got {others[0]}"
    return f"inputs: the model refused token ids of shape {shape}"


def _range(ids: Tensor) -> str:
    """Smallest and largest id; unknown where a failed check has stopped the device."""
    try:
        return f"{int(ids.min())} to {int(ids.max())}"
    except RuntimeError:
        return "unknown"
