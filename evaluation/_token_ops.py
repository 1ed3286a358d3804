"""Taking tokens out of a running transformer: out of the sequence, or out of the keys of its attention."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from xattn._intercept import _MHA, _SOFTMAX, _open_mha
from xattn._sdpa import explicit_attention
from xattn._trace import ModuleTrace
from xattn.errors import UnsupportedModelError

_SDPA_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


@contextmanager
def only_tokens(blocks: Sequence[str], keep: Tensor, num_tokens: int, roots: Sequence[nn.Module]) -> Iterator[None]:
    """Within the context, the first block receives only the tokens `keep` of its sequence.

    Nothing is registered on the model: a global hook, filtered by thread and path, hands the block its shorter input.

    Args:
        blocks: Paths that may be the block, outermost first; it is the first to be called with tokens.
        keep: (rows, kept) positions.
        num_tokens: Length of the whole sequence.
        roots: Modules that the paths start from.

    Raises:
        UnsupportedModelError: At exit, if none of them was called with tokens (batch, tokens, width) first.
    """
    done: list[str] = []
    thread = threading.get_ident()

    def shorten(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if done or threading.get_ident() != thread or trace.path not in blocks:
            return None
        tokens = args[0] if args else None
        if not isinstance(tokens, Tensor) or tokens.ndim != 3 or tokens.shape[:2] != (len(keep), num_tokens):
            return None
        done.append(trace.path)
        index = keep.unsqueeze(2).expand(-1, -1, tokens.shape[2])
        return (tokens.gather(1, index), *args[1:])

    with ModuleTrace(roots) as trace:  # its own hook comes first, so the path is known when `shorten` is called
        handle = register_module_forward_pre_hook(shorten)  # type: ignore[arg-type]  # its stub forbids new inputs
        try:
            yield
        finally:
            handle.remove()
    if not done:
        raise UnsupportedModelError(
            f'how: "drop" needs a block that is called with tokens (batch, {num_tokens}, width) first, and found none '
            f'among {list(blocks)}; use how="fill" or how="attention"'
        )


class HiddenKeys(TorchFunctionMode):
    """Within the context no query attends to the hidden tokens: their scores are -inf in every attention.

    Concerns each attention whose keys are exactly the tokens of `hidden`, in `scaled_dot_product_attention`,
    `multi_head_attention_forward`, and softmaxes over keys inside an attention module.

    Args:
        hidden: (rows, N) bool.
        trace: Tells whether an attention module is running.

    Attributes:
        used: How many attentions were changed.
    """

    def __init__(self, hidden: Tensor, trace: ModuleTrace) -> None:
        super().__init__()
        self.used = 0
        self._hidden = hidden
        self._trace = trace

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._attention(**dict(zip(_SDPA_NAMES, args, strict=False)), **kwargs)
        if func is F.multi_head_attention_forward:
            call = _MHA.bind(*args, **kwargs)
            call.arguments["need_weights"] = False
            with self:
                return _open_mha(*call.args, **call.kwargs)
        if func in _SOFTMAX and self._trace.attention_modules():
            return self._softmax(func, *args, **kwargs)
        return func(*args, **kwargs)

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, **kwargs: Any) -> Tensor:  # noqa: ANN401
        if query.ndim != 4 or not self._concerns(key.shape[0], key.shape[2]):
            return F.scaled_dot_product_attention(query, key, value, **kwargs)
        self.used += 1
        shown = ~self._hidden[:, None, None]
        mask = kwargs.pop("attn_mask", None)
        if mask is None and not kwargs.get("is_causal"):
            return F.scaled_dot_product_attention(query, key, value, shown, **kwargs)
        if mask is None or mask.dtype == torch.bool:
            mask = shown if mask is None else shown & mask
        else:
            mask = torch.where(shown, mask, -torch.inf)
        # A row may now see no key at all, which torch's kernels do not agree about.
        return explicit_attention(query, key, value, mask, **kwargs, see=lambda matrix, _: matrix)

    def _softmax(
        self,
        func: Callable[..., Tensor],
        scores: Tensor,
        dim: int | None = None,
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> Tensor:
        over_keys = dim is not None and dim % scores.ndim == scores.ndim - 1
        if over_keys and scores.ndim == 4 and self._concerns(scores.shape[0], scores.shape[3]):
            self.used += 1
            scores = scores.masked_fill(self._hidden[:, None, None], -torch.inf)
        return func(scores, dim, *args, **kwargs)

    def _concerns(self, batch: int, keys: int) -> bool:
        return (batch, keys) == tuple(self._hidden.shape)


@contextmanager
def hidden_keys(hidden: Tensor, layers: int) -> Iterator[None]:
    """Within the context the tokens `hidden` (rows, N) bool are no keys, see `HiddenKeys`.

    Raises:
        UnsupportedModelError: At exit, if fewer than `layers` attentions over N keys were changed.
    """
    with ModuleTrace() as trace, HiddenKeys(hidden, trace) as mode:
        yield
    if mode.used < layers:
        raise UnsupportedModelError(
            f'how: "attention" could hide keys in {mode.used} of {layers} attentions over {hidden.shape[1]} tokens; '
            'use how="fill"'
        )
