"""Photographs, and the attention that a model pays to them."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.functional import center_crop, resize, to_tensor

from xattn import AttentionTap
from xattn.models import photos

DATA = Path(os.environ.get("XATTN_DATA") or Path(__file__).parents[2] / "shared" / "data")


def photographs(count: int) -> list[Image.Image]:
    """The first of the folder that XATTN_DATA names; without it, those that come with scikit-image."""
    folder = DATA / "imagenet_1000" / "images"
    if folder.is_dir():
        files = sorted(folder.iterdir())
        return [Image.open(file).convert("RGB") for file in files[:: max(1, len(files) // count)][:count]]
    from skimage import data

    pictures = (data.astronaut(), data.chelsea(), data.coffee(), data.rocket())
    return [Image.fromarray(picture) for picture in pictures[:count]]


def attention(model: nn.Module, images: Sequence[Image.Image], size: int) -> list[Tensor]:
    """(images, heads, N, N) of each layer of `photos` or its backbone, on square crops of `size` pixels."""
    model.set_input_size(img_size=size)
    with torch.no_grad(), AttentionTap() as tap:
        model(prepared(images, size))
    return [record.attention for record in tap.records]


def prepared(images: Sequence[Image.Image], size: int) -> Tensor:
    """(images, 3, size, size): the middle squares, normalised as for `photos`."""
    squares = [resize(center_crop(to_tensor(image), min(image.size)), [size, size], antialias=True) for image in images]
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in (photos.TRANSFORM.mean, photos.TRANSFORM.std))
    return (torch.stack(squares) - mean) / deviation
