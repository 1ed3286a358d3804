"""Models by name: `load("demo")`, `load("photos")`, `load("text")`, `load("timm:NAME")`, `load("hf:NAME")` and so on.

timm, transformers and torchvision are imported when a model of theirs is loaded, not before.
"""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Literal, overload

import torch

from xattn._device import find_device
from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.models.catalogue import Entry, catalogue
from xattn.models.image import ImageLike, Preprocess, read_image
from xattn.models.model import Model, Prediction
from xattn.models.text_model import TextModel

__all__ = ["Entry", "ImageLike", "Model", "Prediction", "Preprocess", "TextModel", "catalogue", "load", "read_image"]


@overload
def load(  # type: ignore[overload-overlap]  # a name that is no literal is taken for that of an image model
    name: Literal["text"], *, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> TextModel: ...
@overload
def load(name: str, *, device: str | torch.device = "cpu", dtype: torch.dtype | None = None) -> Model: ...
def load(name: str, *, device: str | torch.device = "cpu", dtype: torch.dtype | None = None) -> Model | TextModel:
    """Loads a model in evaluation mode.

    Args:
        name: "demo", "photos", "text", "timm:NAME", "hf:NAME" or "torchvision:NAME"; `catalogue()` says what each is.
        device: where to put it.
        dtype: floating point type of the parameters; float32 if not given.

    Raises:
        ArgumentError: there is no such model, and the message lists near names; or no such device.
        WeightsError: the weights are not here and cannot be had, or are not the expected file.
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"name must be a string such as 'demo'; got {type(name).__name__}.")
    if dtype is not None and not dtype.is_floating_point:
        raise ArgumentError(f"dtype must be a floating point type; got {dtype}.")
    device = find_device(device)
    source, colon, rest = name.partition(":")
    model: Model | TextModel = _hub(source)(rest) if colon and rest and source in _HUBS else _own(name)
    model.module.to(device=device, dtype=dtype).eval()
    return model


_HUBS = ("timm", "hf", "torchvision")


def _hub(source: str) -> Callable[[str], Model]:
    from xattn.models import hub

    return {"timm": hub.load_timm, "hf": hub.load_huggingface, "torchvision": hub.load_torchvision}[source]


def _own(name: str) -> Model | TextModel:
    if name == "demo":
        from xattn.models import demo

        return Model(name, demo.load(), demo.TRANSFORM, demo.CLASSES, demo.LAYOUT, demo.DESCRIPTION)
    if name == "photos":
        from xattn.models import photos

        classes = tuple(photos.record()["classes"])
        return Model(name, photos.build(), photos.TRANSFORM, classes, photos.LAYOUT, photos.DESCRIPTION)
    if name == "text":
        from xattn.models import text

        return TextModel(name, text.build(), text.tokenizer(), text.CLASSES, description=text.DESCRIPTION)
    choices = [entry.name for entry in catalogue()]
    near = get_close_matches(name, choices, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ArgumentError(f"there is no model {name!r}; choose from {', '.join(choices)}.{hint}")
