"""Which modules are running right now: scoped, thread-filtered, and nothing is stored on the modules."""

import math
import re
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

_ATTENTION = re.compile(r"attention|attn|(msa|mha|xca)(?![a-z])", re.IGNORECASE)
# Attention whose matrix pairs channels; its shape may be that of a matrix of tokens.
_CHANNELS = re.compile(r"channel|xca(?![a-z])|cross_?cov", re.IGNORECASE)
# What a class is, its last word says: `AttentionMask` is none, `MaskedAttention` is one.
_NUMBERED = re.compile(r"(^|[._])\d+$")
_NOT_ATTENTION = re.compile(
    r"(drop(out|path)?|norm|mask(ing)?|bias|outputs?|embed(ding)?s?|intermediate|mlp|scale|config)(\d+d)?$",
    re.IGNORECASE,
)


def is_numbered(part: str) -> bool:
    """Whether a part of a path, or the last part of a path, names one of several ("3", "encoder_layer_3")."""
    return bool(_NUMBERED.search(part))


def is_attention_module(module: nn.Module) -> bool:
    """Whether the class name says that this module computes attention (`ViTAttention`, `WindowAttention`)."""
    name = type(module).__name__
    return bool(_ATTENTION.search(name)) and not _NOT_ATTENTION.search(name)


@dataclass(frozen=True)
class Call:
    """A running module: its path, and the tensors it was called with by position."""

    module: nn.Module
    path: str
    args: tuple[Tensor, ...]

    @property
    def is_attention(self) -> bool:
        """See `is_attention_module`."""
        return is_attention_module(self.module)

    @property
    def name(self) -> str:
        """Path; the class name of the outermost module, which has none."""
        return self.path or type(self.module).__name__


class ModuleTrace:
    """Follow the calls of modules in the current thread through global forward hooks.

    Global hooks see every module of any callable, lambdas and closures included, and vanish with the context.

    Args:
        roots: Modules that paths start from; a module outside of them starts paths of its own when it is called.

    Attributes:
        stack: The running modules, outermost first.
        ran: Paths of all attention modules that were called.
        convolutions: How often each 2-d convolution was called, by its path.
    """

    def __init__(self, roots: Sequence[nn.Module] = ()) -> None:
        self.stack: list[Call] = []
        self.ran: dict[str, nn.Module] = {}
        self.convolutions: Counter[str] = Counter()
        self._convolution: tuple[str, tuple[int, int]] | None = None
        self._roots = list(roots)
        self._root: nn.Module | None = None
        self._names: dict[int, str] = {}
        self._resources = ExitStack()
        self._thread = 0

    def __enter__(self) -> Self:
        self._thread = threading.get_ident()
        for handle in (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ):
            self._resources.callback(handle.remove)
        return self

    def __exit__(self, *exc: object) -> None:
        self._resources.close()
        self.stack.clear()
        self._names.clear()
        self._root = None

    @property
    def path(self) -> str:
        """Path of the innermost running module; the class name where that is the outermost one."""
        return self.stack[-1].name if self.stack else "the forward function"

    def attention_modules(self) -> list[str]:
        """Paths of the running modules that compute attention, outermost first."""
        return [call.name for call in self.stack if call.is_attention]

    def batch_size(self) -> int | None:
        """Batch of the module around the running attention, None if it is unknown.

        Windows are cut between that module and the attention, while the towers of a model have batches of their own.
        `nn.MultiheadAttention` with the sequence first is never given windows: its own input tells the batch.
        """
        stack = self._up_to_attention()
        innermost = stack[-1].module if stack else None
        if isinstance(innermost, nn.MultiheadAttention) and not innermost.batch_first and stack[-1].args:
            return stack[-1].args[0].shape[1] if stack[-1].args[0].ndim == 3 else 1
        around = [call.args[0].shape for call in stack if call.args and not call.is_attention]
        return next((shape[0] for shape in reversed(around) if shape), None)

    def own_batch(self, tokens: int) -> int | None:
        """Batch that the running attention was called with, windows included, if its input has that many tokens.

        A module that is given queries, keys and values may have had heads folded into the batch before.
        """
        call = next((call for call in reversed(self.stack) if call.is_attention), None)
        shape = call.args[0].shape if call is not None and len(call.args) == 1 else ()
        return shape[0] if len(shape) > 2 and math.prod(shape[1:-1]) == tokens else None

    def is_over_channels(self) -> bool:
        """Whether the running attention pairs channels, by the name of its class."""
        return any(call.is_attention and _CHANNELS.search(type(call.module).__name__) for call in self.stack)

    def is_pooling(self) -> bool:
        """Whether a running module has pooling in the name of its class or its own (`AttentionPoolLatent`)."""
        names = (f"{type(call.module).__name__} {call.path.rpartition('.')[2]}" for call in self.stack[1:])
        return any("pool" in name.lower() for name in names)

    def is_cross(self) -> bool:
        """Whether the running `nn.MultiheadAttention` was called with keys of another sequence."""
        stack = self._up_to_attention()
        if not stack or not isinstance(stack[-1].module, nn.MultiheadAttention) or len(stack[-1].args) < 2:
            return False
        query, key, *_ = stack[-1].args
        return query is not key and not torch.equal(query, key)

    def _up_to_attention(self) -> list[Call]:
        """The stack up to the innermost attention module; all of it without one."""
        last = max((i for i, call in enumerate(self.stack) if call.is_attention), default=len(self.stack) - 1)
        return self.stack[: last + 1]

    def take_convolution(self) -> tuple[str, tuple[int, int]] | None:
        """Path and output size (h, w) of the last 2-d convolution since this was last asked."""
        taken, self._convolution = self._convolution, None
        return taken

    def common_module(self, *paths: str) -> nn.Module | None:
        """The smallest module that contains all paths of modules."""
        levels = zip(*(path.split(".") for path in paths), strict=False)
        shared = ".".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))
        return None if self._root is None else dict(self._root.named_modules()).get(shared, self._root)

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if threading.get_ident() != self._thread:
            return
        if not self.stack:
            self._start_at(next((root for root in self._roots if id(module) in _names(root)), module))
        path = self._names.get(id(module))
        if path is None:  # not registered as a child of the outermost module: name it after its caller
            path = f"{self.stack[-1].path}.{type(module).__name__}".lstrip(".")
        call = Call(module, path, tuple(x for x in args if isinstance(x, Tensor)))
        self.stack.append(call)
        if call.is_attention:
            self.ran[call.name] = module

    def _start_at(self, root: nn.Module) -> None:
        if root is not self._root:
            self._root, self._names = root, _names(root)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        if threading.get_ident() != self._thread or not self.stack:
            return
        path = self.stack.pop().path
        if isinstance(module, nn.Conv2d) and isinstance(output, Tensor) and output.ndim == 4:
            self._convolution = (path, (output.shape[-2], output.shape[-1]))
            self.convolutions[path] += 1


def _names(root: nn.Module) -> dict[int, str]:
    return {id(child): name for name, child in root.named_modules()}
