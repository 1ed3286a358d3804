"""From a picture of any kind to the tensor a model wants, and back."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.layout import is_size

if TYPE_CHECKING:
    from PIL import Image

ImageLike: TypeAlias = Union[str, Path, "Image.Image", npt.NDArray[Any], Tensor]


_CROPS = ("center", "squash")
_MODES = ("bicubic", "bilinear", "nearest")


def read_image(image: ImageLike) -> Tensor:
    """Reads a picture as (3, H, W) float32 RGB in [0, 1].

    Args:
        image: a file name or a PIL image (the EXIF rotation is applied, transparency is laid on white); an array
            (H, W) or (H, W, channels); or a tensor (channels, H, W). Channels are 1, 3 or 4 (RGBA). Arrays and
            tensors are uint8 from 0 to 255 or floating point from 0 to 1.
    """
    from PIL import Image

    if isinstance(image, str | Path):
        return _from_pil(_open(Path(image)))
    if isinstance(image, Image.Image):
        return _from_pil(image)
    if isinstance(image, np.ndarray):
        if image.ndim not in (2, 3):
            raise ArgumentError(f"image: an array must be (H, W) or (H, W, channels); got shape {image.shape}.")
        if image.dtype != np.uint8 and image.dtype.kind != "f":
            raise ArgumentTypeError(f"image: an array must be uint8 or floating point; got {image.dtype}.")
        array = np.ascontiguousarray(image if image.ndim == 3 else image[..., None])
        return _from_tensor(torch.from_numpy(array).permute(2, 0, 1), "(H, W, channels)", image.shape)
    if isinstance(image, Tensor):
        if image.ndim != 3:
            raise ArgumentError(f"image: a tensor must be (channels, H, W); got shape {tuple(image.shape)}.")
        return _from_tensor(image.detach().cpu(), "(channels, H, W)", tuple(image.shape))
    raise ArgumentTypeError(
        f"image must be a file name, a PIL image, a numpy array or a tensor; got {type(image).__name__}."
    )


def _open(path: Path) -> "Image.Image":
    from PIL import Image, UnidentifiedImageError

    if not path.is_file():
        raise ArgumentError(f"image: there is no file {str(path)!r}.")
    try:
        with Image.open(path) as opened:
            opened.load()
            return opened
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ArgumentError(f"image: the file {str(path)!r} is not a readable picture ({error}).") from None


def _from_pil(image: "Image.Image") -> Tensor:
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        values = np.asarray(image, dtype=np.float32)
        top = 65535.0 if image.mode.startswith("I") else 255.0 if values.max(initial=0) > 1 else 1.0
        return _from_tensor(torch.from_numpy((values / top).clip(0, 1))[None], "(H, W)", values.shape)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    array = np.array(image.convert("RGB"))
    return _from_tensor(torch.from_numpy(array).permute(2, 0, 1), "(H, W, 3)", array.shape)


def _from_tensor(values: Tensor, expected: str, shape: tuple[int, ...]) -> Tensor:
    if values.shape[0] not in (1, 3, 4) or 0 in values.shape:
        raise ArgumentError(f"image must be {expected} with 1, 3 or 4 channels and no empty side; got shape {shape}.")
    if values.dtype == torch.uint8:
        values = values.float() / 255
    elif values.is_floating_point():
        values = values.float()
        if not torch.isfinite(values).all():
            raise ArgumentError("image holds NaN or infinite values.")
        if values.min() < -1e-3 or values.max() > 1 + 1e-3:
            raise ArgumentError(
                f"image: floating point values must be from 0 to 1; got {values.min():.3g} to {values.max():.3g}. "
                "A tensor that is preprocessed already goes to the model directly."
            )
    else:
        raise ArgumentTypeError(f"image must be uint8 or floating point; got {values.dtype}.")
    if values.shape[0] == 4:
        values = values[:3] * values[3:] + (1 - values[3:])
    return values.clamp(0, 1).expand(3, -1, -1).contiguous()


@dataclass(frozen=True)
class Preprocess:
    """Resizes, crops and normalises a picture.

    Attributes:
        size: height and width the model wants.
        mean, std: per channel, for values from 0 to 1.
        crop: "center" keeps the aspect ratio and cuts the middle out; "squash" changes the aspect ratio.
        crop_share: share of the shorter side that the centre crop keeps.
        interpolation: "bicubic", "bilinear" or "nearest"; the first two are antialiased.

    Raises:
        ArgumentError: if one of them is none of that.
    """

    size: tuple[int, int]
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    crop: str = "center"
    crop_share: float = 1.0
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        if not is_size(self.size):
            raise ArgumentError(f"size: expected two positive integers (height, width), got {self.size!r}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if not isinstance(values, tuple) or len(values) not in (1, 3) or not all(map(_is_finite, values)):
                raise ArgumentError(f"{name}: expected a tuple of 3 finite numbers, one per channel, got {values!r}")
        if min(self.std) <= 0:
            raise ArgumentError(f"std: expected positive numbers, got {self.std!r}")
        for name, value, choices in (("crop", self.crop, _CROPS), ("interpolation", self.interpolation, _MODES)):
            if value not in choices:
                raise ArgumentError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")
        if not _is_finite(self.crop_share) or self.crop_share <= 0:
            raise ArgumentError(f"crop_share: expected a positive number, got {self.crop_share!r}")

    def __call__(self, image: ImageLike) -> Tensor:
        """Any kind of picture (see `read_image`) to a normalised tensor (3, h, w)."""
        picture = self._fit(read_image(image)[None], self.interpolation)[0].clamp(0, 1)
        return (picture - _channels(self.mean, picture)) / _channels(self.std, picture)

    def mask(self, mask: Tensor) -> Tensor:
        """Sends a mask (..., H, W) through the same geometry, by nearest neighbour, keeping its dtype."""
        if mask.ndim < 2:
            raise ArgumentError(f"mask must be (..., H, W); got shape {tuple(mask.shape)}.")
        fitted = self._fit(mask.reshape(-1, 1, *mask.shape[-2:]).double(), "nearest-exact")
        return fitted.to(mask.dtype).reshape(*mask.shape[:-2], *self.size)

    def denormalize(self, x: Tensor) -> Tensor:
        """A normalised tensor (..., 3, h, w) back to RGB in [0, 1], for display."""
        return (x * _channels(self.std, x) + _channels(self.mean, x)).clamp(0, 1)

    def _fit(self, x: Tensor, mode: str) -> Tensor:
        height, width = x.shape[-2:]
        if (height, width) == self.size and self.crop_share == 1:
            return x
        target = self.size
        if self.crop == "center":
            scale = max(self.size[0] / height, self.size[1] / width) / self.crop_share
            target = (max(self.size[0], round(height * scale)), max(self.size[1], round(width * scale)))
        smooth = mode in ("bicubic", "bilinear")
        mode = mode if smooth else "nearest-exact"
        x = F.interpolate(x, target, mode=mode, antialias=smooth, align_corners=False if smooth else None)
        top, left = (target[0] - self.size[0]) // 2, (target[1] - self.size[1]) // 2
        return x[..., top : top + self.size[0], left : left + self.size[1]]


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _channels(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).view(-1, 1, 1)
