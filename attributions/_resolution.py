"""Relevance of tokens or pixels, shown at the resolution that was asked for."""

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from xattn.errors import ArgumentError
from xattn.layout import TokenLayout

Resolution: TypeAlias = Literal["input", "patch", "token"]
Interpolation: TypeAlias = Literal["nearest", "bilinear"]


def check_resolution(resolution: str, interpolation: str) -> None:
    """Refuse unknown words.

    Raises:
        ArgumentError: Naming the choices.
    """
    for argument, value, choices in (
        ("resolution", resolution, get_args(Resolution)),
        ("interpolation", interpolation, get_args(Interpolation)),
    ):
        if value not in choices:
            raise ArgumentError(f"{argument}: expected one of {', '.join(choices)}, got {value!r}")


def result_dtype(inputs: Tensor) -> torch.dtype:
    """float32, or the inputs' own type where it is wider: half types have too few digits to rank a map's values."""
    return torch.promote_types(inputs.dtype, torch.float32) if inputs.is_floating_point() else torch.float32


def from_tokens(
    tokens: Tensor, layout: TokenLayout, inputs: Tensor, resolution: Resolution, interpolation: Interpolation
) -> Tensor:
    """(B, N) relevance of tokens as (B, N), (B, h, w) or the inputs' shape, in `result_dtype`.

    A patch's value is given to each of its pixels and channels: the sum over pixels is not the sum over tokens.
    """
    dtype = result_dtype(inputs)
    if resolution == "token":
        return tokens.to(dtype)
    if resolution == "patch":
        return layout.patches(tokens).to(dtype).contiguous()
    if layout.is_image:
        patches = layout.patches(tokens).unsqueeze(1)
        mode = "nearest-exact" if interpolation == "nearest" else "bilinear"
        return F.interpolate(patches, size=inputs.shape[-2:], mode=mode).to(dtype).expand(inputs.shape).contiguous()
    if inputs.ndim == 2:
        return tokens.to(dtype)
    return tokens.to(dtype).unsqueeze(-1).expand(inputs.shape).contiguous()


def from_pixels(pixels: Tensor, layout: TokenLayout, resolution: Resolution) -> Tensor:
    """Relevance of the inputs as it is, or summed over each patch or word."""
    if resolution == "input":
        return pixels
    if layout.grid is None:
        tokens = pixels.sum(-1) if pixels.ndim == 3 else pixels
        return tokens if resolution == "token" else layout.patches(tokens)
    channels_summed = pixels.sum(1, keepdim=True)
    area = pixels.shape[-2] * pixels.shape[-1] / layout.num_patches
    patches = F.adaptive_avg_pool2d(channels_summed, layout.grid).squeeze(1) * area
    return patches if resolution == "patch" else layout.tokens(patches.flatten(1))
