"""A few samples with everything the judges share: clean logits, targets, and the relevance of one method."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from xattn._state import undisturbed
from xattn.attributions import TransformerAttribution
from xattn.evaluation._foreign import foreign_relevance
from xattn.evaluation._labels import Explained, sample_labels
from xattn.evaluation._scores import batched_logits
from xattn.evaluation._shared import Shared
from xattn.evaluation._text_chunk import TextChunk, make_text_chunk
from xattn.evaluation._tokens import find_grid
from xattn.evaluation.datasets import Sample
from xattn.models.text_model import TextModel

if TYPE_CHECKING:
    from xattn.layout import TokenLayout
    from xattn.models.model import Model

_SHOWN = 56  # pixels of an illustration's longer side


@dataclass(eq=False)
class Chunk:
    """Samples of one chunk, and one method's way to explain them.

    Attributes:
        forward: The model.
        shared: The model, with the answers kept that all methods ask for.
        samples: B of them.
        inputs: (B, C, H, W).
        clean: (B, classes) logits of the inputs.
        target: (B,) class that is explained.
        mean: Of the normalisation.
        std: Of the normalisation.
        batch_size: Largest number of rows of one forward call.
        layout: Roles of the tokens where the model states them.
        seed: Of everything random.
        method: The method whose relevance is judged.
    """

    forward: "Model"
    shared: Shared
    samples: Sequence[Sample]
    inputs: Tensor
    clean: Tensor
    target: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    batch_size: int
    layout: "TokenLayout | None" = None
    seed: int = 0
    method: Any = None
    _grids: dict[tuple[int, ...], tuple[int, int] | None] = field(default_factory=dict)

    @property
    def masks(self) -> Tensor:
        """(B, H, W) masks of the samples."""
        return torch.stack([sample.mask for sample in self.samples if sample.mask is not None])

    def copy(self) -> "Chunk":
        """The same with tensors of its own, to write into."""
        own: dict[str, Any] = {k: value.clone() for k, value in vars(self).items() if isinstance(value, Tensor)}
        shared = Shared(self.forward, own["inputs"], own["clean"])
        return replace(self, samples=[sample.copy() for sample in self.samples], shared=shared, **own)

    def grid(self, relevance: Tensor) -> tuple[int, int] | None:
        """(h, w) of the patches, if relevance is given per pixel."""
        key = tuple(relevance.shape)
        if key not in self._grids:
            self._grids[key] = find_grid(self.forward, self.inputs, relevance)
        return self._grids[key]

    def labels(self, wanted_by: str) -> Tensor:
        """(B,) classes of the samples.

        Raises:
            ArgumentError: If one is unknown, or no class of the model.
        """
        return sample_labels(self.samples, self.clean, wanted_by)

    def shown(self, relevance: Tensor, count: int) -> dict[int, Any]:
        """Index to map, as lists and small, of the data set's first `count` samples, for illustration."""
        pairs = zip(self.samples, relevance, strict=True)
        return {sample.index: small(one) for sample, one in pairs if sample.index < count}

    def attribute(self, target: Tensor) -> Tensor:
        """(B, h, w) relevance of patches for these classes; (B, H, W) from a pixel method of another library."""
        if isinstance(self.method, TransformerAttribution):
            relevance: Tensor = self.method.attribute(
                self.inputs, target=target, resolution="patch", internal_batch_size=self.batch_size
            )
            return relevance
        parts = zip(self.inputs.split(self.batch_size), target.split(self.batch_size), strict=True)
        pixels = [foreign_relevance(self.method, x.clone().requires_grad_(), (4,), target=t) for x, t in parts]
        return torch.cat(pixels).sum(1)


AnyChunk: TypeAlias = Chunk | TextChunk


def make_chunk(
    model: "Model | TextModel", samples: Sequence[Sample], *, explained: Explained, batch_size: int
) -> AnyChunk:
    """Stack the samples and run the model on them once.

    Raises:
        ArgumentError: If labels are to be explained and one is unknown.
    """
    if isinstance(model, TextModel):
        return make_text_chunk(model, samples, explained=explained, batch_size=batch_size)
    inputs = torch.stack([sample.image for sample in samples])
    with torch.no_grad(), undisturbed(model):
        clean = batched_logits(model, inputs, batch_size)
    target = clean.argmax(1) if explained == "predicted" else sample_labels(samples, clean, 'target="label"')
    return Chunk(
        model,
        Shared(model, inputs, clean),
        samples,
        inputs,
        clean,
        target,
        model.mean,
        model.std,
        batch_size,
        model.layout,
    )


def small(relevance: Tensor) -> list[list[float]]:
    """A map (h, w) as lists; one of pixels is averaged to what an illustration needs."""
    if max(relevance.shape) > _SHOWN:
        size = min(relevance.shape[0], _SHOWN), min(relevance.shape[1], _SHOWN)
        relevance = torch.nn.functional.adaptive_avg_pool2d(relevance[None].float(), size)[0]
    found: list[list[float]] = relevance.tolist()
    return found
