"""What is explained: a model of any kind with its names, its way to read a picture or a text, and its answer."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from xattn._device import find_device
from xattn._state import undisturbed
from xattn.attributions._targets import logits_of
from xattn.attributions.base import check_inputs
from xattn.errors import ArgumentError, ArgumentTypeError, XattnError
from xattn.explanation import ClassProbability
from xattn.markov._numeric import wide_dtype
from xattn.zero_shot import advising_zero_shot

if TYPE_CHECKING:
    from xattn.models.image import ImageLike
    from xattn.models.model import Model
    from xattn.models.text_model import TextModel

Target: TypeAlias = int | str | tuple[int, ...] | None


@dataclass(frozen=True)
class Given:
    """A picture or a text as the model gets it.

    Attributes:
        inputs: The batch of one.
        args: Further arguments of the model, as in captum's `additional_forward_args`.
        shown: The fields of `Explanation` that show it.
    """

    inputs: Tensor
    args: Any = None
    shown: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject(ABC):
    """A forward function with its names."""

    name: str
    forward: Callable[..., Any]
    device: torch.device | None
    model: "Model | TextModel | None" = None

    @abstractmethod
    def read(self, content: Any) -> Given:  # noqa: ANN401
        """What a person gave, as the model gets it."""

    @property
    @abstractmethod
    def resolution(self) -> Literal["patch", "token"]:
        """At which maps are kept."""

    def options(self, method: type) -> dict[str, Any]:
        """What a method's class is given for this model."""
        return {}

    def pixels(self, relevance: Tensor) -> Tensor:
        """One map (H, W) or (N,) of what a method of another library returned for the batch of one."""
        return relevance[0].sum(0)

    def logits(self, given: Given) -> Tensor | None:
        """The model's answer, in evaluation mode and without gradient; None if it gives no class scores."""
        args = () if given.args is None else (given.args,)
        batch = given.inputs
        try:
            with undisturbed(self.forward), torch.no_grad(), advising_zero_shot(self.forward, args):
                logits: Tensor | None = logits_of(self.forward(batch, *args))
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


@dataclass(frozen=True)
class ImageSubject(Subject):
    """A model that reads pictures, or any callable that takes a tensor."""

    model: "Model | None" = None
    resolution = "patch"

    def options(self, method: type) -> dict[str, Any]:
        """The layout, where the model knows its own."""
        known = self.model is not None and self.model.layout is not None and "layout" in signature(method).parameters
        return {"layout": self.model.layout} if self.model is not None and known else {}

    def read(self, content: "ImageLike") -> Given:
        """The picture for display (3, H, W) and the batch of one for the model."""
        if self.model is not None:
            preprocessed = content if isinstance(content, Tensor) and content.ndim == 4 else None
            batch = self.model.preprocess(content)[None] if preprocessed is None else _one(preprocessed)
            shown = self.model.denormalize(batch[0].detach())
        else:
            if not isinstance(content, Tensor):
                raise ArgumentTypeError(
                    "image: expected a tensor (C, H, W) or (1, C, H, W) for a model without preprocessing, got "
                    f"{type(content).__name__}; xattn.load gives models that read pictures"
                )
            batch = _one(content if content.ndim == 4 else content[None])
            shown = batch[0].detach().float()
            if shown.amin() < 0 or shown.amax() > 1:  # normalised in an unknown way: shown from its least to its most
                shown = (shown - shown.amin()) / (shown.amax() - shown.amin())
        source = os.fspath(content) if isinstance(content, (str, os.PathLike)) else ""
        return Given(
            batch if self.device is None else batch.to(self.device), None, {"image": shown.cpu(), "source": source}
        )


@dataclass(frozen=True)
class TextSubject(Subject):
    """A model that reads sentences."""

    model: "TextModel"
    resolution = "token"

    def options(self, method: type) -> dict[str, Any]:
        """Sentences are short, so relevance is propagated in float64, where the device has it: no rounding decides."""
        wide = wide_dtype(self.model.device) == torch.float64 and "precision" in signature(method).parameters
        return {"precision": "float64"} if wide else {}

    def pixels(self, relevance: Tensor) -> Tensor:
        """Embeddings are summed over their width."""
        return relevance[0].sum(-1) if relevance.ndim == 3 else relevance[0]

    def read(self, content: str) -> Given:
        """Token ids and attention mask of one sentence."""
        if not isinstance(content, str):
            raise ArgumentTypeError(f"text: expected one sentence as a string, got {type(content).__name__}")
        ids, mask = self.model.preprocess(content)
        words = self.model.words(content)
        shown = {"image": None, "text": content, "tokens": words.tokens, "words": words.words, "spans": words.spans}
        return Given(ids, mask, shown)


def find_subject(model: object, device: str | torch.device | None) -> Subject:
    """A name, a loaded model or any callable as a subject.

    Raises:
        ArgumentTypeError: If it is none of them.
        ArgumentError: If the device cannot be used.
        WeightsError: If a named model's weights cannot be had.
    """
    from xattn.models.model import Model
    from xattn.models.text_model import TextModel

    wanted = None if device is None else find_device(device)
    if isinstance(model, str):
        from xattn.models import load

        model = load(model, device=wanted or "cpu")
    if isinstance(model, Model):
        return ImageSubject(model.name, model, wanted or model.device, model)
    if isinstance(model, TextModel):
        return TextSubject(model.name, model, model.device, model)
    if not callable(model) or isinstance(model, type):
        raise ArgumentTypeError(f"model: expected a name, a loaded Model, a module or a callable, got {model!r}")
    name = type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__qualname__", str(model))
    return ImageSubject(name, model, wanted)


def _one(batch: Tensor) -> Tensor:
    if batch.ndim != 4 or batch.shape[0] != 1:
        raise ArgumentError(f"image: expected one image (C, H, W) or (1, C, H, W), got shape {tuple(batch.shape)}")
    check_inputs(batch)
    return batch


def predict(logits: Tensor | None, subject: Subject, k: int = 5) -> tuple[ClassProbability, ...]:
    """The k most probable classes; nothing where the output is no vector of class scores."""
    if logits is None or logits.ndim != 2 or logits.shape[1] < 2:
        return ()
    top = logits[0].cpu().double().softmax(-1).topk(min(k, logits.shape[1]))
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
