"""What every attribution method shares: checks, the forward call, chunks, targets and resolution."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, TypeVar, cast

import torch
from captum.attr import Attribution
from captum.log import log_usage
from torch import Tensor

from xattn._device import check_data
from xattn._layers import Layers, check_layers
from xattn.attributions._forward import ForwardPass, Reducer, Request, run_forwards
from xattn.attributions._resolution import Interpolation, Resolution, check_resolution, from_pixels, from_tokens
from xattn.attributions._targets import Target, check_target_length, slice_target
from xattn.errors import ArgumentError, ArgumentTypeError, UnsupportedModelError, XattnError
from xattn.layout import TokenLayout, check_layout

TensorOrTuple = TypeVar("TensorOrTuple", Tensor, tuple[Tensor, ...])


class TransformerAttribution(Attribution, ABC):  # type: ignore[misc]  # captum is untyped here
    """Base of all methods: a concrete class is metadata and `_relevance`.

    Args:
        forward_func: A module, or any callable that ends in one; it returns logits (B, classes), an output with
            `.logits`, or, for methods that do not ask for a class, anything.
        layout: Roles of the tokens; None finds them from the model and the input.

    Attributes:
        name: Key in `methods` and on the command line.
        family: Which idea it belongs to.
        summary: One line for tables.
        paper: Where it comes from.
        is_class_specific: Whether the map depends on `target`.
        needs_gradient: Whether a backward pass runs.
        forwards: Calls of the model for one batch, with the default options.
        backwards: Backward passes from its answer, likewise.
        needs_class_token: Whether models without one are refused.
        is_control: Whether it is a baseline that ignores what the model did.
        is_signed: Whether relevance can be negative (evidence against); otherwise its range is [0, inf).
        level: "token" if `_relevance` is (B, N), "pixel" if it has the inputs' shape.
        shares_forward: Whether the forward call may serve other methods as well, as in `explain`.
    """

    name: ClassVar[str]
    family: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    is_class_specific: bool = False
    needs_gradient: ClassVar[bool] = False
    forwards: ClassVar[int] = 1
    backwards: ClassVar[int] = 0
    needs_class_token: ClassVar[bool] = False
    is_control: ClassVar[bool] = False
    is_signed: bool = False
    level: ClassVar[Literal["token", "pixel"]] = "token"
    shares_forward: ClassVar[bool] = True

    def __init__(
        self, forward_func: Callable[..., Any], *, layers: Layers = "all", layout: TokenLayout | None = None
    ) -> None:
        if not callable(forward_func):
            raise ArgumentTypeError(f"forward_func: expected a module or a callable, got {type(forward_func).__name__}")
        check_layout(layout)
        check_layers(layers)
        super().__init__(forward_func)
        self.layers = layers
        self.layout = layout

    @log_usage()  # type: ignore[untyped-decorator]
    def attribute(
        self,
        inputs: TensorOrTuple,
        target: Target = None,
        additional_forward_args: Any = None,  # noqa: ANN401
        *,
        resolution: Resolution = "input",
        interpolation: Interpolation = "nearest",
        internal_batch_size: int | None = None,
    ) -> TensorOrTuple:
        """Relevance of the inputs for each sample.

        Args:
            inputs: (B, C, H, W) images, (B, N) token ids or (B, N, D) embeddings; a tuple of one gives a tuple.
            target: As in captum: an int, a tuple for several output dimensions, a list or a tensor (B,). None is the
                predicted class. Negative ones do not count from the end: they are refused. Ignored by methods that are
                not class-specific.
            additional_forward_args: Further positional arguments of the model (one, or a tuple); tensors whose first
                dimension is the batch are cut along with it.
            resolution: "input" gives the inputs' shape, where a patch's value is spread over its pixels and channels
                (so sums are not preserved); "patch" (B, h, w), or (B, words) behind the class token; "token" (B, N) in
                model order: special tokens have what the method gives them, 0 where it leaves them out.
            interpolation: How a patch's value is spread: "nearest" or "bilinear".
            internal_batch_size: Most samples per forward call; None takes all at once.

        Returns:
            Relevance on the inputs' device, in float32 or the inputs' own type where that is wider (half types have too
            few digits to rank the values of a map).

        Raises:
            ArgumentError: An argument has a wrong value, or the model refuses the input.
            ArgumentTypeError: An argument has a wrong type.
            CaptureError: Attention could not be read.
            LayoutError: The tokens' roles could not be found.
            UnsupportedModelError: The method does not apply to this model.
        """
        check_resolution(resolution, interpolation)
        tensor, is_tuple = check_inputs(inputs)
        maps = []
        with torch.inference_mode(False), torch.no_grad():
            for chunk in _chunks(tensor, target, additional_forward_args, internal_batch_size):
                reducer = self._reducer()
                forward = self._forward(*chunk, reducer)
                relevance = self._checked(self._relevance(forward, reducer), forward)
                maps.append(self._shown_at(relevance, forward, resolution, interpolation))
        result = torch.cat(maps)
        return cast("TensorOrTuple", (result,) if is_tuple else result)

    @abstractmethod
    def _relevance(self, forward: ForwardPass, reducer: Any) -> Tensor:  # noqa: ANN401
        """Relevance of one batch: (B, N) of tokens, or the inputs' shape where `level` is "pixel".

        Args:
            forward: What the forward call left behind.
            reducer: What `_reducer` returned for this call, after it took the layers' records.
        """

    def _reducer(self) -> Reducer | None:
        """A fresh object that takes the layers one by one; None keeps them in `ForwardPass.records`."""
        return None

    def _checked(self, relevance: object, forward: ForwardPass) -> Tensor:
        """What `_relevance` returned, refused by the method's name if it is not what it has to return."""
        batch, layout = forward.inputs.shape[0], forward.layout
        shape = (batch, layout.num_tokens) if self.level == "token" else None
        if not isinstance(relevance, Tensor) or (shape is not None and relevance.shape != shape):
            got = tuple(relevance.shape) if isinstance(relevance, Tensor) else type(relevance).__name__
            expected = f"a tensor {shape} of tokens" if shape else "a tensor of the inputs' shape"
            raise ArgumentTypeError(
                f"{type(self).__name__}._relevance: expected {expected}, got {got}; `forward.layout.tokens(patches)` "
                "makes tokens of patches"
            )
        return relevance.detach()

    def _shown_at(
        self, relevance: Tensor, forward: ForwardPass, resolution: Resolution, interpolation: Interpolation
    ) -> Tensor:
        """Relevance at the resolution that was asked for; exactly zero on padding."""
        if self.level == "pixel":
            return from_pixels(relevance, forward.layout, resolution)
        if forward.valid is not None:
            relevance = relevance * forward.valid
        return from_tokens(relevance, forward.layout, forward.inputs, resolution, interpolation)

    def _request(self, reducer: Reducer | None) -> Request:
        """What the forward call has to keep."""
        return Request(self.layers, self.layout, reducer)

    def _forward(
        self, inputs: Tensor, target: Target, additional_args: tuple[Any, ...], reducer: Reducer | None
    ) -> ForwardPass:
        """One forward call of a checked batch; the reducer, if any, takes the layers."""
        (forward,) = run_forwards(
            self.forward_func,
            inputs,
            additional_args,
            [self._request(reducer)],
            target=target,
            needs_gradient=self.needs_gradient,
        )
        if isinstance(forward, XattnError):
            raise forward
        self._check(forward)
        return forward

    def _check(self, forward: ForwardPass) -> None:
        """Refuse what the method cannot explain, before any work."""
        if self.needs_class_token and forward.layout.cls_index is None:
            raise UnsupportedModelError(
                f"forward_func: {type(self).__name__} needs a class token, this model has {forward.layout}; "
                "TokenRank and NBounceAttention work without one"
            )
        if self.is_class_specific:
            _ = forward.target_index

    def _differentiated(self, forward: ForwardPass, reducer: Any) -> list[Tensor]:  # noqa: ANN401
        """Tensors by which `_relevance` will differentiate the score, so that methods can share a backward pass."""
        return [record.attention for record in forward.records] if self.needs_gradient else []


def check_inputs(inputs: object) -> tuple[Tensor, bool]:
    """The one input tensor, and whether it came in a tuple.

    Raises:
        ArgumentError: For several tensors, an empty batch, a wrong rank, NaN or infinity.
        ArgumentTypeError: If it is no tensor, or images are not floating point.
    """
    is_tuple = isinstance(inputs, tuple)
    parts = inputs if isinstance(inputs, tuple) else (inputs,)
    if len(parts) != 1:
        raise ArgumentError(
            f"inputs: expected one tensor, got {len(parts)}; pass the others as additional_forward_args"
        )
    tensor = parts[0]
    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(f"inputs: expected a tensor, got {type(tensor).__name__}")
    expected = "(B, C, H, W) images, (B, N) token ids or (B, N, D) embeddings"
    if tensor.ndim not in (2, 3, 4):
        raise ArgumentError(f"inputs: expected {expected}, got shape {tuple(tensor.shape)}")
    if tensor.is_floating_point() == (tensor.ndim == 2) or tensor.is_complex() or tensor.dtype == torch.bool:
        kind = "integers" if tensor.ndim == 2 else "floating point numbers"
        raise ArgumentTypeError(
            f"inputs: expected {kind} for shape {tuple(tensor.shape)} ({expected}), got {tensor.dtype}"
        )
    check_data("inputs", tensor)
    if tensor.numel() == 0:
        raise ArgumentError(f"inputs: expected at least one sample, got shape {tuple(tensor.shape)}")
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise ArgumentError("inputs: expected finite numbers, got NaN or infinity")
    return tensor, is_tuple


def as_args(additional_forward_args: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """The additional_forward_args of captum (None, one, or a tuple) as a tuple."""
    if additional_forward_args is None:
        return ()
    return additional_forward_args if isinstance(additional_forward_args, tuple) else (additional_forward_args,)


def _chunks(
    inputs: Tensor,
    target: Target,
    additional_forward_args: Any,  # noqa: ANN401
    size: int | None,
) -> Iterator[tuple[Tensor, Target, tuple[Any, ...]]]:
    """Inputs, targets and further arguments in batches of at most `size`."""
    batch = inputs.shape[0]
    check_target_length(target, batch)
    if size is not None and (not isinstance(size, int) or size < 1):
        raise ArgumentError(f"internal_batch_size: expected a positive integer or None, got {size!r}")
    args = as_args(additional_forward_args)
    size = size or batch
    for start in range(0, batch, size):
        stop = min(start + size, batch)
        cut = tuple(a[start:stop] if isinstance(a, Tensor) and a.ndim and a.shape[0] == batch else a for a in args)
        yield inputs[start:stop], slice_target(target, start, stop), cut
