"""How pictures and maps are read before they are drawn: pure numpy, no axes."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
from matplotlib.colors import Normalize

from xattn.errors import ArgumentError, ArgumentTypeError

Array: TypeAlias = npt.NDArray[np.floating[Any]]
Scaling: TypeAlias = Literal["max"] | None
Scale: TypeAlias = Literal["each", "shared"]

CAPTIONS = {
    "each": "Each map has its own colour scale, written below it: colours compare places, not maps.",
    "shared": "All maps share one colour scale.",
}
SEQUENTIAL, DIVERGING = "magma", "RdBu_r"
_FLAT = 1e-6  # a spread below this share of the largest value is rounding, not a pattern


@dataclass(frozen=True)
class Reading:
    """How a map is drawn: its colours, their limits, and what must be said about it.

    Attributes:
        values: The map, divided by its largest magnitude if that was asked for.
        norm: Limits of the colours; symmetric around zero for signed maps.
        cmap: Name of the colour map.
        note: What the colours do not show, "" if nothing.
    """

    values: Array
    norm: Normalize
    cmap: str
    note: str

    @property
    def signed(self) -> bool:
        """Whether the colours diverge around zero."""
        return self.cmap == DIVERGING


def read(relevance: object, *, normalize: Scaling = None, signed: bool | None = None) -> Reading:
    """Decide how a map is drawn, without drawing it.

    Args:
        relevance: (h, w), or (C, h, w) whose channels are averaged.
        normalize: None keeps the raw values, "max" divides by the largest magnitude.
        signed: Diverging colours; None takes them where a value is negative.

    Raises:
        ArgumentError: For another rank, an empty map, or an unknown way to normalise.
    """
    if normalize not in (None, "max"):
        raise ArgumentError(f'normalize: expected None or "max", got {normalize!r}')
    values = as_array(relevance, "relevance")
    if values.ndim == 3:
        values = values.mean(0)
    if values.ndim != 2 or values.size == 0:
        raise ArgumentError(f"relevance: expected a map (h, w) or (C, h, w), got shape {values.shape}")
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    largest = max(abs(low), abs(high))
    if normalize == "max" and largest > 0:
        values, low, high = values / largest, low / largest, high / largest
        largest = 1.0
    diverges = low < 0 if signed is None else signed
    flat = high - low <= _FLAT * largest
    limit = largest or 1.0
    if diverges:
        norm = Normalize(-limit, limit)
    elif flat:
        norm = Normalize(0, 2 * largest or 1.0)
    else:
        norm = Normalize(low, high)
    return Reading(values, norm, DIVERGING if diverges else SEQUENTIAL, _note(values, finite.size, low, high, flat))


def shared_limits(
    maps: Iterable[object], scale: Scale, normalize: Scaling
) -> tuple[tuple[float, float] | None, bool | None]:
    """Ends of the shared colour scale and whether it diverges; (None, None) if each map has its own."""
    if scale not in get_args(Scale):
        raise ArgumentError(f'scale: expected "each" or "shared", got {scale!r}')
    if scale == "each":
        return None, None
    values = [read(relevance, normalize=normalize).values.ravel() for relevance in maps]
    everything = read(np.concatenate(values)[None])
    return (float(everything.norm.vmin or 0.0), float(everything.norm.vmax or 0.0)), everything.signed


def _note(values: Array, finite: int, low: float, high: float, flat: bool) -> str:
    notes = []
    if not finite:
        notes.append("no finite value")
    elif flat:
        notes.append(f"constant map: {high:.4g}")
    elif high < 0:
        notes.append("all negative")
    elif high == 0 and low < 0:
        notes.append("no positive value")
    for count, word in ((int(np.isnan(values).sum()), "NaN"), (int(np.isinf(values).sum()), "infinite")):
        if count:
            notes.append(f"{count} {word}")
    return ", ".join(notes)


def as_picture(image: object) -> Array:
    """(H, W, 3) from 0 to 1, of a (C, H, W) tensor or an (H, W), (H, W, C) array or PIL image with 1 or 3 channels."""
    is_tensor = hasattr(image, "detach")
    values = as_array(image, "image")
    shape = values.shape
    if values.ndim == 2 and not is_tensor:
        values = values[..., None]
    elif values.ndim == 3 and is_tensor:
        values = np.moveaxis(values, 0, -1)
    if values.ndim != 3 or values.shape[-1] not in (1, 3) or values.size == 0:
        expected = "(C, H, W)" if is_tensor else "(H, W, C)"
        raise ArgumentError(f"image: expected {expected} with C = 1 or 3, got shape {shape}")
    if _is_bytes(image):
        values = values / 255
    if not np.isfinite(values).all() or values.min() < -1e-6 or values.max() > 1 + 1e-6:
        warnings.warn("image: values outside 0..1 are clipped; undo the model's normalisation first", stacklevel=3)
    return np.broadcast_to(np.nan_to_num(values).clip(0, 1), (*values.shape[:2], 3))


def _is_bytes(image: object) -> bool:
    """Whether values run to 255: uint8, or a PIL image, which has no dtype."""
    return str(getattr(image, "dtype", "uint8")).endswith("uint8")


def as_array(values: object, argument: str) -> Array:
    """A tensor or array as float64 numbers.

    Raises:
        ArgumentTypeError: If it is neither.
    """
    if hasattr(values, "detach"):  # a tensor, whatever its device and dtype
        values = values.detach().cpu().double().numpy()
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{argument}: expected a tensor or an array, got {type(values).__name__}") from None
