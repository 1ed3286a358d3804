"""Checks that an explanation depends on the model and the class, and is stable and faithful."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from captum import metrics as captum_metrics
from torch import Tensor, nn

from xattn._state import undisturbed
from xattn.attributions._targets import Target, slice_target
from xattn.errors import ArgumentError
from xattn.evaluation._scores import batched_logits, resolve_class
from xattn.evaluation._shapes import check_choice, check_images, pixel_map, sum_channels

Explain: TypeAlias = Callable[[nn.Module, Tensor, Tensor], Tensor]
Mode: TypeAlias = Literal["cascading", "independent"]

_CONTAINERS = (nn.ModuleList, nn.Sequential)


@dataclass(frozen=True)
class Randomization:
    """How similar maps stay while a model is randomised.

    Attributes:
        layers: (S,) names of the randomised parts, in order; each step of "cascading" includes the earlier ones.
        similarity: (B, S) rank correlation with the map of the intact model, -1..1; near 0 is good, NaN where a map
            is constant or not finite.
        mode: "cascading" or "independent".
    """

    layers: tuple[str, ...]
    similarity: Tensor
    mode: Mode


def parameter_randomization(
    explain: Explain,
    model: nn.Module,
    inputs: Tensor,
    target: Target = None,
    *,
    mode: Mode = "cascading",
    layers: Sequence[str] | None = None,
    seed: int = 0,
    batch_size: int = 32,
) -> Randomization:
    """Randomise a copy of the model from the output downwards and see whether the maps change (Adebayo et al. 2018).

    Each parameter of a part is replaced by normal noise with that parameter's own mean and deviation.

    Args:
        explain: (model, inputs, target (B,)) -> relevance in any usual shape; must explain the model it is given.
        model: Module from images to logits; untouched, a deep copy is randomised.
        inputs: (B, C, H, W).
        target: int, list or tensor (B,); None is the class that the intact model predicts, kept throughout.
        mode: "cascading" adds part after part, "independent" randomises one part at a time.
        layers: Names of submodules, in order of randomisation; None takes the model's children, blocks one by one,
            last first.
        seed: Of the noise.
        batch_size: Largest number of rows when the predicted class is looked up.

    Raises:
        ArgumentError: If a layer does not exist or has no parameters.
    """
    check_images(inputs)
    check_choice("mode", mode, get_args(Mode))
    names = tuple(layers) if layers is not None else _parts(model)
    known = dict(model.named_modules())
    for name in names:
        if name not in known or not any(True for _ in known[name].parameters()):
            raise ArgumentError(f"layers: expected submodules with parameters, got {name!r}; known: {_parts(model)}")
    index = _targets(model, inputs, target, batch_size)
    original = explain(model, inputs, index)
    generator = torch.Generator().manual_seed(seed)
    shaken = copy.deepcopy(model)
    similarity = []
    for name in names:
        if mode == "independent":
            shaken = copy.deepcopy(model)
        _randomize(shaken.get_submodule(name), generator)
        similarity.append(rank_correlation(explain(shaken, inputs, index), original))
    return Randomization(names, torch.stack(similarity, 1), mode)


def random_logit(
    explain: Callable[[Tensor, Tensor], Tensor],
    inputs: Tensor,
    target: Tensor,
    num_classes: int,
    *,
    seed: int = 0,
) -> Tensor:
    """Rank correlation of each map with the map for a random other class (Sixt et al. 2020), (B,) in -1..1.

    Low is good; a class-agnostic method scores 1.

    Args:
        explain: (inputs, target (B,)) -> relevance.
        inputs: (B, ...).
        target: (B,) classes.
        num_classes: Number of classes to draw from.
        seed: Of the draw.

    Raises:
        ArgumentError: If there is no other class, or `target` is not (B,).
    """
    if num_classes < 2:
        raise ArgumentError(f"num_classes: expected at least 2, got {num_classes}")
    if target.shape != (len(inputs),):
        raise ArgumentError(f"target: expected shape ({len(inputs)},), got {tuple(target.shape)}")
    steps = torch.randint(1, num_classes, target.shape, generator=torch.Generator().manual_seed(seed))
    other = (target + steps.to(target.device)) % num_classes
    return rank_correlation(explain(inputs, target), explain(inputs, other))


def sensitivity_max(
    explain: Callable[[Tensor, Tensor], Tensor],
    inputs: Tensor,
    target: Tensor,
    *,
    radius: float = 0.02,
    samples: int = 10,
    seed: int = 0,
) -> Tensor:
    """Largest relative change of the map within a small cube around the input (Yeh et al. 2019), (B,), low is good.

    Computed by captum, one sample at a time, each with the same seed.

    Args:
        explain: (inputs, target (B,)) -> relevance.
        inputs: (B, C, H, W).
        target: (B,) classes.
        radius: Half the edge of the cube.
        samples: Number of points tried.
        seed: Of the points.
    """

    def explained(x: Tensor | tuple[Tensor, ...], index: Tensor) -> Tensor:
        with torch.enable_grad():  # captum calls this without
            return explain(x[0] if isinstance(x, tuple) else x, index).detach()

    values = []
    for i in range(len(inputs)):
        with _seeded(seed, inputs.device):
            values.append(
                captum_metrics.sensitivity_max(
                    explained,
                    inputs[i : i + 1],
                    perturb_radius=radius,
                    n_perturb_samples=samples,
                    index=target[i : i + 1],
                    max_examples_per_batch=1,
                )
            )
    return torch.cat(values)


def infidelity(
    forward: Callable[..., Any],
    inputs: Tensor,
    relevance: Tensor,
    target: Target = None,
    *,
    noise: float = 0.1,
    samples: int = 50,
    scale: bool = True,
    seed: int = 0,
    batch_size: int = 32,
) -> Tensor:
    """Squared error of the map as a linear model of how noise moves the score (Yeh et al. 2019), (B,), low is good.

    Computed by captum. With `scale` the map is first multiplied by the factor that fits best, so that the result
    does not depend on its scale.

    Args:
        forward: Module or callable from images to logits.
        inputs: (B, C, H, W).
        relevance: Of the inputs' shape, or a map whose values are spread over pixels and channels.
        target: int, list or tensor (B,); None is the predicted class.
        noise: Standard deviation of the normal noise added to the inputs.
        samples: Number of draws.
        scale: Whether the best factor is applied.
        seed: Of the noise, alike for all samples.
        batch_size: Largest number of rows of one forward call.
    """
    check_images(inputs)
    index = _targets(forward, inputs, target, batch_size)
    spread = relevance.shape != inputs.shape
    maps = pixel_map(relevance, inputs).unsqueeze(1).expand_as(inputs) if spread else relevance.detach()

    def disturb(x: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        delta = noise * torch.randn(x.shape).to(x)
        return delta, x - delta

    values = []
    with torch.no_grad(), undisturbed(forward):
        for i in range(len(inputs)):
            with _seeded(seed, inputs.device):
                values.append(
                    captum_metrics.infidelity(
                        lambda x: _logits(forward, x),
                        disturb,
                        inputs[i : i + 1],
                        maps[i : i + 1].to(inputs.dtype),
                        target=index[i : i + 1],
                        n_perturb_samples=samples,
                        max_examples_per_batch=min(batch_size, samples),  # captum warns above `samples`
                        normalize=scale,
                    )
                )
    return torch.cat(values)


def _logits(forward: Callable[..., Any], inputs: Tensor) -> Tensor:
    return batched_logits(forward, inputs, len(inputs))


def rank_correlation(first: Tensor, second: Tensor) -> Tensor:
    """Spearman's rank correlation of maps, (B,), ties sharing their mean rank; NaN for constant or not finite maps.

    Raises:
        ArgumentError: If the maps differ in shape.
    """
    a, b = (sum_channels(x).flatten(1).double() for x in (first, second))
    if a.shape != b.shape:
        raise ArgumentError(f"relevance: maps of shapes {tuple(first.shape)} and {tuple(second.shape)} do not compare")
    ranks = [_ranks(x) - (x.shape[1] + 1) / 2 for x in (a, b)]
    product = (ranks[0] * ranks[1]).sum(1)
    result: Tensor = product / (ranks[0].norm(dim=1) * ranks[1].norm(dim=1))
    return result.masked_fill(~(a.isfinite() & b.isfinite()).all(1), torch.nan)


def _ranks(values: Tensor) -> Tensor:
    """Mean ranks from 1."""
    ordered = values.sort(dim=1).values
    low = torch.searchsorted(ordered, values, right=False)
    high = torch.searchsorted(ordered, values, right=True)
    ranks: Tensor = (low + high + 1).double() / 2
    return ranks


def _targets(forward: Callable[..., Any], inputs: Tensor, target: Target, batch_size: int) -> Tensor:
    with torch.no_grad(), undisturbed(forward):
        return resolve_class(batched_logits(forward, inputs, batch_size), slice_target(target, 0, len(inputs)))


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """The global random state, which captum draws from, set to `seed` and restored afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _parts(model: nn.Module) -> tuple[str, ...]:
    """Names of the model's children that have parameters, containers taken apart, last first."""
    names: list[str] = []
    for name, child in model.named_children():
        inner = [f"{name}.{key}" for key, _ in child.named_children()] if isinstance(child, _CONTAINERS) else [name]
        names += [n for n in inner if any(True for _ in model.get_submodule(n).parameters())]
    return tuple(reversed(names)) or ("",)


@torch.no_grad()
def _randomize(module: nn.Module, generator: torch.Generator) -> None:
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator).to(parameter)
        spread = parameter.std(correction=0) if parameter.numel() > 1 else parameter.abs()
        parameter.copy_(parameter.mean() + noise * spread)
