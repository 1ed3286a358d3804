"""Controls: maps that ignore what the model did. A method that does not beat them explains nothing."""

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xattn.attention import AttentionRecord
from xattn.attributions._forward import ForwardPass, Reducer
from xattn.attributions.base import TransformerAttribution
from xattn.errors import ArgumentError, ArgumentTypeError, UnsupportedModelError
from xattn.layout import TokenLayout


class _LayoutOnly:
    """Lets the attention pass by: only the layout is wanted."""

    def update(self, record: AttentionRecord, layout: TokenLayout) -> None:
        """Keep nothing."""


class Control(TransformerAttribution):
    """Base of the controls."""

    family = "control"
    paper = "control"
    is_control = True

    def _reducer(self) -> Reducer | None:
        return _LayoutOnly()


class RandomAttribution(Control):
    """Uniform noise per patch or word, the same for the same input and seed whatever else is in the batch.

    Args:
        forward_func: Module or callable; runs once for the layout.
        seed: Seed, mixed with the content of each sample.
        layout: Roles of the tokens.
    """

    name = "random"
    summary = "uniform noise (control)"

    def __init__(self, forward_func: Callable[..., Any], *, seed: int = 0, layout: TokenLayout | None = None) -> None:
        super().__init__(forward_func, layout=layout)
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ArgumentTypeError(f"seed: expected an integer, got {type(seed).__name__}")
        self.seed = seed

    def _relevance(self, forward: ForwardPass, reducer: Any) -> Tensor:  # noqa: ANN401
        noise = torch.stack([self._noise(sample, forward.layout) for sample in forward.inputs.detach().cpu()])
        return forward.layout.tokens(noise.to(forward.inputs.device))

    def _noise(self, sample: Tensor, layout: TokenLayout) -> Tensor:
        content = sample.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        digest = hashlib.blake2b(content, digest_size=8, salt=self.seed.to_bytes(16, "little", signed=True))
        generator = torch.Generator().manual_seed(int.from_bytes(digest.digest(), "little", signed=True))
        return torch.rand(layout.num_patches, generator=generator)


class CenterPrior(Control):
    """A Gaussian around the centre of the image: photographers put things there.

    exp(-(x^2 + y^2) / (2 sigma^2)), x and y running from -1 to 1 over the patch grid.

    Args:
        forward_func: Module or callable; runs once for the layout.
        sigma: Width, in half image sizes.
        layout: Roles of the tokens.
    """

    name = "center"
    summary = "a Gaussian around the centre (control)"

    def __init__(
        self, forward_func: Callable[..., Any], *, sigma: float = 0.5, layout: TokenLayout | None = None
    ) -> None:
        super().__init__(forward_func, layout=layout)
        if not sigma > 0:
            raise ArgumentError(f"sigma: expected a positive number, got {sigma}")
        self.sigma = sigma

    def _relevance(self, forward: ForwardPass, reducer: Any) -> Tensor:  # noqa: ANN401
        layout = forward.layout
        if layout.grid is None:
            raise UnsupportedModelError("CenterPrior: words have no centre; use RandomAttribution as a control")
        height, width = layout.grid
        y, x = (_axis(size, forward.inputs.device) for size in (height, width))
        gaussian = torch.exp(-(y[:, None] ** 2 + x[None] ** 2) / (2 * self.sigma**2))
        return layout.tokens(gaussian.flatten().expand(forward.inputs.shape[0], -1))


def _axis(size: int, device: torch.device) -> Tensor:
    """Centres of `size` cells that divide -1..1."""
    return (2 * torch.arange(size, device=device) + 1) / size - 1
