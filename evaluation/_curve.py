"""A score as a function of the removed (or inserted) fraction, and the areas under it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from xattn.errors import ArgumentError
from xattn.evaluation._shapes import check_choice

Convention: TypeAlias = Literal["normalized", "raw", "published_2021", "steps_mean", "steps_trapezoid"]

_PUBLISHED_END = 0.9
_CLOSE = 1e-6


@dataclass(frozen=True)
class Curve:
    """One curve per sample.

    Attributes:
        fractions: (S,) fractions that were really removed, k / n for k of n pixels or tokens.
        values: (B, S) scores; NaN for samples that are `undefined`.
        nominal: (S,) fractions that were asked for.
        undefined: (B,) bool, samples whose relevance was NaN.
        constant: (B,) bool, samples whose relevance has one value only: defined, but ranked by position alone.
        target: (B,) class whose score is shown.
        settings: Everything that names the protocol: order, fill, score, unit, seed and so on.
        higher_is_better: Whether a larger area speaks for the explanation.

    Example:
        >>> curve = Curve(torch.tensor([0.0, 0.5, 1.0]), torch.tensor([[1.0, 0.5, 0.0]]))
        >>> curve.auc()
        tensor([0.5000])
    """

    fractions: Tensor
    values: Tensor
    nominal: Tensor = None  # type: ignore[assignment]  # set from fractions
    undefined: Tensor = None  # type: ignore[assignment]  # set from values
    constant: Tensor = None  # type: ignore[assignment]  # none unless given
    target: Tensor | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    higher_is_better: bool | None = None

    def __post_init__(self) -> None:
        if self.fractions.ndim != 1 or self.values.ndim != 2 or self.values.shape[1] != self.fractions.shape[0]:
            raise ArgumentError(
                f"values: expected (B, S) for fractions (S,), got {tuple(self.values.shape)} for "
                f"{tuple(self.fractions.shape)}"
            )
        defaults = {
            "nominal": self.fractions,
            "undefined": self.values.isnan().any(1),
            "constant": torch.zeros_like(self.values[:, 0], dtype=torch.bool),
        }
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))

    def auc(self, convention: Convention = "normalized") -> Tensor:
        """Area under each curve, (B,).

        Args:
            convention: How to integrate.
                "normalized": trapezoid over the recorded fractions, divided by their span; 0..1 for probabilities.
                "raw": the same, not divided.
                "published_2021": trapezoid over the nominal fractions 0..0.9, not divided (Chefer et al. 2021; their
                    tables give it in per cent).
                "steps_mean": mean over the fractions strictly between 0 and 1.
                "steps_trapezoid": trapezoid over these, not divided.

        Raises:
            ArgumentError: If the convention is unknown or the curve lacks the fractions it needs.
        """
        check_choice("convention", convention, get_args(Convention))
        x, y = self.fractions.to(self.values.dtype), self.values
        inner = (x > 0) & (x < 1)
        if convention == "steps_mean":
            self._need(int(inner.sum()), 1, convention)
            return y[:, inner].mean(1)
        if convention == "published_2021":
            x = self.nominal.to(self.values.dtype)
            self._need_published(x)
            inner = x <= _PUBLISHED_END + _CLOSE
        if convention in ("published_2021", "steps_trapezoid"):
            x, y = x[inner], y[:, inner]
        self._need(len(x), 2, convention)
        area = torch.trapezoid(y, x, dim=1)
        return area / (x[-1] - x[0]) if convention == "normalized" else area

    def _need(self, found: int, needed: int, convention: str) -> None:
        if found < needed:
            raise ArgumentError(
                f"convention: {convention!r} needs at least {needed} fractions in its range, the curve has {found}"
            )

    def _need_published(self, nominal: Tensor) -> None:
        if not all(bool(((nominal - end).abs() < _CLOSE).any()) for end in (0.0, _PUBLISHED_END)):
            raise ArgumentError(
                "convention: 'published_2021' integrates from 0 to 0.9 and needs both, the curve has the fractions "
                f"{[round(f, 4) for f in nominal.tolist()]}"
            )
