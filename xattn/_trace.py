"""Which modules are running right now: scoped, thread-filtered, and nothing is stored on the modules."""

import re
import threading
from contextlib import ExitStack
from typing import Any, Self

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

_ATTENTION = re.compile(r"attention|attn|msa(?![a-z])|mha(?![a-z])", re.IGNORECASE)
_NOT_ATTENTION = re.compile(r"drop|norm|mask|bias|output|embed|intermediate|mlp|scale", re.IGNORECASE)


def is_attention_module(module: nn.Module) -> bool:
    """Whether the class name says that this module computes attention (`ViTAttention`, `WindowAttention`)."""
    name = type(module).__name__
    return bool(_ATTENTION.search(name)) and not _NOT_ATTENTION.search(name)


class ModuleTrace:
    """Follow the calls of modules in the current thread through global forward hooks.

    Global hooks see every module of any callable, lambdas and closures included, and vanish with the context.

    Attributes:
        stack: The running modules with their paths, outermost first.
        ran: Paths of all attention modules that were called.
        batch_size: Leading size of the first tensor that the outermost module received.
    """

    def __init__(self) -> None:
        self.stack: list[tuple[nn.Module, str]] = []
        self.ran: dict[str, nn.Module] = {}
        self.batch_size: int | None = None
        self._convolution: tuple[str, tuple[int, int]] | None = None
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

    @property
    def path(self) -> str:
        """Path of the innermost running module; the class name where that is the outermost one."""
        if not self.stack:
            return "the forward function"
        module, path = self.stack[-1]
        return path or type(module).__name__

    def attention_modules(self) -> list[str]:
        """Paths of the running modules that compute attention, outermost first."""
        return [path or type(module).__name__ for module, path in self.stack if is_attention_module(module)]

    def take_convolution(self) -> tuple[str, tuple[int, int]] | None:
        """Path and output size (h, w) of the last 2-d convolution since this was last asked."""
        taken, self._convolution = self._convolution, None
        return taken

    def common_module(self, path: str) -> nn.Module | None:
        """The smallest running module that contains `path`."""
        inside = [module for module, own in self.stack if not own or path.startswith(f"{own}.")]
        return inside[-1] if inside else None

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if threading.get_ident() != self._thread:
            return
        if not self.stack:
            self._names = {id(child): name for name, child in module.named_modules()}
            if self.batch_size is None:
                self.batch_size = next((x.shape[0] for x in args if isinstance(x, Tensor) and x.ndim), None)
        path = self._names.get(id(module))
        if path is None:  # not registered as a child of the outermost module: name it after its caller
            path = f"{self.stack[-1][1]}.{type(module).__name__}".lstrip(".")
        self.stack.append((module, path))
        if is_attention_module(module):
            self.ran[path or type(module).__name__] = module

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        if threading.get_ident() != self._thread or not self.stack:
            return
        _, path = self.stack.pop()
        if isinstance(module, nn.Conv2d) and isinstance(output, Tensor) and output.ndim == 4:
            self._convolution = (path, (output.shape[-2], output.shape[-1]))
