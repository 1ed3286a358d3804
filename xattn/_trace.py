"""Which modules are running right now: scoped, thread-filtered, and nothing is stored on the modules."""

import re
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import takewhile
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

_ATTENTION = re.compile(r"attention|attn|msa(?![a-z])|mha(?![a-z])", re.IGNORECASE)
# What a class is, its last word says: `AttentionMask` is none, `MaskedAttention` is one.
_NOT_ATTENTION = re.compile(
    r"(drop(out|path)?|norm|mask(ing)?|bias|outputs?|embed(ding)?s?|intermediate|mlp|scale|config)(\d+d)?$",
    re.IGNORECASE,
)


def is_attention_module(module: nn.Module) -> bool:
    """Whether the class name says that this module computes attention (`ViTAttention`, `WindowAttention`)."""
    name = type(module).__name__
    return bool(_ATTENTION.search(name)) and not _NOT_ATTENTION.search(name)


class ModuleTrace:
    """Follow the calls of modules in the current thread through global forward hooks.

    Global hooks see every module of any callable, lambdas and closures included, and vanish with the context.

    Args:
        roots: Modules that paths start from; a module outside of them starts paths of its own when it is called.

    Attributes:
        stack: The running modules with their paths and the shape of the first tensor they received, outermost first.
        ran: Paths of all attention modules that were called.
    """

    def __init__(self, roots: Sequence[nn.Module] = ()) -> None:
        self.stack: list[tuple[nn.Module, str, torch.Size | None]] = []
        self.ran: dict[str, nn.Module] = {}
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
        if not self.stack:
            return "the forward function"
        module, path, _ = self.stack[-1]
        return path or type(module).__name__

    def attention_modules(self) -> list[str]:
        """Paths of the running modules that compute attention, outermost first."""
        return [path or type(module).__name__ for module, path, _ in self.stack if is_attention_module(module)]

    def batch_size(self) -> int | None:
        """Batch of the module around the running attention, None if it is unknown.

        Windows are cut between that module and the attention, while the towers of a model have batches of their own.
        `nn.MultiheadAttention` with the sequence first is never given windows: its own input tells the batch.
        """
        attention = [i for i, (module, *_) in enumerate(self.stack) if is_attention_module(module)]
        inside = self.stack[: attention[-1] + 1] if attention else self.stack
        innermost, _, received = inside[-1] if inside else (None, "", None)
        if isinstance(innermost, nn.MultiheadAttention) and not innermost.batch_first:
            return None if received is None else received[1] if len(received) == 3 else 1
        around = [shape for module, _, shape in inside if shape and not is_attention_module(module)]
        return around[-1][0] if around else None

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
            path = f"{self.stack[-1][1]}.{type(module).__name__}".lstrip(".")
        self.stack.append((module, path, next((x.shape for x in args if isinstance(x, Tensor)), None)))
        if is_attention_module(module):
            self.ran[path or type(module).__name__] = module

    def _start_at(self, root: nn.Module) -> None:
        if root is not self._root:
            self._root, self._names = root, _names(root)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        if threading.get_ident() != self._thread or not self.stack:
            return
        _, path, _ = self.stack.pop()
        if isinstance(module, nn.Conv2d) and isinstance(output, Tensor) and output.ndim == 4:
            self._convolution = (path, (output.shape[-2], output.shape[-1]))


def _names(root: nn.Module) -> dict[int, str]:
    return {id(child): name for name, child in root.named_modules()}
