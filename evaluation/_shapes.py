"""Relevance, masks and normalisation in the shapes that the protocols compute with."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from xattn._device import check_data
from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.markov._numeric import where_precise
from xattn.models.model import Model

Interpolation: TypeAlias = Literal["nearest", "bilinear"]
Statistics: TypeAlias = Sequence[float] | Tensor | None


def check_choice(argument: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a word that is not among the choices.

    Raises:
        ArgumentError: Naming the choices.
    """
    if value not in choices:
        raise ArgumentError(f"{argument}: expected one of {', '.join(choices)}, got {value!r}")


def check_integer(argument: str, value: object, least: int) -> None:
    """Refuse what is no integer, or one that is too small.

    Raises:
        ArgumentError: If it is too small.
        ArgumentTypeError: If it is none.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentTypeError(f"{argument}: expected an integer, got {value!r}")
    if value < least:
        raise ArgumentError(f"{argument}: expected {least} or more, got {value}")


def check_forward(forward: object) -> None:
    """Refuse what cannot be called.

    Raises:
        ArgumentTypeError: For a name or another thing.
    """
    if not callable(forward):
        raise ArgumentTypeError(f"forward: expected a module or a function from images to logits, got {forward!r:.60}")


def check_images(inputs: Tensor) -> None:
    """Refuse anything but a batch of floating-point images (B, C, H, W).

    Raises:
        ArgumentError: For another number of dimensions or an empty batch.
        ArgumentTypeError: For integers, or something that is no tensor.
    """
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        kind = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
        raise ArgumentTypeError(f"inputs: expected a floating-point tensor (B, C, H, W), got {kind}")
    if inputs.ndim != 4 or inputs.numel() == 0:
        raise ArgumentError(f"inputs: expected images (B, C, H, W), got shape {tuple(inputs.shape)}")
    check_data("inputs", inputs)


def sum_channels(relevance: Tensor) -> Tensor:
    """Relevance (B, h, w) as it is; (B, C, h, w) summed over channels, signs kept. What lies on MPS comes to the CPU.

    Raises:
        ArgumentError: For another number of dimensions.
        ArgumentTypeError: For something that is no tensor of real numbers.
    """
    if not isinstance(relevance, Tensor) or relevance.is_complex():
        kind = relevance.dtype if isinstance(relevance, Tensor) else type(relevance).__name__
        raise ArgumentTypeError(f"relevance: expected a real tensor, got {kind}")
    if relevance.ndim not in (3, 4):
        raise ArgumentError(
            f"relevance: expected (B, h, w), (B, 1, H, W) or (B, C, H, W), got shape {tuple(relevance.shape)}"
        )
    check_data("relevance", relevance)
    relevance = where_precise(relevance.detach())
    if not relevance.is_floating_point():
        relevance = relevance.float()
    return relevance.sum(1) if relevance.ndim == 4 else relevance


def pixel_map(relevance: Tensor, like: Tensor, interpolation: Interpolation = "nearest") -> Tensor:
    """(B, H, W) relevance of pixels; a patch map is spread by `interpolation`.

    Args:
        relevance: (B, h, w), (B, H, W), (B, 1, H, W) or (B, C, H, W); h and w divide H and W.
        like: Images (B, C, H, W) or masks (B, H, W).
        interpolation: "nearest" gives every pixel its patch's value, "bilinear" interpolates between centres.

    Raises:
        ArgumentError: If the shapes do not fit.
    """
    check_choice("interpolation", interpolation, get_args(Interpolation))
    maps = sum_channels(relevance).to(like.device)
    size = tuple(like.shape[-2:])
    fits = maps.numel() and size[0] % maps.shape[1] == 0 and size[1] % maps.shape[2] == 0
    if maps.shape[0] != like.shape[0] or not fits:
        raise ArgumentError(
            f"relevance: shape {tuple(relevance.shape)} does not fit {tuple(like.shape)}; expected {like.shape[0]} "
            f"maps of {size[0]}x{size[1]} pixels, or of a grid of patches that divides it"
        )
    if tuple(maps.shape[-2:]) == size:
        return maps
    if interpolation == "nearest":
        rows, columns = size[0] // maps.shape[1], size[1] // maps.shape[2]
        return maps.repeat_interleave(rows, 1).repeat_interleave(columns, 2)
    spread: Tensor = F.interpolate(maps.unsqueeze(1), size=size, mode="bilinear", align_corners=False)
    return spread[:, 0]


def patch_map(relevance: Tensor, like: Tensor, grid: tuple[int, int] | None) -> Tensor:
    """(B, h, w) relevance of patches; a pixel map is summed over each patch.

    Args:
        relevance: As for `pixel_map`.
        like: Images (B, C, H, W).
        grid: (h, w); None takes the map's own, which must then be coarser than the image.

    Raises:
        ArgumentError: If the grid is unknown or the shapes do not fit.
    """
    maps = sum_channels(relevance).to(like.device)
    size = tuple(like.shape[-2:])
    if grid is None:
        if tuple(maps.shape[-2:]) == size:
            raise ArgumentError(
                f"grid: relevance {tuple(relevance.shape)} is given per pixel, so the patches are unknown; "
                "pass grid=(h, w)"
            )
        grid = (maps.shape[1], maps.shape[2])
    pair = isinstance(grid, (tuple, list)) and len(grid) == 2 and all(isinstance(n, int) for n in grid)
    if not pair or min(grid) < 1 or size[0] % grid[0] or size[1] % grid[1]:
        raise ArgumentError(f"grid: expected (h, w) that divides {size}, got {grid}")
    if tuple(maps.shape) == (like.shape[0], *grid):
        return maps
    pixels = pixel_map(relevance, like)
    if tuple(maps.shape[-2:]) != size:
        raise ArgumentError(f"relevance: shape {tuple(relevance.shape)} is neither the grid {grid} nor {size}")
    cells: Tensor = pixels.unflatten(2, (grid[1], -1)).unflatten(1, (grid[0], -1))
    return cells.sum((2, 4))


def normalisation(
    forward: Callable[..., Any], inputs: Tensor, mean: Statistics, std: Statistics
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (C, 1, 1) of the normalisation that made `inputs` from values in [0, 1].

    Where both are None, those of an xattn model are taken; any other function is taken to receive raw values.

    Raises:
        ArgumentError: If only one is given, their length is neither 1 nor C, or a deviation is not positive.
        ArgumentTypeError: If they are no numbers.
    """
    if mean is None and std is None:
        mean, std = (forward.mean, forward.std) if isinstance(forward, Model) else ((0.0,), (1.0,))
    if mean is None or std is None:
        raise ArgumentError("mean: expected mean and std together, got only one of them")
    channels = inputs.shape[1]
    found = []
    for name, value in (("mean", mean), ("std", std)):
        try:
            tensor = torch.as_tensor(value, dtype=inputs.dtype, device=inputs.device).reshape(-1)
        except (TypeError, ValueError, RuntimeError):
            raise ArgumentTypeError(f"{name}: expected numbers, one per channel, got {value!r:.60}") from None
        if tensor.numel() not in (1, channels):
            raise ArgumentError(f"{name}: expected 1 or {channels} values, got {tensor.numel()}")
        if not bool(tensor.isfinite().all()) or (name == "std" and not bool((tensor > 0).all())):
            raise ArgumentError(f"{name}: expected {'positive' if name == 'std' else 'finite'} numbers, got {value}")
        found.append(tensor.expand(channels).reshape(channels, 1, 1))
    return found[0], found[1]


def mask_of(mask: Tensor, name: str = "mask") -> Tensor:
    """Mask (B, H, W) from (B, H, W) or (B, 1, H, W), integer or bool. What lies on MPS comes to the CPU.

    Raises:
        ArgumentError: For another shape.
        ArgumentTypeError: For something that is no tensor.
    """
    if not isinstance(mask, Tensor):
        raise ArgumentTypeError(f"{name}: expected a tensor, got {type(mask).__name__}")
    if mask.ndim == 4 and mask.shape[1] == 1:
        mask = mask.squeeze(1)
    if mask.ndim != 3 or mask.numel() == 0:
        raise ArgumentError(f"{name}: expected (B, H, W) or (B, 1, H, W), got shape {tuple(mask.shape)}")
    return where_precise(mask)


def undefined_maps(maps: Tensor) -> Tensor:
    """(B,) bool: maps with a value that is not finite, or with one value only."""
    return ~maps.flatten(1).isfinite().all(1) | constant_maps(maps)


def constant_maps(maps: Tensor) -> Tensor:
    """(B,) bool: maps with one value only."""
    flat = maps.flatten(1)
    return (flat == flat[:, :1]).all(1)


def min_max(maps: Tensor) -> Tensor:
    """(B, H, W) maps scaled to 0..1 per sample; NaN where a map is constant or not finite."""
    flat = maps.flatten(1)
    low, high = flat.amin(1).view(-1, 1, 1), flat.amax(1).view(-1, 1, 1)
    return (maps - low) / (high - low)
