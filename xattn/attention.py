"""Reading attention matrices out of any forward function, without touching the model.

Inside an `AttentionTap`, `scaled_dot_product_attention` is computed in the open and eager softmaxes are seen, so
every attention matrix passes through the tap while it stays part of the autograd graph.
"""

import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Literal, Self

import torch
from torch import Tensor, nn

from xattn._intercept import AttentionMode
from xattn._layers import Layers, LayerSelection
from xattn._trace import ModuleTrace, is_numbered
from xattn.errors import CaptureError

Kind = Literal["self", "cross", "pooling", "window", "channel"]
Consumer = Callable[["AttentionRecord"], "AttentionRecord | None"]

_CROSS = re.compile(r"cross|enc_?dec|encoder_attn", re.IGNORECASE)


@dataclass(frozen=True)
class AttentionRecord:
    """One attention matrix and where it came from.

    Attributes:
        attention: (batch, heads, queries, keys); `attention[b, h, i, j]` is what token i pays to token j.
            float32 or float64, upstream of the output in its autograd graph.
        path: Path of the attention module, e.g. "blocks.3.attn".
        stream: Path of the stack of layers it belongs to, e.g. "blocks" or "vision_model.encoder.layers";
            for pooling, that it reads.
        kind: "self", "cross" (keys of another sequence), "pooling" (fewer, learned queries), "window", or "channel"
            (pairs of channels, not of tokens).
        layer: Position among the attentions of its kind in its stream.
        first_keys: Number of keys in layer 0; another than its own in hierarchical models.
        grid: (h, w) of the convolution that made the tokens of this stream, None if there was none.
        tower: The smallest module that contains both that convolution and this attention.
        causal: Whether the model asked for causal attention by name; see `is_causal` for masks.
        valid_keys: (batch, keys) bool, false for padding; None without a mask.
    """

    attention: Tensor = field(repr=False)
    path: str
    stream: str
    kind: Kind
    layer: int
    first_keys: int
    grid: tuple[int, int] | None = None
    tower: nn.Module | None = field(default=None, repr=False, compare=False)
    causal: bool = False
    valid_keys: Tensor | None = field(default=None, repr=False, compare=False)

    @property
    def is_causal(self) -> bool:
        """Whether no token pays attention to a later one; models with padding hide later tokens by a mask."""
        return self.causal or (self.attention.shape[-1] > 1 and not bool(self.attention.triu(1).any()))


class AttentionTap:
    """Context manager that records the attention matrices of one forward call.

    Works for modules and for any callable around them; nothing is stored on the model, nothing has to be undone.

        with AttentionTap(layers=-1) as tap:
            logits = model(images)
        tap.maps[0]  # (batch, heads, tokens, tokens)

    `records` and `maps` can be read inside the block as well, as far as the forward has come; whether all attention was
    seen is checked at exit.

    Args:
        layers: Which self-attentions of each stream to keep: "all", an index (negative from the end), or several.
        consumer: Called with each kept record; what it returns is kept in its place, None keeps nothing. Reduce, or
            move to another device, as the forward goes on. Records asked for from the end arrive when it is over.
        batch_size: Batch of the inputs, by which attention over windows is told from attention over images where no
            module around the attention receives a tensor.
        require_grad: Give matrices a gradient even where no parameter has one (frozen models).
        roots: Modules that paths start from, where their inner modules are called one by one.
        before: Called with stream and layer of each self-attention before it is recorded; may switch gradients on.

    Attributes:
        records: The kept records in order of execution.
        maps: Their matrices.
        depth: Number of self-attentions of each stream, kept or not.

    Raises:
        CaptureError: At exit, if no attention was seen or an attention module ran unseen.
        ArgumentError: At exit, if a layer index does not exist.
    """

    def __init__(
        self,
        layers: Layers = "all",
        *,
        consumer: Consumer | None = None,
        batch_size: int | None = None,
        require_grad: bool = False,
        roots: Sequence[nn.Module] = (),
        before: Callable[[str, int], object] | None = None,
    ) -> None:
        self._records: list[AttentionRecord] | None = None
        self._selection = LayerSelection(layers, consumer)
        self._batch_size = batch_size
        self._require_grad = require_grad
        self._before = before
        self._trace = ModuleTrace(roots)
        self._resources = ExitStack()
        self._origins: dict[str, tuple[tuple[int, int] | None, nn.Module | None]] = {}
        self._convolutions: dict[str, str] = {}
        self._keys: dict[tuple[str, Kind], list[int]] = {}
        self._seen: set[str] = set()
        self._latest: str | None = None

    @property
    def records(self) -> list[AttentionRecord]:
        """The kept records in order of execution."""
        return self._selection.so_far() if self._records is None else self._records

    @property
    def maps(self) -> list[Tensor]:
        """The kept matrices, each (batch, heads, queries, keys)."""
        return [record.attention for record in self.records]

    @property
    def depth(self) -> dict[str, int]:
        """Number of self-attentions of each stream, kept or not."""
        return {stream: len(keys) for (stream, kind), keys in self._keys.items() if kind == "self"}

    def times(self, stream: str) -> int:
        """How often the convolution ran that made the tokens of a stream; 0 if none did."""
        return self._trace.convolutions[self._convolutions[stream]]

    def __enter__(self) -> Self:
        with ExitStack() as resources:
            if "torch._dynamo" in sys.modules:  # importing it is slow, and before that nothing can be compiled
                resources.enter_context(_compiled_code_aside())
            resources.enter_context(self._trace)
            resources.enter_context(AttentionMode(self._take, self._inside_attention))
            self._resources = resources.pop_all()
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: object) -> None:
        ran = dict(self._trace.ran)
        self._resources.close()
        self._records = []
        if exc_type is None:
            self._check_complete(ran)
            self._records = self._selection.finish()

    def _inside_attention(self) -> bool:
        return bool(self._trace.attention_modules())

    def _take(self, attention: Tensor, valid_keys: Tensor | None, causal: bool) -> Tensor:
        """Record one matrix; returns the matrix that the model goes on with, computed from the recorded one."""
        running = self._trace.attention_modules()
        self._seen.update(running)
        path = running[-1] if running else self._trace.path
        batch = self._trace.batch_size() or self._batch_size or attention.shape[0]
        matrix, valid_keys = _split_heads(attention, valid_keys, self._trace.own_batch(attention.shape[-1]) or batch)
        kind = self._kind(matrix, path, batch)
        stream = self._stream_of(kind, path)
        grid, tower = self._origin(stream, path)
        keys = self._keys.setdefault((stream, kind), [])
        keys.append(matrix.shape[-1])
        if self._before is not None and kind == "self":
            self._before(stream, len(keys) - 1)
        if self._require_grad and not matrix.requires_grad and torch.is_grad_enabled():
            matrix = matrix.requires_grad_()
        self._selection.add(
            AttentionRecord(matrix, path, stream, kind, len(keys) - 1, keys[0], grid, tower, causal, valid_keys)
        )
        return matrix.reshape(attention.shape)

    def _kind(self, attention: Tensor, path: str, batch: int) -> Kind:
        queries, keys = attention.shape[-2:]
        if self._trace.is_over_channels():
            return "channel"
        if attention.ndim > 4 or (attention.shape[0] > batch and attention.shape[0] % batch == 0):
            return "window"
        if queries < keys and self._trace.is_pooling():
            return "pooling"
        if self._trace.is_cross() or _CROSS.search(path):
            return "cross"
        if queries == keys:
            return "self"
        return "pooling" if queries == 1 else "cross"

    def _stream_of(self, kind: Kind, path: str) -> str:
        """Pooling reads the layers that ran before it; any other attention stands in a stack of its own kind."""
        if kind != "pooling" or self._latest is None:
            self._latest = _stream(path)
        return self._latest

    def _origin(self, stream: str, path: str) -> tuple[tuple[int, int] | None, nn.Module | None]:
        """Grid and tower of a stream, noted when its first attention runs."""
        if stream not in self._origins:
            convolution, grid = self._trace.take_convolution() or (path, None)
            self._convolutions[stream] = convolution
            self._origins[stream] = (grid, self._trace.common_module(convolution, path))
        return self._origins[stream]

    def _check_complete(self, ran: dict[str, nn.Module]) -> None:
        unseen = [path for path in ran if path not in self._seen]
        if unseen:
            kinds = sorted({type(ran[path]).__name__ for path in unseen})
            raise CaptureError(
                f"attention ran unseen in {len(unseen)} module(s), first {unseen[0]!r} ({', '.join(kinds)}). "
                "It probably runs in a kernel of its own (xformers, flash-attn, flex attention) or is not softmax "
                'attention. Switch the model to torch\'s attention: attn_implementation="sdpa" or "eager" in '
                "transformers, the module's fused or memory-efficient flag elsewhere."
            )
        if not self._seen and not self._keys:
            raise CaptureError(
                "no attention was seen: neither scaled_dot_product_attention nor a softmax inside an attention module "
                "ran. Expected a transformer; a traced or scripted model must be replaced by the original module. "
                "Networks without attention are explained by captum's own methods (GradCAM, Saliency)."
            )


@contextmanager
def _compiled_code_aside() -> Iterator[None]:
    """Compiled modules run as they were written; torch's warning that they call global hooks twice is none of ours."""
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
        yield


def _split_heads(attention: Tensor, valid_keys: Tensor | None, batch: int) -> tuple[Tensor, Tensor | None]:
    """(batch, heads, queries, keys) and (batch, keys) also where a model folds heads into the batch or has none."""
    if attention.ndim >= 4:
        return attention, valid_keys
    heads = attention.shape[0] // batch if attention.shape[0] % batch == 0 else 1
    if valid_keys is not None:
        valid_keys = valid_keys.unflatten(0, (-1, heads)).any(1)
    return attention.unflatten(0, (-1, heads)), valid_keys


def _stream(path: str) -> str:
    """The path before the first numbered part: "blocks.3.attn" gives "blocks"."""
    parts = path.split(".")
    first = next((i for i, part in enumerate(parts) if is_numbered(part)), max(len(parts) - 1, 0))
    return ".".join(parts[:first])
