"""Pictures and masks in folders, tables of pairs, and the layouts of published data sets."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from xattn.errors import ArgumentError
from xattn.evaluation.datasets import BrokenSampleError, Dataset, Item, digest

if TYPE_CHECKING:
    from PIL import Image

IMAGES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".gif"})
_MAT = (".mat", ".h5", ".hdf5")
_LABELS = ("label", "coarse_class")
_IGNORED = 255  # of palette pictures, as in PASCAL VOC
_UNLABELLED = 1000  # of ImageNet-S, whose masks hold the class as red + 256 green
_TORCHVISION_VOC = Path("VOCdevkit", "VOC2012")


class Files(Dataset):
    """Pictures in files, with or without masks and labels.

    Args:
        name: For tables.
        root: Folder that names are relative to.
        images: One file for each picture.
        masks: One for each picture, or none.
        labels: One for each picture, or none.
    """

    def __init__(
        self, name: str, root: Path, images: list[Path], masks: list[Path] | None, labels: list[str | None] | None
    ) -> None:
        self.name, self.root, self.images, self.masks, self.labels = name, root, images, masks, labels
        known = sorted({label for label in labels or [] if label is not None})
        numbers = all(label.isdigit() for label in known)
        self.classes = () if numbers else tuple(known)
        self._numbers = numbers
        self.has_masks, self.has_labels = masks is not None, bool(known)

    def __len__(self) -> int:
        return len(self.images)

    def sample_name(self, index: int) -> str:
        """Path below the data set's folder."""
        return _relative(self.images[index], self.root)

    def read(self, index: int) -> Item:
        """One picture; its mask must have its size."""
        from xattn.models.image import read_image

        name = self.sample_name(index)
        try:
            image = read_image(self.images[index])
        except (ArgumentError, OSError) as error:
            raise BrokenSampleError(f"sample {index} ({name}): {error}") from None
        label = self.labels[index] if self.labels else None
        mask = None
        if self.masks is not None:
            mask = read_mask(self.masks[index], f"sample {index} ({name})")
            if mask.shape != image.shape[-2:]:
                raise BrokenSampleError(
                    f"sample {index} ({name}): the mask {_relative(self.masks[index], self.root)} has "
                    f"{mask.shape[1]}x{mask.shape[0]} pixels, the picture {image.shape[2]}x{image.shape[1]}"
                )
        return Item(image, int(label) if label is not None and self._numbers else label, mask)

    def fingerprint(self, start: int, stop: int) -> str:
        """Names, sizes and times of change of these files, and their labels."""
        files = [*self.images[start:stop], *(self.masks or [])[start:stop]]
        return digest(*map(_state, files), *(self.labels or [])[start:stop])


def open_path(path: Path) -> Dataset:
    """A file or folder as a data set, see `load_dataset`.

    Raises:
        ArgumentError: If it cannot be read or is of no known layout.
    """
    try:
        return _open(path)
    except OSError as error:
        raise ArgumentError(f"dataset: cannot read {str(path)!r} ({error.strerror or error})") from None


def _open(path: Path) -> Dataset:
    if path.is_file():
        if path.suffix.lower() in _MAT:
            from xattn.evaluation._matfile import MatFile

            return MatFile(path)
        if path.suffix.lower() == ".csv":
            return _pairs(path)
        raise ArgumentError(f"dataset: expected a folder, .csv or {', '.join(_MAT)}; got {path.name!r}")
    entries = sorted(path.iterdir())
    present = {entry.name for entry in entries}
    if "pairs.csv" in present:
        return _pairs(path / "pairs.csv")
    if {"images", "masks"} <= present:
        return _image_mask(path, path / "images", path / "masks")
    if {"JPEGImages", "SegmentationClass"} <= present:
        return _voc(path)
    if (path / _TORCHVISION_VOC).is_dir():
        return _voc(path / _TORCHVISION_VOC)
    if {"validation", "validation-segmentation"} <= present:
        return _imagenet_s(path)
    if "annotations" in present:
        from xattn.evaluation._coco import Coco

        return Coco(path)
    folders = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    if folders:
        found = [(file, folder.name) for folder in folders for file in _pictures(folder.rglob("*"))]
        return Files(path.name, path, [file for file, _ in found], None, [label for _, label in found])
    return Files(path.name, path, _pictures(entries), None, None)


def _pairs(table: Path) -> Files:
    with table.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    if rows and "image" not in rows[0]:
        raise ArgumentError(f"dataset: {table.name} needs a column image, and has {', '.join(rows[0])}")
    root = table.parent
    images = [_beside(root, "images", row["image"]) for row in rows]
    masks = [_beside(root, "masks", row["mask"]) for row in rows] if rows and "mask" in rows[0] else None
    column = next((name for name in _LABELS if rows and name in rows[0]), None)
    labels = [row[column] or None for row in rows] if column else None
    return Files(root.name, root, images, masks, labels)


def _beside(root: Path, folder: str, name: str) -> Path:
    """A file named in a table: relative to it, or to the usual folder beside it."""
    inside = root / folder / name
    return inside if inside.exists() and not (root / name).is_file() else root / name


def _image_mask(root: Path, images: Path, masks: Path, keep: Iterable[str] | None = None) -> Files:
    by_stem = {file.stem: file for file in _pictures(masks.iterdir())}
    files = _pictures(images.iterdir())
    if keep is not None:
        wanted = set(keep)
        files = [file for file in files if file.stem in wanted]
    # A picture without a mask is reported with its name when it is read.
    return Files(root.name, root, files, [_mask_of(file, by_stem, masks) for file in files], None)


def _mask_of(image: Path, by_stem: Mapping[str, Path], masks: Path) -> Path:
    return by_stem.get(image.stem, masks / f"{image.stem}.png")


def _voc(root: Path) -> Files:
    split = root / "ImageSets" / "Segmentation" / "val.txt"
    keep = split.read_text().split() if split.is_file() else [f.stem for f in (root / "SegmentationClass").iterdir()]
    return _image_mask(root, root / "JPEGImages", root / "SegmentationClass", keep)


def _imagenet_s(root: Path) -> Files:
    """The validation split of ImageNet-S: folders by class, of pictures and of masks."""
    images, masks = root / "validation", root / "validation-segmentation"
    found = [(file, file.relative_to(images)) for file in _pictures(images.rglob("*"))]
    labels: list[str | None] = [name.parts[0] for _, name in found]
    return Files(
        root.name, root, [file for file, _ in found], [masks / name.with_suffix(".png") for _, name in found], labels
    )


def _pictures(files: Iterable[Path]) -> list[Path]:
    return sorted(file for file in files if file.suffix.lower() in IMAGES and not file.name.startswith("."))


def read_mask(path: Path, sample: str) -> Tensor:
    """(H, W) int64: 1 object, 0 background, -1 not labelled.

    In palette pictures every index but 0 is object, 255 is not labelled. In pictures with colours the class is red +
    256 green, as in ImageNet-S: every one but 0 is object, 1000 is not labelled. In others, values above half of white
    are object; where there is nothing above 1, ones are.

    Raises:
        BrokenSampleError: If the file cannot be read.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as opened:
            palette, colours = opened.mode == "P", _is_class_picture(opened)
            plain = palette or colours or opened.mode.startswith("I")
            values = np.array(opened if plain else opened.convert("L"), np.int64)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else str(error)
        raise BrokenSampleError(f"{sample}: mask {path.name}: {reason}") from None
    if palette:
        mask = np.where(values == _IGNORED, -1, (values > 0).astype(np.int64))
    elif colours:
        classes = values[..., 0] + 256 * values[..., 1]
        mask = np.where(classes == _UNLABELLED, -1, (classes > 0).astype(np.int64))
    elif values.max(initial=0) > 1:
        mask = (values > (127 if values.max() <= 255 else 32767)).astype(np.int64)
    else:
        mask = values
    return torch.from_numpy(mask)


def _is_class_picture(opened: "Image.Image") -> bool:
    """Whether an opened mask has colours, and no shade of grey: then they are numbers of classes."""
    if opened.mode != "RGB":
        return False
    red, green, blue = (np.array(channel) for channel in opened.split())
    return not (np.array_equal(red, green) and np.array_equal(green, blue)) and not blue.any()


def _state(file: Path) -> str:
    try:
        found = file.stat()
    except OSError:
        return f"{file.name} missing"
    return f"{file.name} {found.st_size} {found.st_mtime_ns}"


def _relative(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else str(file)
