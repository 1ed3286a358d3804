"""Any metric of quantus by name, through its public interface, with its limits said in plain words."""

import importlib.metadata
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor, nn

from xattn._state import undisturbed
from xattn.attributions._targets import Target
from xattn.errors import ArgumentError
from xattn.evaluation._scores import batched_logits, call_logits, resolve_class
from xattn.evaluation._shapes import check_choice, check_images, mask_of, pixel_map

Explain: TypeAlias = Callable[[Tensor, Tensor], Tensor]
OnError: TypeAlias = Literal["raise", "nan"]

# What quantus says, and what it means.
_KNOWN = (
    ("trapz", "it integrates with numpy.trapz, which numpy no longer has; use perturbation(...).auc() instead"),
    ("all be less than zero", "it refuses maps without positive values; the metrics of xattn accept them"),
    ("out of bounds", "it counts C*H*W positions where an image has H*W pixels; use xattn's road(...) instead"),
    ("didn't cause change in input", "the baseline equals the image here; pass another perturb_baseline"),
    ("must be smaller than input size", "its default does not fit this image size; pass the option it names"),
)
_FAILURES = (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError, ArithmeticError)


@dataclass(frozen=True)
class QuantusResult:
    """Values of a quantus metric.

    Attributes:
        values: (B,), or (B, S) where the metric gives several numbers per sample; NaN where it failed.
        errors: What went wrong, by sample, with `on_error="nan"`.
        settings: Name, version of quantus, `abs` and `normalise` as the metric applied them, and the given options.
    """

    values: Tensor
    errors: Mapping[int, str] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)


def quantus_metric(
    name: str,
    forward: Callable[..., Any],
    inputs: Tensor,
    relevance: Tensor | None = None,
    target: Target = None,
    *,
    mask: Tensor | None = None,
    explain: Explain | None = None,
    options: Mapping[str, object] | None = None,
    on_error: OnError = "raise",
    seed: int = 0,
) -> QuantusResult:
    """Run the class `quantus.<name>` on each sample by itself.

    Args:
        name: Class name, for example "FaithfulnessCorrelation".
        forward: Module or callable from images to logits; its state and random numbers are as before afterwards.
        inputs: (B, C, H, W).
        relevance: Any usual shape; handed on as (1, 1, H, W). None for metrics that explain by themselves.
        target: int, list or tensor (B,); None is the predicted class.
        mask: (B, H, W) or (B, 1, H, W) for localisation metrics.
        explain: (inputs, target) -> relevance, for metrics that need explanations of other inputs.
        options: Arguments of the metric's constructor.
        on_error: "raise", or "nan" to go on with the next sample and report the reason.
        seed: Of numpy's and torch's random numbers, for each sample.

    Raises:
        ArgumentError: If quantus has no such metric, or it fails on a sample and `on_error` is "raise".
    """
    check_images(inputs)
    check_choice("on_error", on_error, get_args(OnError))
    options = dict(options or {})
    metric = _make(name, options)
    maps = None if relevance is None else pixel_map(relevance, inputs)[:, None].to(inputs.dtype).cpu().numpy()
    masks = None if mask is None else mask_of(mask)[:, None].cpu().numpy()
    model = _Logits(forward)
    rows: dict[int, Any] = {}
    errors: dict[int, str] = {}
    with undisturbed(forward):
        model.eval()
        with torch.no_grad():
            index = resolve_class(batched_logits(forward, inputs, 32), target)
        for i in range(len(inputs)):
            try:
                with _seeded(seed):
                    rows[i] = _number(
                        metric(
                            model=model,
                            x_batch=inputs[i : i + 1].detach().clone().cpu().numpy(),
                            y_batch=index[i : i + 1].cpu().numpy(),
                            a_batch=None if maps is None else maps[i : i + 1],
                            s_batch=None if masks is None else masks[i : i + 1],
                            explain_func=None if explain is None else _as_quantus_calls(explain, inputs),
                            device=str(inputs.device),
                        )
                    )
            except _FAILURES as error:
                errors[i] = _explained(name, error)
                if on_error == "raise":
                    raise ArgumentError(f"name: sample {i}: {errors[i]}") from error
    settings = {"name": name, "quantus": importlib.metadata.version("quantus"), **options}
    settings |= {key: getattr(metric, key) for key in ("abs", "normalise") if hasattr(metric, key)}
    return QuantusResult(_table(rows, len(inputs)), MappingProxyType(errors), MappingProxyType(settings))


class _Logits(nn.Module):
    """quantus wants a module that returns a tensor."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.function = forward

    def forward(self, x: Tensor) -> Tensor:
        return call_logits(self.function, x)


def _make(name: str, options: Mapping[str, object]) -> Any:  # noqa: ANN401
    import quantus  # slow to import

    metric = getattr(quantus, name, None)
    if not (isinstance(metric, type) and issubclass(metric, quantus.Metric)):
        known = sorted(cls.__name__ for group in quantus.AVAILABLE_METRICS.values() for cls in group.values())
        raise ArgumentError(f"name: quantus has no metric {name!r}; it has {', '.join(known)}")
    try:
        return metric(**{"disable_warnings": True, "display_progressbar": False, **options})
    except _FAILURES as error:
        raise ArgumentError(f"options: {_explained(name, error)}") from error


def _as_quantus_calls(explain: Explain, like: Tensor) -> Callable[..., Any]:
    def call(model: nn.Module, inputs: Any, targets: Any, **_: object) -> Any:  # noqa: ANN401
        x = torch.as_tensor(inputs).to(like)
        maps = explain(x, torch.as_tensor(targets, device=like.device).long())
        return pixel_map(maps, x)[:, None].cpu().numpy()

    return call


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Global random state, which quantus draws from, set and restored; its warnings are not the caller's."""
    state = np.random.get_state()
    try:
        np.random.seed(seed)
        torch.manual_seed(seed)  # restored by `undisturbed`
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        np.random.set_state(state)


def _number(result: object) -> "np.ndarray[Any, np.dtype[np.float64]]":
    if isinstance(result, Mapping):
        raise TypeError(f"it returns a dictionary with {list(result)}; call quantus itself for this metric")
    return np.asarray(result, dtype=np.float64).reshape(-1)


def _table(rows: Mapping[int, Any], batch: int) -> Tensor:
    """(B,) or (B, S), NaN where a row is missing."""
    width = max((len(row) for row in rows.values()), default=1)
    values = torch.full((batch, width), torch.nan, dtype=torch.float64)
    for i, row in rows.items():
        values[i, : len(row)] = torch.from_numpy(row)
    return values.squeeze(1) if width == 1 else values


def _explained(name: str, error: BaseException) -> str:
    said = f"{type(error).__name__}: {error}"
    meaning = next((text for sign, text in _KNOWN if sign in str(error)), "")
    version = importlib.metadata.version("quantus")
    return f"quantus {version} {name} failed{': ' + meaning if meaning else ''} ({said})"
