"""Questions about the maps on the page: what each layer would answer, and whether the maps find what decides."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from xattn.attributions import NBounceAttention, PredictionMap
from xattn.evaluation import perturbation
from xattn.evaluation._ranking import Order
from xattn.layout import TokenLayout
from xattn.models.model import Model

FRACTIONS = tuple(step / 10 for step in range(11))
ORDERS: tuple[Order, ...] = ("positive", "negative")


@dataclass(frozen=True)
class MapCurve:
    """What is left of the class's probability as patches are removed in the order of one map.

    Attributes:
        method: Whose map it was.
        order: "positive" removes the most relevant patches first, "negative" the least relevant.
        fractions: (S,) share of the patches removed.
        values: (S,) probability.
        area: Under the curve, from 0 to 1.
    """

    method: str
    order: Order
    fractions: Tensor
    values: Tensor
    area: float


def prediction_maps(model: Model, inputs: Tensor, target: int, layers: int, layout: TokenLayout) -> dict[str, Tensor]:
    """Probability of the class at each patch (h, w) if the answer were read there, after each layer.

    Raises:
        UnsupportedModelError: If the model's head cannot be asked at one token.
    """
    return {
        f"layer {layer}": PredictionMap(model, layer=layer, layout=layout)
        .attribute(inputs, target, resolution="patch")[0]
        .cpu()
        for layer in range(layers)
    }


def attention_maps(model: Model, inputs: Tensor, layout: TokenLayout) -> Tensor:
    """(layers, h, w) mean attention of the heads, from where the answer is read to the patches."""
    method = NBounceAttention(model, n=1, tokens="all", layers="all", layout=layout)
    return method.maps(inputs)[0].mean(1).cpu()


def curve(model: Model, inputs: Tensor, relevance: Tensor, target: int, method: str, order: Order) -> MapCurve:
    """One map's curve; `relevance` is (h, w)."""
    found = perturbation(
        model, inputs, relevance[None].to(inputs.device), target, order=order, fractions=FRACTIONS, unit="patch"
    )
    return MapCurve(method, order, found.fractions.cpu(), found.values[0].cpu(), float(found.auc()[0]))


def questions(maps: Mapping[str, Tensor]) -> Iterator[tuple[str, Order]]:
    """Every map with every order."""
    return ((name, order) for name in maps for order in ORDERS)


def area_rows(curves: Sequence[MapCurve]) -> list[tuple[str, float, float]]:
    """Method and its two areas, positive and negative; NaN where one is still missing."""
    areas: dict[str, dict[str, float]] = {}
    for one in curves:
        areas.setdefault(one.method, {})[one.order] = one.area
    missing = float("nan")
    return [(name, one.get("positive", missing), one.get("negative", missing)) for name, one in areas.items()]
