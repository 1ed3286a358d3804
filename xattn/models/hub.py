"""Models of timm, transformers and torchvision by name, with their published weights.

Whatever is in the local caches is used without a network. Without either there is one error, at once.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from torch import nn

from xattn.errors import ArgumentError, UnsupportedModelError, WeightsError
from xattn.models.image import Preprocess
from xattn.models.model import Model

_YOURSELF = "Or build the module yourself, from weights you have, and pass it to the method in place of the model."


def load_timm(name: str) -> Model:
    """A timm model with pretrained weights; `name` as in `timm.create_model`, with or without a tag."""
    import timm
    from timm.data import ImageNetInfo, infer_imagenet_subset, resolve_data_config

    full = f"timm:{name}"
    if not timm.is_model(name):
        raise _unknown(full, name.partition(".")[0], timm.list_models())
    tags = timm.list_pretrained(f"{name.partition('.')[0]}.*")
    if not tags:
        raise WeightsError(f"model {full!r}: timm publishes no weights for it. {_YOURSELF}")
    if "." in name and name not in tags:
        raise ArgumentError(f"model {full!r}: timm has no such tag; there are {', '.join(tags)}.")
    module = _pretrained(full, lambda: timm.create_model(name, pretrained=True))
    config = resolve_data_config(pretrained_cfg=module.pretrained_cfg)
    transform = Preprocess(
        size=(config["input_size"][1], config["input_size"][2]),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        crop="squash" if config["crop_mode"] == "squash" else "center",
        crop_share=config["crop_pct"],
        interpolation=_interpolation(config["interpolation"]),
    )
    subset, classes = infer_imagenet_subset(module), ()
    if subset is not None and module.num_classes:
        info = ImageNetInfo(subset)
        classes = tuple(info.index_to_description(i).split(",")[0] for i in range(info.num_classes()))
    return Model(full, module, transform, classes, description=f"timm {module.pretrained_cfg['architecture']}")


def load_huggingface(name: str) -> Model:
    """An image classifier of the Hugging Face hub, or of a local folder."""
    from transformers import (
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
        AutoConfig,
        AutoImageProcessor,
        AutoModelForImageClassification,
    )

    full = f"hf:{name}"
    config = _pretrained(full, lambda: AutoConfig.from_pretrained(name))
    if type(config) not in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        raise UnsupportedModelError(
            f"model {full!r}: load makes image classifiers, and {config.model_type!r} is none. {_YOURSELF}"
        )
    module = _pretrained(full, lambda: AutoModelForImageClassification.from_pretrained(name))
    processor = _pretrained(full, lambda: AutoImageProcessor.from_pretrained(name))
    classes = tuple(config.id2label[i] for i in range(config.num_labels))
    return Model(full, module, _from_processor(processor), classes, description=f"transformers {config.model_type}")


def load_torchvision(name: str) -> Model:
    """A torchvision classifier with its default weights."""
    import torchvision

    full = f"torchvision:{name}"
    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        raise _unknown(full, name, names)
    weights = torchvision.models.get_model_weights(name).DEFAULT
    module = _pretrained(full, lambda: weights_model(name, weights))
    preset = weights.transforms()
    side, resize = preset.crop_size[0], preset.resize_size[0]
    transform = Preprocess(
        size=(side, side),
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        crop_share=side / resize,
        interpolation=preset.interpolation.value,
    )
    return Model(full, module, transform, tuple(weights.meta["categories"]), description=f"torchvision {name}")


def weights_model(name: str, weights: Any) -> nn.Module:  # noqa: ANN401
    """Builds a torchvision model; its download has no progress bar."""
    import torchvision

    module: nn.Module = torchvision.models.get_model(name, weights=weights, progress=False)
    return module


def _pretrained(full: str, build: Callable[[], Any]) -> Any:  # noqa: ANN401
    """Runs `build`, and turns every way of not getting weights into one error."""
    local = os.path.isdir(full.partition(":")[2])
    try:
        if full.startswith("torchvision:") or local:
            return build()
        with _no_retries():
            return build()
    except (OSError, RuntimeError, ValueError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if local:
            raise WeightsError(
                f"model {full!r}: expected a folder with config.json, preprocessor_config.json and weights, as "
                f"save_pretrained writes it ({reason.strip()[:160]})"
            ) from None
        raise WeightsError(
            f"model {full!r}: its weights could not be had, neither from the cache nor from the network "
            f"({reason.strip()[:160]}). Load it once with a network connection, or copy its cache. {_YOURSELF}"
        ) from None


@contextmanager
def _no_retries() -> Iterator[None]:
    """Uses only the cache of the Hugging Face hub where the hub cannot be reached, in place of a minute of retries."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not _reachable(constants.ENDPOINT)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _reachable(url: str, timeout: float = 4) -> bool:
    from huggingface_hub import get_session

    try:
        get_session().head(url, timeout=timeout)
    except Exception:  # noqa: BLE001  # requests' or httpx's errors, by the version of huggingface_hub
        return False
    return True


def _unknown(full: str, name: str, names: Sequence[str]) -> ArgumentError:
    near = get_close_matches(name, names, 5, 0.5)
    hint = f"Near: {', '.join(near)}." if near else f"There are {len(names)}, e.g. {', '.join(list(names)[:5])}."
    return ArgumentError(f"model {full!r}: {full.partition(':')[0]} has no such model. {hint}")


def _from_processor(processor: Any) -> Preprocess:  # noqa: ANN401
    """The preprocessing that a transformers image processor describes."""
    size: dict[str, int] = dict(processor.size)
    crop: dict[str, int] = dict(getattr(processor, "crop_size", None) or {})
    cropped = bool(getattr(processor, "do_center_crop", False) and crop)
    short = size.get("shortest_edge") or size.get("height") or crop.get("height") or 224
    target = (crop["height"], crop["width"]) if cropped else (size.get("height", short), size.get("width", short))
    normalised = getattr(processor, "do_normalize", True)
    return Preprocess(
        size=(int(target[0]), int(target[1])),
        mean=tuple(processor.image_mean) if normalised else (0.0, 0.0, 0.0),
        std=tuple(processor.image_std) if normalised else (1.0, 1.0, 1.0),
        crop="center" if cropped or "shortest_edge" in size else "squash",
        crop_share=float(target[0]) / float(short) if cropped else 1.0,
        interpolation={0: "nearest", 2: "bilinear", 3: "bicubic"}.get(int(processor.resample or 2), "bilinear"),
    )


def _interpolation(name: str) -> str:
    return name if name in ("bicubic", "bilinear", "nearest") else "bicubic"
