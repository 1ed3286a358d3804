"""Image-text models as classifiers: texts are the classes, so that a target is an index as everywhere else."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from xattn._state import undisturbed
from xattn.errors import ArgumentError, ArgumentTypeError, UnsupportedModelError, XattnError

Texts: TypeAlias = Sequence[str] | Tensor | Mapping[str, Tensor]
Tokenizer: TypeAlias = Callable[..., Any]


class ZeroShot(nn.Module):
    """Scores images against texts: logits (B, texts) of a CLIP-like model, usable as `forward_func`.

    logits = scale * cos(image, text) + bias. Texts are encoded once, here; a call runs the image tower alone, so that
    only its attention is explained. Known are models with `get_image_features` and `get_text_features`
    (transformers) or `encode_image` and `encode_text` (open_clip and its kin). They are tested with random weights.

    Args:
        model: The image-text model; it is neither changed nor copied.
        texts: Prompts, for which `tokenizer` is needed; or token ids (texts, length); or the model's text arguments
            by name, as a transformers tokenizer returns them.
        tokenizer: From a list of strings to token ids or to arguments by name. A transformers tokenizer or processor
            is called with `padding=True, return_tensors="pt"`; wrap one that wants other options in a lambda.
        logit_scale: Factor of the cosine; None takes exp(model.logit_scale). A model's own `logit_bias` is added.

    Attributes:
        module: The model.
        classes: The texts, if they were given as strings.
        text_features: (texts, D) of length one.

    Raises:
        ArgumentError: If there is no text, no tokenizer for strings, or no scale.
        ArgumentTypeError: If an argument has a wrong type.
        UnsupportedModelError: If the model has no image and text towers of a known kind.
    """

    text_features: Tensor
    logit_scale: Tensor
    logit_bias: Tensor

    def __init__(
        self,
        model: nn.Module,
        texts: Texts,
        *,
        tokenizer: Tokenizer | None = None,
        logit_scale: float | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise ArgumentTypeError(f"model: expected a module, got {type(model).__name__}")
        self.module = model
        self.training = model.training
        self.classes = () if isinstance(texts, (Tensor, Mapping)) else _as_prompts(texts)
        self._encode_image = _tower(model, "image")
        scale, bias = _scale_and_bias(model, logit_scale)
        self.register_buffer("logit_scale", scale)
        self.register_buffer("logit_bias", bias)
        self.register_buffer("text_features", _encode_texts(model, texts, self.classes, tokenizer))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, texts) of images (B, C, H, W)."""
        features = _features(getattr(self.module, self._encode_image)(images), "image")
        cosines = _unit(features) @ self.text_features.to(features).T
        logits: Tensor = cosines * self.logit_scale.to(features) + self.logit_bias.to(features)
        return logits

    def extra_repr(self) -> str:
        """Number of texts, for the representation of the module."""
        return f"texts={len(self.text_features)}"


@contextmanager
def advising_zero_shot(forward_func: Callable[..., Any], args: Sequence[object]) -> Iterator[None]:
    """A failed call of an image-text model with one argument ends in the advice to give it texts.

    Raises:
        UnsupportedModelError: In place of any other error of such a model.
    """
    try:
        yield
    except (XattnError, AttributeError, TypeError, AssertionError, ValueError, RuntimeError) as error:
        if args or not _has_two_towers(forward_func):
            raise
        raise UnsupportedModelError(
            f"forward_func: {type(forward_func).__name__} compares images with texts and got one of both; wrap it with "
            f"texts as its classes, xattn.ZeroShot(model, texts, tokenizer=...). It failed with: {error}"
        ) from error


def _has_two_towers(model: Callable[..., Any]) -> bool:
    try:
        return isinstance(model, nn.Module) and bool(_tower(model, "image") and _tower(model, "text"))
    except UnsupportedModelError:
        return False


def _as_prompts(texts: object) -> tuple[str, ...]:
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise ArgumentTypeError(
            f"texts: expected a list of strings, token ids (texts, length) or arguments by name, got {texts!r}"
        )
    return tuple(texts)


def _tower(model: nn.Module, kind: str) -> str:
    """Name of the method that encodes images or texts."""
    for name in (f"get_{kind}_features", f"encode_{kind}"):
        if callable(getattr(model, name, None)):
            return name
    raise UnsupportedModelError(
        f"model: expected get_{kind}_features (transformers) or encode_{kind} (open_clip), "
        f"{type(model).__name__} has neither"
    )


def _encode_texts(model: nn.Module, texts: Texts, prompts: tuple[str, ...], tokenizer: Tokenizer | None) -> Tensor:
    tokens: Any = texts if isinstance(texts, (Tensor, Mapping)) else _tokenize(prompts, tokenizer)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    encode = getattr(model, _tower(model, "text"))
    with torch.inference_mode(False), torch.no_grad(), undisturbed(model):
        if isinstance(tokens, Mapping):
            output = encode(**{name: value.to(device) for name, value in tokens.items()})
        else:
            output = encode(_as_ids(tokens).to(device))
        return _unit(_features(output, "text"))


def _unit(features: Tensor) -> Tensor:
    return torch.div(features, features.norm(dim=-1, keepdim=True))


def _tokenize(prompts: tuple[str, ...], tokenizer: Tokenizer | None) -> Any:  # noqa: ANN401
    if not prompts:
        raise ArgumentError("texts: expected at least one")
    if tokenizer is None:
        raise ArgumentError("tokenizer: strings need one; pass it, or token ids (texts, length) as texts")
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # a processor holds one beside its image side
    if hasattr(tokenizer, "model_input_names"):
        return tokenizer(list(prompts), padding=True, return_tensors="pt")
    return tokenizer(list(prompts))


def _as_ids(tokens: object) -> Tensor:
    if not isinstance(tokens, Tensor):
        raise ArgumentTypeError(f"tokenizer: expected token ids or arguments by name, got {type(tokens).__name__}")
    if tokens.ndim != 2 or tokens.is_floating_point() or len(tokens) == 0:
        raise ArgumentError(f"texts: expected token ids (texts, length), got {tokens.dtype} {tuple(tokens.shape)}")
    return tokens


def _features(output: object, kind: str) -> Tensor:
    """(B, D) features: the output itself, or the pooled output that newer transformers wrap it in."""
    features = output if isinstance(output, Tensor) else getattr(output, "pooler_output", None)
    if not isinstance(features, Tensor) or features.ndim != 2:
        raise UnsupportedModelError(f"model: expected {kind} features (B, D), got {type(output).__name__}")
    return features


def _scale_and_bias(model: nn.Module, logit_scale: float | None) -> tuple[Tensor, Tensor]:
    scale, bias = getattr(model, "logit_scale", None), getattr(model, "logit_bias", None)
    added = bias.detach().clone().reshape(()) if isinstance(bias, Tensor) else torch.tensor(0.0)
    if logit_scale is not None:
        if not isinstance(logit_scale, (int, float)) or isinstance(logit_scale, bool) or not logit_scale > 0:
            raise ArgumentError(f"logit_scale: expected a positive number or None, got {logit_scale!r}")
        return torch.tensor(float(logit_scale)), added
    if not isinstance(scale, Tensor):
        raise ArgumentError(f"logit_scale: {type(model).__name__} has none of its own; pass the factor of the cosine")
    return scale.detach().exp().reshape(()), added
