"""COCO: pictures in folders, instances in a JSON file that pycocotools reads."""

import contextlib
import io
import warnings
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xattn.errors import ArgumentError, MissingDependencyError
from xattn.evaluation.datasets import BrokenSampleError, Dataset, Item, digest

_INSTANCES = "instances_*.json"


class Coco(Dataset):
    """Pictures of a split that have at least one object; the mask is all objects together, crowds not labelled.

    Args:
        root: Folder with `annotations/instances_SPLIT.json` and the pictures in `SPLIT/`, as `val2017/`; with several
            splits the validation one is taken.

    Raises:
        ArgumentError: If there are no instances, or they cannot be read.
        MissingDependencyError: Without pycocotools.
    """

    has_masks = True

    def __init__(self, root: Path) -> None:
        files = sorted((root / "annotations").glob(_INSTANCES))
        if not files:
            raise ArgumentError(f"dataset: there is no {_INSTANCES} in {str(root / 'annotations')!r}")
        self.root = root
        self.annotations = next((file for file in files if "val" in file.stem), files[0])
        self.split = self.annotations.stem.removeprefix("instances_")
        self.name = f"{root.name} {self.split}"
        self._ids = sorted({annotation["image_id"] for annotation in self._coco.anns.values()})

    def __getstate__(self) -> Mapping[str, Any]:
        """Without the annotations, which a worker reads for itself."""
        return {name: value for name, value in self.__dict__.items() if name != "_coco"}

    def __len__(self) -> int:
        return len(self._ids)

    def sample_name(self, index: int) -> str:
        """The picture's file name."""
        return str(self._picture(index)["file_name"])

    def read(self, index: int) -> Item:
        """One picture with the union of its objects."""
        from xattn.models.image import read_image

        facts = self._picture(index)
        sample = f"sample {index} ({facts['file_name']})"
        try:
            image = read_image(self.root / self.split / facts["file_name"])
        except (ArgumentError, OSError) as error:
            raise BrokenSampleError(f"{sample}: {error}") from None
        mask = self._mask(self._ids[index], (facts["height"], facts["width"]), sample)
        if mask.shape != image.shape[-2:]:
            raise BrokenSampleError(
                f"{sample}: the annotations are for {mask.shape[1]}x{mask.shape[0]} pixels, the picture has "
                f"{image.shape[2]}x{image.shape[1]}"
            )
        return Item(image, mask=mask)

    def fingerprint(self, start: int, stop: int) -> str:
        """Size and time of change of the annotations."""
        found = self.annotations.stat()
        return digest(self.name, found.st_size, found.st_mtime_ns, start, stop)

    def _picture(self, index: int) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = self._coco.imgs[self._ids[index]]
        return facts

    def _mask(self, image: int, size: tuple[int, int], sample: str) -> Tensor:
        mask = np.zeros(size, dtype=np.int64)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # its arrays know nothing of numpy 2
                for crowd in (True, False):  # objects in front of crowds
                    for annotation in self._coco.imgToAnns[image]:
                        if bool(annotation.get("iscrowd")) == crowd:
                            mask[self._coco.annToMask(annotation) > 0] = -1 if crowd else 1
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise BrokenSampleError(f"{sample}: its annotations cannot be read ({error})") from None
        return torch.from_numpy(mask)

    @cached_property
    def _coco(self) -> Any:  # noqa: ANN401
        try:
            from pycocotools.coco import COCO
        except ImportError:
            raise MissingDependencyError("dataset: COCO needs pycocotools; pip install 'xattn[datasets]'") from None
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it prints how long it takes
                return COCO(str(self.annotations))
        except (OSError, ValueError, KeyError, AssertionError) as error:
            raise ArgumentError(f"dataset: {self.annotations.name} is no file of COCO instances ({error})") from None
