"""What stands in for removed pixels: black, the mean, a blur, noise, or a noisy linear imputation."""

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from xattn.evaluation._shapes import check_choice

Fill: TypeAlias = Literal["black", "mean", "blur", "noise", "linear"]
Filler: TypeAlias = Callable[[Tensor], Tensor]

FILLS: tuple[str, ...] = get_args(Fill)
RANDOM_FILLS = ("noise", "linear")

_BLUR = 0.05  # standard deviation of the blur, as a part of the shorter side
_IMPUTATION_NOISE = 0.01  # of the image's own standard deviation
_TOLERANCE = 1e-5
_MAX_ITERATIONS = 10_000


def make_fill(fill: Fill, inputs: Tensor, mean: Tensor, std: Tensor, seed: int) -> Filler:
    """A function from what is removed (S, B, H, W), 1 or else 0, to images (S, B, C, H, W) that lack all its channels.

    Everything random is drawn once from `seed`, alike for all samples, so that a sample's result does not depend on
    its position.

    Args:
        fill: "black": zero in pixel space, before normalisation. "mean": the image's channel means. "blur": the
            image blurred by a Gaussian of 5 % of the shorter side. "noise": normal noise with the image's channel
            means and deviations. "linear": each removed pixel is the weighted mean of its eight neighbours, solved
            for all at once, plus noise of 1 % of the image's deviation (Rong et al. 2022, ROAD).
        inputs: (B, C, H, W) as the model gets them.
        mean: (C, 1, 1) of the normalisation.
        std: (C, 1, 1) of the normalisation.
        seed: Of the noise.

    Raises:
        ArgumentError: For an unknown fill.
    """
    check_choice("fill", fill, FILLS)
    if fill == "black":
        stand_in = -mean / std
    elif fill == "mean":
        stand_in = inputs.mean((2, 3), keepdim=True)
    elif fill == "blur":
        stand_in = _blurred(inputs)
    else:
        spread = inputs.std((2, 3), keepdim=True, correction=0)
        noise = _noise(inputs, seed)
        if fill == "linear":
            noise = noise * spread * _IMPUTATION_NOISE
            return lambda removed: torch.stack([impute(inputs, one, noise) for one in removed.bool()])
        stand_in = inputs.mean((2, 3), keepdim=True) + noise * spread

    # Exactly the one or the other, and several times faster on a CPU than `where` with its broadcast operands.
    return lambda removed: torch.lerp(inputs, stand_in, removed.unsqueeze(2).to(inputs))


def impute(images: Tensor, removed: Tensor, noise: Tensor | None = None) -> Tensor:
    """Removed pixels as weighted means of their neighbours: 1/6 for direct, 1/12 for diagonal ones.

    At the border the weights of the neighbours that exist are rescaled. With all pixels removed, the image's channel
    means are taken. A constant image stays constant.

    Args:
        images: (R, C, H, W).
        removed: (R, H, W) bool.
        noise: (R, C, H, W) added to the removed pixels.

    Returns:
        (R, C, H, W) images; pixels that were not removed are unchanged.
    """
    dtype = torch.promote_types(images.dtype, torch.float32)
    gone = removed.unsqueeze(1).to(dtype)
    kept = 1 - gone
    x = images.to(dtype)
    known = kept.sum((2, 3), keepdim=True)
    mean = torch.where(known > 0, (x * kept).sum((2, 3), keepdim=True) / known.clamp(min=1), x.mean((2, 3), True))
    solution = _solve((x - mean) * kept, kept) + mean
    if noise is not None:
        solution = solution + noise.to(dtype)
    return torch.where(removed.unsqueeze(1), solution.to(images.dtype), images)


def _solve(known: Tensor, kept: Tensor) -> Tensor:
    """Conjugate gradients for (degree - neighbours) u = 0 on the removed pixels, with the kept ones as boundary.

    Each sample and channel has its own step lengths and stops on its own, so the result does not depend on the others
    in the batch.

    Args:
        known: (R, C, H, W), zero on removed pixels.
        kept: (R, 1, H, W), 1 on kept pixels, 0 on removed ones.
    """
    kernel = known.new_tensor([[1.0, 2.0, 1.0], [2.0, 0.0, 2.0], [1.0, 2.0, 1.0]]).div(12).view(1, 1, 3, 3)
    degree = F.conv2d(torch.ones_like(known[:1, :1]), kernel, padding=1)
    gone = 1 - kept

    def neighbours(u: Tensor) -> Tensor:
        return F.conv2d(u.flatten(0, 1).unsqueeze(1), kernel, padding=1).view_as(u)

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum((2, 3), keepdim=True)

    source = neighbours(known) * gone
    u, residual, direction, norm = torch.zeros_like(known), source, source, dot(source, source)
    target = norm * _TOLERANCE**2
    for _ in range(_MAX_ITERATIONS):
        running = norm > target
        if not bool(running.any()):
            break
        image = (degree * direction - neighbours(direction)) * gone
        step = torch.where(running, norm / dot(direction, image), 0.0)
        u = u + step * direction
        residual = residual - step * image
        new = torch.where(running, dot(residual, residual), norm)
        direction = residual + torch.where(running, new / norm, 0.0) * direction
        norm = new
    return u


def _blurred(inputs: Tensor) -> Tensor:
    shorter = min(inputs.shape[-2:])
    if shorter < 3:
        return inputs.mean((2, 3), keepdim=True).expand_as(inputs)
    sigma = max(_BLUR * shorter, 0.5)
    radius = min(max(int(4 * sigma), 1), shorter - 1)  # reflected padding must be smaller than the image
    weights = torch.exp(-0.5 * (torch.arange(-radius, radius + 1).to(inputs) / sigma) ** 2)
    weights = weights / weights.sum()
    padded = F.pad(inputs, (radius, radius, radius, radius), mode="reflect").flatten(0, 1).unsqueeze(1)
    rows = F.conv2d(padded, weights.view(1, 1, -1, 1))
    return F.conv2d(rows, weights.view(1, 1, 1, -1)).view_as(inputs)


def _noise(inputs: Tensor, seed: int) -> Tensor:
    """(C, H, W) normal noise, drawn on the CPU so that it is the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(inputs.shape[1:], generator=generator).to(inputs.device, inputs.dtype)
