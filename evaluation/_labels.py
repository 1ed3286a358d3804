"""The classes of samples, as the model knows them."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from xattn.errors import ArgumentError
from xattn.evaluation.datasets import Sample

Explained: TypeAlias = Literal["predicted", "label"]


def sample_labels(samples: Sequence[Sample], logits: Tensor, wanted_by: str) -> Tensor:
    """(B,) classes of the samples, of the logits' (B, classes).

    Raises:
        ArgumentError: If one is unknown, or no class of the model.
    """
    labels = [-1 if sample.label is None else sample.label for sample in samples]
    for sample, label in zip(samples, labels, strict=True):
        if not 0 <= label < logits.shape[1]:
            found = "has none" if sample.label is None else f"has {label}, the model 0 to {logits.shape[1] - 1}"
            raise ArgumentError(f"{wanted_by}: needs the model's class of each sample; {sample.name!r} {found}")
    return torch.tensor(labels, device=logits.device)
