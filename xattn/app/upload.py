"""Reading a picture that somebody uploaded: its size and its kind are checked before a pixel is decoded."""

import warnings
from pathlib import Path

from PIL import Image, UnidentifiedImageError
from torch import Tensor

from xattn.errors import ArgumentError
from xattn.models import read_image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MEGABYTE = 1024 * 1024
MOST_PIXELS = 64_000_000
"""Larger pictures are refused: a small file can hold a huge one."""
LONGEST_SIDE = 4096
"""Larger pictures are made smaller at once, so that a session does not hold hundreds of megabytes."""


def read_upload(path: str | Path, most_bytes: int) -> Tensor:
    """A picture of one of `FORMATS`, told by its content and not by its name, as (3, H, W) in [0, 1].

    Args:
        path: The uploaded file.
        most_bytes: Size above which it is refused.

    Raises:
        ArgumentError: If the file is too large, no picture, or a damaged one; the message is meant for the page.
    """
    path = Path(path)
    size = path.stat().st_size
    if size > most_bytes:
        raise ArgumentError(f"{path.name}: the file has {megabytes(size)}, the limit is {megabytes(most_bytes)}.")
    try:
        with warnings.catch_warnings(), Image.open(path, formats=FORMATS) as image:
            warnings.simplefilter("ignore", UserWarning)  # odd metadata, which no one reads here
            _check_pixels(image, path.name)
            image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
            return read_image(image)
    except (UnidentifiedImageError, Image.DecompressionBombError):
        raise ArgumentError(
            f"{path.name}: this is not a picture that can be read; expected {', '.join(FORMATS)}."
        ) from None
    except (OSError, SyntaxError, ValueError, EOFError, IndexError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"{path.name}: the picture is damaged ({error}).") from None


def megabytes(size: int) -> str:
    """A number of bytes for people; a megabyte has 1024 * 1024 bytes, as gradio counts."""
    return f"{size / MEGABYTE:.3g} MB"


def _check_pixels(image: Image.Image, name: str) -> None:
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise ArgumentError(
            f"{name}: the picture has {width}x{height} pixels, the limit is {MOST_PIXELS // 10**6} million."
        )
