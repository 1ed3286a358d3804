"""Models that read pictures, and the pictures of a data set that can be used."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from xattn.errors import ArgumentError
from xattn.evaluation._shapes import check_choice
from xattn.evaluation.datasets import BrokenSampleError, Dataset, Sample

if TYPE_CHECKING:
    from xattn.models.model import Model


def picture_model(model: "str | Model") -> "Model":
    """A model by its name, or as it is.

    Raises:
        ArgumentError: If it does not read pictures.
    """
    from xattn.models import load
    from xattn.models.model import Model

    loaded = load(model) if isinstance(model, str) else model
    if not isinstance(loaded, Model):
        raise ArgumentError(f"model: expected a name or a Model that reads pictures, got {model!r}")
    return loaded


def usable_batches(
    model: "Model", dataset: Dataset, size: int, skipped: dict[str, str], on_broken: str
) -> Iterator[list[Sample]]:
    """Usable samples, at most `size` at once; the reasons of the others go into `skipped` by name.

    Raises:
        ArgumentError: If no sample can be used, or for an unknown `on_broken`.
        BrokenSampleError: For the first unusable sample, if `on_broken` is "raise".
    """
    check_choice("on_broken", on_broken, ("skip", "raise"))
    found = False
    for start in range(0, len(dataset), size):
        samples = []
        for index in range(start, min(start + size, len(dataset))):
            try:
                samples.append(dataset.sample(index, model))
            except BrokenSampleError as error:
                if on_broken == "raise":
                    raise
                skipped[dataset.sample_name(index)] = str(error)
        if samples:
            found = True
            yield samples
    if not found:
        raise ArgumentError(f"dataset: no picture of {dataset.name!r} can be used; {next(iter(skipped.values()), '')}")
