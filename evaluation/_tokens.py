"""What one look at a running model tells about its tokens."""

import re
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from xattn._state import find_modules
from xattn.attention import AttentionRecord
from xattn.attributions._forward import run_forward
from xattn.errors import ArgumentError, XattnError
from xattn.evaluation._shapes import sum_channels
from xattn.layout import TokenLayout

_NUMBERED = re.compile(r"(^|_)\d+$")  # blocks are numbered: "blocks.0", "encoder_layer_0"


class Tokens:
    """The tokens of a transformer.

    Attributes:
        layout: Which token is what.
        blocks: Paths that may be the first block, outermost first.
        layers: How many layers attend.
        roots: Modules that the paths start from.
    """

    layout: TokenLayout

    def __init__(self, roots: list[nn.Module]) -> None:
        self.blocks: list[str] = []
        self.layers = 0
        self.roots = roots

    def update(self, record: AttentionRecord, layout: TokenLayout) -> None:
        """Take one layer's attention (see `xattn.attributions._forward.Reducer`)."""
        if not self.layers:
            parts = record.path.split(".")
            numbered = [i for i, part in enumerate(parts) if _NUMBERED.search(part)]
            self.blocks = [".".join(parts[: i + 1]) for i in numbered]
        self.layers += 1


def find_tokens(forward: Callable[..., Any], inputs: Tensor, layout: TokenLayout | None = None) -> Tokens:
    """Run the model on the first image and look.

    Raises:
        XattnError: If its attention cannot be read, or it is no plain transformer over the image's patches.
    """
    found = Tokens(find_modules(forward))
    found.layout = run_forward(forward, inputs[:1], layout=layout, reducer=found).layout
    return found


def find_grid(forward: Callable[..., Any], inputs: Tensor, relevance: Tensor) -> tuple[int, int] | None:
    """(h, w) of the model's patches where relevance is given per pixel; None where it has a grid of its own.

    Raises:
        ArgumentError: If the model has no grid that can be read.
    """
    if sum_channels(relevance).shape[-2:] != inputs.shape[-2:]:
        return None
    try:
        return find_tokens(forward, inputs).layout.grid
    except XattnError as error:
        raise ArgumentError(
            f"grid: relevance {tuple(relevance.shape)} is given per pixel, and the patches could not be read off the "
            f"model; pass grid=(h, w). It said: {error}"
        ) from error
