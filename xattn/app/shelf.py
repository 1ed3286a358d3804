"""Models for several people at once: each is loaded once, and one computation runs at a time."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

from xattn.errors import ArgumentError, UnsupportedModelError
from xattn.models import load
from xattn.models.model import Model

KEPT = 3


class ModelShelf:
    """Loaded models by name; the ones used last are kept.

    Args:
        device: Where models run.
        kept: How many stay in memory.
    """

    def __init__(self, device: str | torch.device = "cpu", kept: int = KEPT) -> None:
        self._device = device
        self._kept = kept
        self._models: OrderedDict[str, Model] = OrderedDict()
        self._lock = RLock()

    @contextmanager
    def use(self, name: str) -> Iterator[Model]:
        """The model of that name, for the time of a `with` block, in which no other computation runs.

        Raises:
            ArgumentError: There is no such model.
            UnsupportedModelError: It does not read pictures.
            WeightsError: Its weights cannot be had.
        """
        with self._lock:
            yield self._find(name)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A `with` block in which no other computation runs, for drawings: matplotlib is not safe in threads."""
        with self._lock:
            yield

    def _find(self, name: str) -> Model:
        name = name.strip() if isinstance(name, str) else ""
        if not name:
            raise ArgumentError("model: choose one, or type an id such as timm:vit_small_patch16_224.")
        if name not in self._models:
            loaded = load(name, device=self._device)
            if not isinstance(loaded, Model):
                raise UnsupportedModelError(
                    f"model: {name!r} reads sentences and the viewer shows pictures; use `xattn explain --model {name}`"
                )
            self._models[name] = loaded
        self._models.move_to_end(name)
        while len(self._models) > self._kept:
            self._models.popitem(last=False)
        return self._models[name]
