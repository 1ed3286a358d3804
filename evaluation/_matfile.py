"""ImageNet-Segmentation: pictures and masks in one HDF5 file of cell arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from xattn.errors import ArgumentError, MissingDependencyError
from xattn.evaluation.datasets import BrokenSampleError, Dataset, Item, digest


class MatFile(Dataset):
    """The file `gtsegs_ijcv.mat`, or any of its layout.

    `value/img` (n, 1) refers to pictures (3, W, H) uint8, `value/gt` (n, 1) to cells (1, 1) that refer to masks (W, H).

    Args:
        path: The file; it is opened for each picture, so that workers share nothing.

    Raises:
        ArgumentError: If it has another layout.
        MissingDependencyError: Without h5py.
    """

    has_masks = True

    def __init__(self, path: Path) -> None:
        self.name, self.path = path.stem, path
        with self._opened() as file:
            for key in ("value/img", "value/gt"):
                if key not in file:
                    raise ArgumentError(
                        f"dataset: {path.name} has no {key}, as ImageNet-Segmentation has; it has {', '.join(file)}"
                    )
            self._n = int(file["value/img"].shape[0])

    def __len__(self) -> int:
        return self._n

    def read(self, index: int) -> Item:
        """One picture with its mask."""
        with self._opened() as file:
            try:
                image = np.asarray(file[file["value/img"][index, 0]]).transpose(2, 1, 0)
                mask = np.asarray(file[file[file["value/gt"][index, 0]][0, 0]]).transpose(1, 0)
            except (ValueError, KeyError, IndexError, OSError) as error:
                raise BrokenSampleError(f"sample {index} ({self.name}): {error}") from None
        if image.shape[:2] != mask.shape:
            raise BrokenSampleError(
                f"sample {index} ({self.name}): the mask has {mask.shape[1]}x{mask.shape[0]} pixels, the picture "
                f"{image.shape[1]}x{image.shape[0]}"
            )
        return Item(np.ascontiguousarray(image), mask=torch.from_numpy((mask > 0).astype(np.int64)))

    def fingerprint(self, start: int, stop: int) -> str:
        """Size and time of change of the file."""
        found = self.path.stat()
        return digest(self.path.name, found.st_size, found.st_mtime_ns, start, stop)

    def _opened(self) -> Any:  # noqa: ANN401
        try:
            import h5py
        except ImportError:
            raise MissingDependencyError(
                "dataset: reading .mat files needs h5py; pip install 'xattn[datasets]'"
            ) from None
        try:
            return h5py.File(self.path, "r")
        except OSError as error:
            raise ArgumentError(f"dataset: {str(self.path)!r} is not a readable HDF5 file ({error})") from None
