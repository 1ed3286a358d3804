"""The front door: a model, a picture or a sentence, and how every method explains the prediction."""

import inspect
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from xattn._layers import Layers
from xattn._subject import Given, Subject, Target, find_subject, find_target, predict
from xattn._versions import versions
from xattn.attributions import TransformerAttribution, find_method
from xattn.attributions import methods as registered
from xattn.attributions._shared import SharedPasses
from xattn.errors import ArgumentError, ArgumentTypeError, CaptureError, LayoutError, UnsupportedModelError
from xattn.explanation import ClassProbability as ClassProbability
from xattn.explanation import Explanation as Explanation

if TYPE_CHECKING:
    from xattn.models.image import ImageLike
    from xattn.models.model import Model
    from xattn.models.text_model import TextModel

MethodLike: TypeAlias = str | type[TransformerAttribution] | Any

_REFUSALS = (UnsupportedModelError, LayoutError, CaptureError)


def explain(
    model: "str | Model | TextModel | Callable[..., Any]",
    image: "ImageLike",
    methods: str | Iterable[MethodLike] | Mapping[str, MethodLike] | None = None,
    target: Target = None,
    *,
    layers: Layers | None = None,
    device: str | torch.device | None = None,
    progress: Callable[[str], object] | None = None,
    skip_refused: bool | None = None,
) -> Explanation:
    """Explain one prediction by one or several methods.

    Args:
        model: A name for `load` ("demo", "photos", "text", "timm:..."), a loaded `Model` or `TextModel`, or any module
            or callable that takes a batch of images.
        image: With a name or a `Model`: a file, PIL image, array or tensor (C, H, W), which is preprocessed as the
            model wants it; a batch of one, (1, C, H, W), counts as preprocessed. With any other callable: a tensor
            (C, H, W) or (1, C, H, W) as the callable takes it. With a text model: one sentence.
        methods: Names (spelled freely: "TokenRank", "n-bounce"), classes, or attribution objects of your own
            configuration; one, several, or a mapping with names of your own. None takes every registered method, and
            those that refuse this model are reported in `Explanation.skipped`; a method asked for by name raises.
        target: Number or name of the class to explain; None is the predicted class. One for all methods.
        layers: Given to the methods that choose layers ("all", an index, several); the others keep their own.
        device: Where to run. A model given by name is moved there; another one has to be there already.
        progress: Called with each method's name before it runs.
        skip_refused: Whether methods that refuse this model are reported in `Explanation.skipped` rather than raise;
            None does so if `methods` is None. If all of them refuse, the first reason is raised.

    Returns:
        The maps, and everything needed to read, show and repeat them.

    Raises:
        ArgumentError: An argument has a wrong value.
        ArgumentTypeError: An argument has a wrong type.
        UnsupportedModelError: A method that was asked for does not apply to this model.
        WeightsError: The model's weights cannot be had.

    Example:
        >>> from xattn import explain
        >>> from xattn.models.scenes import Scenes
        >>> explanation = explain("demo", Scenes("test", 1)[0].image, ["tokenrank", "n_bounce"])
        >>> {name: tuple(relevance.shape) for name, relevance in explanation.maps.items()}
        {'tokenrank': (12, 12), 'n_bounce': (12, 12)}
    """
    chosen = choose_methods(methods)
    skip = methods is None if skip_refused is None else skip_refused
    subject = find_subject(model, device)
    given = subject.read(image)
    built = _build(chosen, subject, layers)
    passes = SharedPasses(built, given.inputs, given.args)
    logits = passes.logits()
    logits = subject.logits(given) if logits is None else logits
    index = find_target(target, logits, subject)

    maps, configurations, seconds, skipped, warned = {}, {}, {}, {}, {}
    reasons: list[Exception] = []
    for name, method in built.items():
        if progress is not None:
            progress(name)
        start = time.perf_counter() - passes.seconds  # shared passes are divided among those who share them
        caught: list[str] = []
        try:
            if skip and logits is None and getattr(method, "is_class_specific", False):
                raise UnsupportedModelError("explains a class, and the model gives no class scores")
            with _warnings_into(caught):
                relevance = _relevance(name, method, passes, subject, given, index)
        except _REFUSALS as error:
            if not skip:
                raise
            skipped[name] = str(error)
            reasons.append(error)
            continue
        maps[name] = relevance.detach().cpu()
        seconds[name] = time.perf_counter() - passes.seconds - start + passes.share(name)
        if caught:
            warned[name] = caught
        configurations[name] = configuration(method)
    if not maps:
        raise reasons[0]
    return Explanation(
        input=given.inputs[0].detach().cpu(),
        maps=maps,
        prediction=predict(logits, subject),
        target=index,
        target_name="" if index is None else subject.class_name(index),
        methods=configurations,
        model=subject.name,
        seconds=seconds,
        skipped=skipped,
        warnings=warned,
        versions=versions(),
        **given.shown,
    )


def choose_methods(methods: str | Iterable[MethodLike] | Mapping[str, MethodLike] | None) -> dict[str, MethodLike]:
    """Name to class or attribution object, in the order asked for; the second of a name becomes "name #2".

    Raises:
        ArgumentError: For an unknown name, or if nothing was asked for.
        ArgumentTypeError: For something that is no method.
    """
    if methods is None:
        return dict(registered)
    if isinstance(methods, Mapping):
        named = [(str(name), method) for name, method in methods.items()]
    else:
        single = isinstance(methods, (str, type)) or hasattr(methods, "attribute")
        if not single and not isinstance(methods, Iterable):
            raise ArgumentTypeError(f"methods: expected names, classes or attribution objects, got {methods!r}")
        named = [("", method) for method in ([methods] if single else methods)]
    chosen: dict[str, MethodLike] = {}
    for given, method in named:
        if isinstance(method, str):
            method = find_method(method)
        if not (isinstance(method, type) and issubclass(method, TransformerAttribution)) and (
            isinstance(method, type) or not hasattr(method, "attribute")
        ):
            raise ArgumentTypeError(
                f"methods: expected names, classes of this library, or objects with .attribute; got {method!r}"
            )
        name = given or str(getattr(method, "name", type(method).__name__))
        count = sum(key == name or key.startswith(f"{name} #") for key in chosen)
        chosen[f"{name} #{count + 1}" if count else name] = method
    if not chosen:
        raise ArgumentError("methods: expected at least one method, got none")
    return chosen


def configuration(method: object) -> dict[str, Any]:
    """Class and constructor arguments of an attribution object, as JSON would give them back."""
    facts: dict[str, Any] = {"class": f"{type(method).__module__}.{type(method).__qualname__}"}
    for name in inspect.signature(type(method)).parameters:
        if name != "forward_func" and hasattr(method, name):
            facts[name] = _plain(getattr(method, name))
    return facts


def _plain(value: object) -> Any:  # noqa: ANN401
    """A value in the types of JSON."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: _plain(getattr(value, part.name)) for part in fields(value)}
    if hasattr(value, "attribute") and not isinstance(value, type):
        return configuration(value)
    return getattr(value, "__qualname__", type(value).__qualname__)


def _build(chosen: Mapping[str, MethodLike], subject: Subject, layers: Layers | None) -> dict[str, Any]:
    """Classes become attribution objects; what is one already stays as it is."""
    built: dict[str, Any] = {}
    used = layers is None
    for name, method in chosen.items():
        if not isinstance(method, type):
            built[name] = method
            continue
        options = subject.options(method)
        if layers is not None and "layers" in inspect.signature(method).parameters:
            options["layers"] = layers
            used = True
        built[name] = method(subject.forward, **options)
    if not used:
        raise ArgumentError(f"layers: none of {', '.join(chosen)} chooses layers; leave it out")
    return built


def _relevance(
    name: str,
    method: Any,  # noqa: ANN401
    passes: SharedPasses,
    subject: Subject,
    given: Given,
    index: int | tuple[int, ...] | None,
) -> Tensor:
    """(h, w) of patches or (N,) of word pieces, or (H, W) of pixels from a method of another library."""
    if isinstance(method, TransformerAttribution):
        return passes.attribute(name, method, index, subject.resolution)[0]
    inputs = given.inputs.detach().clone()
    args = {} if given.args is None else {"additional_forward_args": given.args}
    if inputs.is_floating_point():
        inputs.requires_grad_()
    return subject.pixels(method.attribute(inputs, target=index, **args))


@contextmanager
def _warnings_into(caught: list[str]) -> Iterator[None]:
    """Note what is warned of, and pass it on."""
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        yield
    for entry in recorded:
        if issubclass(entry.category, UserWarning):
            caught.append(str(entry.message))
        warnings.warn_explicit(entry.message, entry.category, entry.filename, entry.lineno)


class _CallableModule(ModuleType):
    """`xattn.explain` is this module or the function in it, whichever was bound last: calling works for both."""

    def __call__(self, *args: Any, **kwargs: Any) -> Explanation:  # noqa: ANN401
        return explain(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
