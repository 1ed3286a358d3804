"""What every loaded model offers, whatever it reads: logits, class names, device and dtype."""

from difflib import get_close_matches
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from xattn.errors import ArgumentError, ArgumentTypeError, UnsupportedModelError


class _Named(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def module(self) -> nn.Module: ...
    @property
    def classes(self) -> tuple[str, ...]: ...


class Classifier:
    """Mixin for a dataclass with `name`, `module` and `classes`; calling it returns logits (B, classes)."""

    def __post_init__(self: _Named) -> None:
        if not isinstance(self.name, str):
            raise ArgumentTypeError(f"name: expected a string, got {self.name!r}")
        if not isinstance(self.module, nn.Module):
            raise ArgumentTypeError(f"module: expected a torch.nn.Module, got {type(self.module).__name__}")
        if not isinstance(self.classes, tuple) or not all(isinstance(name, str) for name in self.classes):
            raise ArgumentTypeError(f"classes: expected a tuple of names, got {self.classes!r:.60}")

    def __call__(self: _Named, *args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401
        """Runs the module and returns its logits (B, classes)."""
        output = self.module(*args, **kwargs)
        output = getattr(output, "logits", output)
        if not isinstance(output, Tensor):
            raise UnsupportedModelError(
                f"model {self.name!r}: the output must be logits, or have a field `logits`; "
                f"got {type(output).__name__}. Wrap the module in a function that returns logits."
            )
        return output

    @property
    def device(self: _Named) -> torch.device:
        """Where the parameters are."""
        return next(self.module.parameters()).device

    @property
    def dtype(self: _Named) -> torch.dtype:
        """Type of the parameters."""
        return next(self.module.parameters()).dtype

    def class_name(self: _Named, index: int) -> str:
        """Name of a class, or its number where names are not known."""
        return self.classes[index] if index < len(self.classes) else f"class {index}"

    def class_index(self: _Named, target: str | int) -> int:
        """Number of a class given by its name or number; an unknown one raises and lists the choices."""
        if isinstance(target, int) or target.strip().lstrip("-").isdigit():
            index = int(target)
            if index < 0 or (self.classes and index >= len(self.classes)):
                raise ArgumentError(
                    f"target: model {self.name!r} has classes 0 to {len(self.classes) - 1}; got {index}."
                )
            return index
        names = [name.lower() for name in self.classes]
        if target.lower() in names:
            return names.index(target.lower())
        near = get_close_matches(target.lower(), names, 5) or names[:12]
        raise ArgumentError(f"target: model {self.name!r} has no class {target!r}; e.g. {', '.join(near)}.")
