"""What is explained: a model of any kind with its names, its way to read a picture, and its answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from xattn._state import undisturbed
from xattn.attributions._targets import logits_of
from xattn.attributions.base import check_inputs
from xattn.errors import ArgumentError, ArgumentTypeError, XattnError
from xattn.explanation import ClassProbability

if TYPE_CHECKING:
    from xattn.models.image import ImageLike
    from xattn.models.model import Model

Target: TypeAlias = int | str | tuple[int, ...] | None


@dataclass(frozen=True)
class Subject:
    """What is explained: a forward function with its names and its way to read a picture."""

    name: str
    forward: Callable[..., Any]
    device: torch.device | None
    model: "Model | None" = None

    def read(self, image: "ImageLike") -> tuple[Tensor, Tensor]:
        """The picture for display (3, H, W) and the batch of one for the model."""
        if self.model is not None:
            preprocessed = image if isinstance(image, Tensor) and image.ndim == 4 else None
            batch = self.model.preprocess(image)[None] if preprocessed is None else _one(preprocessed)
            shown = self.model.denormalize(batch[0].detach())
        else:
            if not isinstance(image, Tensor):
                raise ArgumentTypeError(
                    "image: expected a tensor (C, H, W) or (1, C, H, W) for a model without preprocessing, got "
                    f"{type(image).__name__}; xattn.load gives models that read pictures"
                )
            batch = _one(image if image.ndim == 4 else image[None])
            shown = batch[0].detach().float()
            if shown.amin() < 0 or shown.amax() > 1:  # normalised in an unknown way: shown from its least to its most
                shown = (shown - shown.amin()) / (shown.amax() - shown.amin())
        return shown, batch if self.device is None else batch.to(self.device)

    def logits(self, batch: Tensor) -> Tensor | None:
        """The model's answer, in evaluation mode and without gradient; None if it gives no class scores."""
        try:
            with undisturbed(self.forward), torch.no_grad():
                logits: Tensor | None = logits_of(self.forward(batch))
                return logits
        except XattnError:
            raise
        except (AssertionError, ValueError, RuntimeError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ArgumentError(
                f"image: model {self.name!r} failed on an input of shape {tuple(batch.shape)}, {batch.dtype}, on "
                f"{batch.device}: {reason}"
            ) from error

    def class_name(self, index: int | tuple[int, ...]) -> str:
        """Name of a class, or its number."""
        if self.model is not None and isinstance(index, int):
            return self.model.class_name(index)
        return f"class {index}"


def find_subject(model: object, device: str | torch.device | None) -> Subject:
    """A name, a loaded model or any callable as a subject.

    Raises:
        ArgumentTypeError: If it is none of them.
        ArgumentError: If the device cannot be used.
        WeightsError: If a named model's weights cannot be had.
    """
    from xattn.models.model import Model

    wanted = None if device is None else find_device(device)
    if isinstance(model, str):
        from xattn.models import load

        model = load(model, device=wanted or "cpu")
    if isinstance(model, Model):
        return Subject(model.name, model, wanted or model.device, model)
    if not callable(model) or isinstance(model, type):
        raise ArgumentTypeError(f"model: expected a name, a loaded Model, a module or a callable, got {model!r}")
    name = type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__qualname__", str(model))
    return Subject(name, model, wanted)


def find_device(device: str | torch.device) -> torch.device:
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ArgumentError(f"device: {device!r} cannot be used ({str(error).splitlines()[0]})") from None
    return found


def _one(batch: Tensor) -> Tensor:
    if batch.ndim != 4 or batch.shape[0] != 1:
        raise ArgumentError(f"image: expected one image (C, H, W) or (1, C, H, W), got shape {tuple(batch.shape)}")
    check_inputs(batch)
    return batch


def predict(logits: Tensor | None, subject: Subject, k: int = 5) -> tuple[ClassProbability, ...]:
    """The k most probable classes; nothing where the output is no vector of class scores."""
    if logits is None or logits.ndim != 2 or logits.shape[1] < 2:
        return ()
    top = logits[0].double().softmax(-1).topk(min(k, logits.shape[1]))
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return tuple(ClassProbability(subject.class_name(index), index, value) for index, value in pairs)


def find_target(target: Target, logits: Tensor | None, subject: Subject) -> int | tuple[int, ...] | None:
    """The class to explain, the same for every method.

    Raises:
        ArgumentError: If there is no such class.
        ArgumentTypeError: If it is neither a number nor a name.
    """
    classes = logits.shape[1] if logits is not None and logits.ndim == 2 else None
    if target is None:
        return int(logits[0].argmax()) if logits is not None and classes is not None and classes > 1 else None
    if isinstance(target, str):
        if subject.model is None and not target.strip().isdigit():
            raise ArgumentError(f"target: this model has no class names; expected a number, got {target!r}")
        target = int(target) if subject.model is None else subject.model.class_index(target)
    if isinstance(target, tuple):
        return target
    if not isinstance(target, int) or isinstance(target, bool):
        raise ArgumentTypeError(f"target: expected a number or a name of a class, got {type(target).__name__}")
    if classes is not None and not 0 <= target < classes:
        raise ArgumentError(f"target: expected a class in 0..{classes - 1}, got {target}")
    return target
