"""An autograd graph that starts at the first layer whose gradient is asked for, so that it need not grow with depth."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from xattn._trace import is_attention_module, is_numbered


class LateGraph:
    """Switches gradients on when the forward call comes to a layer.

    Layers counted from the end are known before the end only by a guess: a stream has as many layers as its modules
    have numbered parts with attention. `is_right` tells afterwards whether that was true.

    Args:
        roots: Modules that paths start from.
        layers: Self-attention layers, negative from the end; gradients begin at the first of them.
    """

    def __init__(self, roots: Sequence[nn.Module], layers: Sequence[int]) -> None:
        self._attentions = [
            path for root in roots for path, module in root.named_modules() if is_attention_module(module)
        ]
        self._layers = layers
        self._guesses: dict[str, int] = {}

    def before(self, stream: str, layer: int) -> None:
        """Called before the self-attention of a layer enters the graph."""
        if layer >= self._first(self._guesses.setdefault(stream, self._guess(stream))):
            torch.set_grad_enabled(True)

    def is_right(self, depth: Mapping[str, int]) -> bool:
        """Whether the streams had as many layers as was guessed, and gradients could begin in time."""
        return all(depth[stream] == guess and self._first(guess) >= 0 for stream, guess in self._guesses.items())

    def _first(self, depth: int) -> int:
        return min(index + depth if index < 0 else index for index in self._layers)

    def _guess(self, stream: str) -> int:
        prefix = f"{stream}." if stream else ""
        parts = {path[len(prefix) :].split(".")[0] for path in self._attentions if path.startswith(prefix)}
        return sum(map(is_numbered, parts))
