"""Models for several people at once: each is loaded once, and one computation runs at a time."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, RLock

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
        self._computing = RLock()
        self._books = Lock()  # guards the dictionaries
        self._loading: dict[str, Lock] = {}

    @contextmanager
    def use(self, name: str) -> Iterator[Model]:
        """The model of that name, for the time of a `with` block, in which no other computation runs.

        Raises:
            ArgumentError: There is no such model.
            UnsupportedModelError: It does not read pictures.
            WeightsError: Its weights cannot be had.
        """
        model = self._find(name)
        with self._computing:
            yield model

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A `with` block in which no other computation runs, for drawings: matplotlib is not safe in threads."""
        with self._computing:
            yield

    def close(self) -> None:
        """Waits for the computation that runs and lets no other begin: ended in its midst, torch aborts the process."""
        self._computing.acquire()

    def _find(self, name: str) -> Model:
        """A model from the shelf; loading one, which can take long, keeps nobody from using the others."""
        name = name.strip() if isinstance(name, str) else ""
        if not name:
            raise ArgumentError("model: choose one, or type an id such as timm:vit_small_patch16_224.")
        with self._books:
            loading = self._loading.setdefault(name, Lock())
        with loading:
            try:
                with self._books:
                    found = self._models.get(name)
                if found is None:
                    found = _load(name, self._device)
                self._put(name, found)
            finally:
                with self._books:
                    self._loading.pop(name, None)
        return found

    def _put(self, name: str, model: Model) -> None:
        with self._books:
            self._models[name] = model
            self._models.move_to_end(name)
            while len(self._models) > self._kept:
                self._models.popitem(last=False)


def _load(name: str, device: str | torch.device) -> Model:
    loaded = load(name, device=device)
    if not isinstance(loaded, Model):
        raise UnsupportedModelError(
            f"model: {name!r} reads sentences and the viewer shows pictures; use `xattn explain --model {name}`"
        )
    return loaded
