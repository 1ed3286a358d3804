"""Published evaluations by name: which protocols with which options, and which class is explained."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from xattn.errors import ArgumentError
from xattn.evaluation import _judges_mask as _judges_mask
from xattn.evaluation import _judges_model as _judges_model
from xattn.evaluation import _judges_sanity as _judges_sanity
from xattn.evaluation import _judges_text as _judges_text
from xattn.evaluation._labels import Explained
from xattn.evaluation.judges import JUDGES as JUDGES
from xattn.evaluation.judges import Judge


@dataclass(frozen=True)
class Preset:
    """One evaluation.

    Attributes:
        name: On the command line.
        protocols: With their options.
        target: Class that is explained.
        about: One line for tables.
    """

    name: str
    protocols: tuple[Judge, ...]
    target: Explained
    about: str


_ORDERS = ("positive", "negative")
_MASKING = JUDGES["token-masking"].configured(orders=_ORDERS)

_ALL = (
    Preset(
        "perturbation-2021",
        (JUDGES["perturbation-2021"],),
        "predicted",
        "Chefer et al. 2021: accuracy as pixels turn black, fractions 0 to 0.9; needs labels (ImageNet validation)",
    ),
    Preset(
        "segmentation-2021",
        (JUDGES["segmentation"].configured(threshold="mean", interpolation="bilinear"),),
        "predicted",
        "Chefer et al. 2021: maps cut at their mean against masks (ImageNet-Segmentation)",
    ),
    Preset(
        "masking",
        (_MASKING, replace(_MASKING.configured(score="accuracy"), name="token-masking-accuracy")),
        "predicted",
        "tokens filled, dropped or hidden from attention, in both orders; probability and accuracy",
    ),
    Preset(
        "insertion-deletion-2018",
        (JUDGES["insertion-deletion"],),
        "predicted",
        "Petsiuk et al. 2018 (RISE): pixels revealed on a blurred image, and pixels turned black; probability",
    ),
    Preset(
        "eraser-2020",
        (JUDGES["eraser"],),
        "predicted",
        "DeYoung et al. 2020 (ERASER): comprehensiveness and sufficiency of sentences, at 1, 5, 10, 20 and 50 %",
    ),
)

PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _ALL})
"""Every preset by name."""


def find_preset(name: str) -> Preset:
    """A preset by its name.

    Raises:
        ArgumentError: If there is none; the message lists them.
    """
    if name not in PRESETS:
        raise ArgumentError(f"preset: expected one of {', '.join(PRESETS)}; got {name!r}")
    return PRESETS[name]
