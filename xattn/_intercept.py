"""The function mode that answers attention calls in the open."""

import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from xattn._sdpa import explicit_attention, visible_keys

Take: TypeAlias = Callable[[Tensor, Tensor | None, bool], Tensor]

_SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}
_MHA = inspect.signature(F.multi_head_attention_forward)
_SDPA_CAUSAL = 5  # position of `is_causal`

# `F.multi_head_attention_forward` hands its whole call to a function mode, which is off while it answers: the
# attention inside would never be seen. A copy that believes no mode is active runs torch's own body with the mode on.
_open_mha = types.FunctionType(
    F.multi_head_attention_forward.__code__,
    {**F.__dict__, "has_torch_function": lambda *_: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)


class AttentionMode(TorchFunctionMode):
    """Passes each attention matrix to `take(matrix, valid_keys, is_causal)` and uses what it returns.

    Args:
        take: Receives the matrix (batch, heads, queries, keys) and the visible keys ((batch, keys) or None).
        inside_attention: Whether an attention module is running; only there a softmax is taken for attention.
    """

    def __init__(self, take: Take, inside_attention: Callable[[], bool]) -> None:
        super().__init__()
        self._take = take
        self._inside_attention = inside_attention

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            causal = bool(kwargs.get("is_causal", args[_SDPA_CAUSAL] if len(args) > _SDPA_CAUSAL else False))
            return explicit_attention(*args, **kwargs, see=lambda matrix, valid: self._take(matrix, valid, causal))
        if func is F.multi_head_attention_forward:
            return self._multi_head(*args, **kwargs)
        result = func(*args, **kwargs)
        if func in _SOFTMAX and self._inside_attention():
            return self._softmax(result, *args, **kwargs)
        return result

    def _multi_head(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:  # noqa: ANN401
        call = _MHA.bind(*args, **kwargs)
        call.apply_defaults()
        wanted, average = call.arguments["need_weights"], call.arguments["average_attn_weights"]
        call.arguments["need_weights"] = False  # the weights that torch would return are not upstream of its output
        seen: list[Tensor] = []

        def take(matrix: Tensor, valid: Tensor | None, causal: bool) -> Tensor:
            seen.append(self._take(matrix, valid, causal))
            return seen[-1]

        with AttentionMode(take, self._inside_attention):
            output, _ = _open_mha(*call.args, **call.kwargs)
        if not wanted:
            return output, None
        weights = (seen[-1].mean(1) if average else seen[-1]).to(output.dtype)
        return output, weights if output.ndim == 3 else weights.squeeze(0)

    def _softmax(self, result: Tensor, input: Tensor, dim: int | None = None, *_: Any, **__: Any) -> Tensor:  # noqa: ANN401
        """Take a softmax over keys: the last of four dimensions, or of three if queries and keys are as many."""
        over_keys = dim is not None and dim % result.ndim == result.ndim - 1
        matrix = result.ndim >= 4 or (result.ndim == 3 and result.shape[-1] == result.shape[-2])
        if not (over_keys and matrix):
            return result
        precise = result.to(torch.promote_types(result.dtype, torch.float32))
        return self._take(precise, visible_keys(input), False).to(result.dtype)
