"""Answers of a model that all methods ask for alike: clean pictures, and pictures of which nothing is left."""

from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor


class Shared:
    """A model that answers a chunk's clean pictures from memory, and runs for all others.

    Args:
        forward: The model.
        inputs: (B, C, H, W) clean pictures; views of them are recognised.
        clean: (B, classes) their logits.
    """

    def __init__(self, forward: Callable[..., Any], inputs: Tensor, clean: Tensor) -> None:
        self.forward, self.inputs, self.clean = forward, inputs, clean
        self.answers = dict[Hashable, Tensor]()
        self._version = inputs._version

    def __call__(self, x: Tensor) -> Any:  # noqa: ANN401
        """Logits of a batch."""
        start = self._start(x)
        return self.forward(x.clone()) if start is None else self.clean[start : start + len(x)].clone()

    def _start(self, x: Tensor) -> int | None:
        """Where these rows begin in the chunk, None if they are no unchanged rows of it."""
        own = self.inputs
        if x.untyped_storage().data_ptr() != own.untyped_storage().data_ptr() or x._version != self._version:
            return None
        offset = x.storage_offset() - own.storage_offset()
        aligned = x.shape[1:] == own.shape[1:] and x.stride() == own.stride() and offset % own.stride(0) == 0
        return int(offset // own.stride(0)) if aligned else None


def unshared(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The model itself."""
    return forward.forward if isinstance(forward, Shared) else forward


def recalled(forward: Callable[..., Any], inputs: Tensor, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
    """Logits that depend on these inputs and on `key` alone; what answers a whole chunk is computed once."""
    if not isinstance(forward, Shared) or inputs is not forward.inputs:
        return compute()
    if key not in forward.answers:
        forward.answers[key] = compute()
    return forward.answers[key]
