"""Linear probing: which patches should a classifier listen to?

Patch features are averaged with the weights that a method gives to patches, and a logistic regression is fitted on the
averages. If weighting by a method raises accuracy over equal weights, the method finds the patches that matter.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from xattn._state import find_modules
from xattn.attributions import TransformerAttribution
from xattn.attributions._forward import run_forward
from xattn.attributions._head import LayerTokens
from xattn.errors import ArgumentError
from xattn.evaluation._plan import build_method
from xattn.evaluation._probe import Features, Labels, check_labels, judge
from xattn.evaluation._usable import picture_model, usable_batches
from xattn.evaluation.datasets import Dataset
from xattn.evaluation.stats import Comparison, Interval, compare_all, mean_interval
from xattn.explain import MethodLike, choose_methods
from xattn.markov._numeric import precise

if TYPE_CHECKING:
    from xattn.layout import TokenLayout
    from xattn.models.model import Model

Weighting: TypeAlias = Callable[[Tensor], Tensor]

UNIFORM, CLASS_TOKEN = "uniform", "class_token"
WEIGHTINGS = ("tokenrank", "column_sum", UNIFORM, CLASS_TOKEN)
STRENGTHS = (0.0001, 0.001, 0.01, 0.1, 1.0)


@dataclass(frozen=True, eq=False)
class Probing:
    """Accuracy of one probe for each weighting, on the same images.

    Attributes:
        accuracy: Weighting to its accuracy with a bootstrap interval over images.
        comparisons: Each other weighting against the reference, paired, after Holm's correction.
        correct: Weighting to (n,) whether each image was classified correctly, while it was not in the fit.
        strengths: Weighting to the inverse regularisation C of each fit.
        samples: Names of the n images.
        classes: Labels that were told apart.
        skipped: Name to reason of images that could not be used.
        reference: Weighting that the others are compared with.
    """

    accuracy: Mapping[str, Interval]
    comparisons: tuple[Comparison, ...]
    correct: Mapping[str, NDArray[np.bool_]]
    strengths: Mapping[str, tuple[float, ...]]
    samples: tuple[str, ...]
    classes: tuple[str, ...]
    skipped: Mapping[str, str]
    reference: str


def linear_probing(
    model: "str | Model",
    dataset: Dataset,
    weightings: Sequence[str | MethodLike] = WEIGHTINGS,
    *,
    test: Dataset | None = None,
    reference: str = UNIFORM,
    layer: int = -1,
    strength: float | Sequence[float] = STRENGTHS,
    folds: int = 5,
    seed: int = 0,
    batch_size: int = 32,
    on_broken: str = "skip",
) -> Probing:
    """Fit and judge one logistic regression per weighting of patch features.

    Features are those of `pooled_features`, standardised on the images of the fit. Classes are the data set's own; the
    model need not know them.

    Args:
        model: A name for `load`, or a loaded `Model`.
        dataset: Images with labels.
        weightings: Names of methods, or configured ones, whose positive part weighs patches; "uniform" weighs all
            alike, "class_token" takes the class token in place of patches.
        test: Images to judge on, with the fit on all of `dataset`. None cross-validates: every image is judged once,
            by a fit on the other folds.
        reference: Weighting that the others are compared with; it takes part in any case.
        layer: After which layer features are taken.
        strength: Inverse regularisation C. Of several the best one is chosen by cross-validation within the images of
            the fit, for each weighting and fold.
        folds: Number of stratified folds.
        seed: Of the folds.
        batch_size: Largest number of rows of one forward call.
        on_broken: "skip" counts images that cannot be used in `Probing.skipped`, "raise" stops.

    Raises:
        ArgumentError: If there are no labels, fewer than two classes, or fewer images of a class than folds.
        BrokenSampleError: If an image cannot be used and `on_broken` is "raise".
        UnsupportedModelError: If the model's tokens cannot be told, or a method does not apply to it.
    """
    strengths = tuple(strength) if isinstance(strength, Sequence) else (strength,)
    if not strengths or min(strengths) <= 0:
        raise ArgumentError(f"strength: expected positive numbers, got {strength!r}")
    if folds < 2:
        raise ArgumentError(f"folds: expected at least 2, got {folds}")
    model = picture_model(model)
    pooled = pooling(model, weightings if reference in weightings else (*weightings, reference), layer)
    if reference not in pooled:
        raise ArgumentError(f"reference: expected one of {', '.join(pooled)}, got {reference!r}")
    fitted, skipped = _read(model, dataset, pooled, layer, batch_size, on_broken)
    judged = fitted
    if test is not None:
        judged, others = _read(model, test, pooled, layer, batch_size, on_broken)
        skipped |= others
    check_labels(fitted.labels, judged.labels, folds)
    correct, chosen = {}, {}
    for name in pooled:
        other = None if test is None else (judged.features[name], judged.labels)
        correct[name], chosen[name] = judge(
            fitted.features[name], fitted.labels, other, strengths=strengths, folds=folds, seed=seed
        )
    values = {name: right.astype(np.float64) for name, right in correct.items()}
    return Probing(
        {name: mean_interval(right) for name, right in values.items()},
        tuple(compare_all(values, reference=reference)),
        correct,
        chosen,
        judged.samples,
        tuple(map(str, np.unique(fitted.labels))),
        skipped,
        reference,
    )


def pooling(model: "Model", weightings: Sequence[str | MethodLike], layer: int = -1) -> dict[str, Weighting | None]:
    """Name to a function from images to (B, patches) weights; None where no method is asked.

    Raises:
        ArgumentError: For an unknown method, or a name that comes twice.
    """
    found: dict[str, Weighting | None] = {}
    for given in weightings:
        if given in (UNIFORM, CLASS_TOKEN):
            name, weighting = str(given), None
        else:
            ((name, method),) = choose_methods(given).items()
            built = build_method(method, model, seed=0)
            if not isinstance(built, TransformerAttribution):
                raise ArgumentError(f"weightings: expected methods of this library, got {given!r}")
            weighting = _weighting(built)
        if name in found:
            raise ArgumentError(f"weightings: {name!r} comes twice")
        found[name] = weighting
    return found


def pooled_features(
    model: "Model", inputs: Tensor, weightings: Mapping[str, Weighting | None], layer: int = -1
) -> dict[str, Tensor]:
    """Name to (B, D) weighted averages of the normalised patch features after a layer.

    Features are divided by their deviation and centred, token by token, as the final layer norm does; its scale and
    shift are left out, as standardisation would undo them. Weights are the positive part of a method's relevance,
    divided by its sum; where nothing is positive, all patches weigh alike.

    Args:
        model: The model.
        inputs: (B, C, H, W).
        weightings: As `pooling` gives them.
        layer: After which layer.

    Raises:
        UnsupportedModelError: If the model's tokens cannot be told, or has no class token and one is asked for.
        ArgumentError: If there is no such layer, or relevance is not finite.
    """
    tokens, layout = normalised_tokens(model, inputs, layer)
    patches = tokens[:, layout.num_prefix :]
    pooled = {}
    for name, weighting in weightings.items():
        if name == CLASS_TOKEN:
            if layout.cls_index is None:
                raise ArgumentError(f'weightings: "class_token" needs a class token, and the model has {layout}')
            pooled[name] = tokens[:, layout.cls_index]
        elif weighting is None:
            pooled[name] = patches.mean(1)
        else:
            weights = _normalised(weighting(inputs), name)
            pooled[name] = torch.einsum("bn,bnd->bd", weights.to(patches), patches)
    return pooled


def normalised_tokens(model: "Model", inputs: Tensor, layer: int) -> tuple[Tensor, "TokenLayout"]:
    """(B, N, D) tokens after a layer, each with mean 0 and variance 1 over D, and their roles."""
    taken = LayerTokens(find_modules(model), [layer])
    found = run_forward(model, inputs, layout=model.layout, reducer=taken, around=taken)
    tokens = taken.after(layer)
    return F.layer_norm(tokens, tokens.shape[-1:]), found.layout


@dataclass(frozen=True, eq=False)
class _Read:
    """Features and labels of a data set."""

    features: Mapping[str, Features]
    labels: Labels
    samples: tuple[str, ...]


def _weighting(method: TransformerAttribution) -> Weighting:
    return lambda inputs: method.attribute(inputs, resolution="patch").flatten(1)


def _normalised(weights: Tensor, name: str) -> Tensor:
    if not bool(weights.isfinite().all()):
        raise ArgumentError(f"weightings: the relevance of {name} is not finite")
    positive = precise(weights).clamp(min=0)
    total = positive.sum(1, keepdim=True)
    return torch.where(total > 0, positive / total, 1 / weights.shape[1])


def _read(
    model: "Model",
    dataset: Dataset,
    weightings: Mapping[str, Weighting | None],
    layer: int,
    batch_size: int,
    on_broken: str,
) -> tuple[_Read, dict[str, str]]:
    """Features of all usable images."""
    if not dataset.has_labels:
        raise ArgumentError(f"dataset: probing needs labels, and {dataset.name!r} has none")
    features: dict[str, list[Tensor]] = {name: [] for name in weightings}
    labels, names, skipped = [], [], dict[str, str]()
    for usable in usable_batches(model, dataset, batch_size, skipped, on_broken):
        samples = [sample for sample in usable if sample.given_label is not None]
        skipped |= {s.name: f"sample {s.index} ({s.name}): it has no label" for s in usable if s not in samples}
        labels += [str(sample.given_label) for sample in samples]
        names += [sample.name for sample in samples]
        if samples:
            inputs = torch.stack([sample.image for sample in samples])
            for name, part in pooled_features(model, inputs, weightings, layer).items():
                features[name].append(part.cpu().double())
    if not names:
        raise ArgumentError(f"dataset: no picture of {dataset.name!r} has a label")
    arrays = {name: torch.cat(parts).numpy() for name, parts in features.items()}
    return _Read(arrays, np.array(labels), tuple(names)), skipped
