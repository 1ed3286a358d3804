"""Data to evaluate on, by name or path: pictures with masks and labels at the model's input geometry, or sentences."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from torch import Tensor

from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.models.scenes import NAMES, Scenes
from xattn.models.sentences import NAMES as TOPICS
from xattn.models.sentences import Sentences
from xattn.models.text_model import TextModel

if TYPE_CHECKING:
    from xattn.models.image import ImageLike
    from xattn.models.model import Model

Label: TypeAlias = int | str

NAMED = {"demo": "test", "demo-two-object": "two-object", "sentences": "test", "sentences-two-topic": "two-topic"}
"""Data sets that need no files, with the split of scenes or sentences that each is."""


class BrokenSampleError(ArgumentError):
    """A picture or mask of a data set cannot be used; the message names it."""


@dataclass(frozen=True, eq=False)
class Item:
    """One picture or sentence as the data set has it.

    Attributes:
        image: Anything that `read_image` takes; None for a sentence.
        label: Class, as a number or a name of the data set's; None where unknown.
        mask: (H, W) int64 at the picture's size: 1 object, 0 background, -1 not labelled.
        object_labels: Class of each of several objects.
        object_masks: (objects, H, W) bool.
        text: The sentence; "" for a picture.
        rationales: For each of `object_labels` the positions of the words that decide.
    """

    image: "ImageLike | None" = None
    label: Label | None = None
    mask: Tensor | None = None
    object_labels: tuple[Label, ...] = ()
    object_masks: Tensor | None = None
    text: str = ""
    rationales: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, eq=False)
class Sample:
    """One picture or sentence as the model takes it.

    Attributes:
        index: Place in the data set.
        name: Of the file or scene.
        image: (C, h, w), preprocessed; the token ids (N,) of a sentence.
        label: Class in the order of the model's outputs; None where unknown.
        mask: (h, w) int64: 1 object, 0 background, -1 not labelled; None without.
        object_labels: Class of each of several objects; empty where the model does not know them all.
        object_masks: (objects, h, w) bool.
        given_label: Class as the data set has it, which the model need not know.
        text: The sentence; "" for a picture.
        rationales: For each of `object_labels` the positions of the words that decide.
    """

    index: int
    name: str
    image: Tensor
    label: int | None = None
    mask: Tensor | None = None
    object_labels: tuple[int, ...] = ()
    object_masks: Tensor | None = None
    given_label: Label | None = None
    text: str = ""
    rationales: tuple[tuple[int, ...], ...] = ()

    def copy(self) -> "Sample":
        """The same with tensors of its own, to write into."""
        own: dict[str, Any] = {k: value.clone() for k, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **own)


class Dataset(ABC):
    """Base of data sets; one of your own is `__len__`, `read`, and what tells its content apart.

    Attributes:
        name: For tables.
        classes: Names of its classes in its own order; empty where labels are numbers of the model's classes.
        has_masks: Whether pictures come with masks.
        has_labels: Whether pictures come with classes.
        has_objects: Whether each picture has two objects with masks of their own, or each sentence known rationales.
        holds: "pictures" or "text".
    """

    name: str
    classes: tuple[str, ...] = ()
    has_masks: bool = False
    has_labels: bool = False
    has_objects: bool = False
    holds: Literal["pictures", "text"] = "pictures"

    @abstractmethod
    def __len__(self) -> int:
        """Number of pictures."""

    @abstractmethod
    def read(self, index: int) -> Item:
        """One picture.

        Raises:
            BrokenSampleError: If it cannot be used.
        """

    def sample_name(self, index: int) -> str:
        """Name of a picture, without reading it."""
        return str(index)

    def fingerprint(self, start: int, stop: int) -> str:
        """Something that changes when the content of these pictures does; by default the data set's name."""
        return f"{self.name} {start} {stop}"

    def sample(self, index: int, model: "Model | TextModel") -> Sample:
        """One picture or sentence, ready for a model that reads such.

        Raises:
            BrokenSampleError: If it cannot be used; the message names it.
        """
        name = self.sample_name(index)
        try:
            item = self.read(index)
            image = _as_read(item, model)
        except BrokenSampleError:
            raise
        except (ArgumentError, OSError) as error:
            raise BrokenSampleError(f"sample {index} ({name}): {error}") from None
        mask, masks = (
            None if m is None or isinstance(model, TextModel) else model.transform.mask(m).to(image.device)
            for m in (item.mask, item.object_masks)
        )
        label, *objects = (
            model_class(label, self.classes, model.classes) for label in (item.label, *item.object_labels)
        )
        known = tuple(label for label in objects if label is not None)
        objects_known = known if len(known) == len(objects) else ()
        return Sample(index, name, image, label, mask, objects_known, masks, item.label, item.text, item.rationales)

    def samples(self, model: "Model | TextModel") -> Iterator[Sample]:
        """All pictures, ready for a model."""
        return (self.sample(index, model) for index in range(len(self)))


def _as_read(item: Item, model: "Model | TextModel") -> Tensor:
    """Pixels or token ids, as the model takes them."""
    if isinstance(model, TextModel):
        return model.preprocess(item.text)[0][0]
    if item.image is None:
        raise ArgumentError(f"dataset: it holds no pictures, and model {model.name!r} reads pictures")
    return model.preprocess(item.image)


class SceneData(Dataset):
    """Generated scenes with exact masks, see `xattn.models.scenes.Scenes`.

    Args:
        name: "demo" (one object) or "demo-two-object".
        n: Number of scenes.
        seed: Another seed gives other scenes.
    """

    classes, has_masks, has_labels = NAMES, True, True

    def __init__(self, name: str = "demo", n: int = 1000, seed: int = 0) -> None:
        self.name = name
        self.scenes = Scenes(NAMED[name], n, seed)
        self.has_objects = self.scenes.objects == 2

    def __len__(self) -> int:
        return len(self.scenes)

    def read(self, index: int) -> Item:
        """One scene."""
        scene = self.scenes[index]
        if self.has_objects:
            return Item(scene.image, scene.names[0], scene.mask.long(), scene.names, scene.masks)
        return Item(scene.image, scene.names[0], scene.mask.long())

    def fingerprint(self, start: int, stop: int) -> str:
        """Split and seed; a scene depends on nothing else."""
        return f"scenes {self.scenes.split} {self.scenes.seed} {start} {stop}"


class SentenceData(Dataset):
    """Generated sentences whose deciding words are known, see `xattn.models.sentences.Sentences`.

    Args:
        name: "sentences" (one topic) or "sentences-two-topic".
        n: Number of sentences.
        seed: Another seed gives other sentences.
    """

    classes, has_labels, has_objects = TOPICS, True, True
    holds = "text"

    def __init__(self, name: str = "sentences", n: int = 600, seed: int = 0) -> None:
        self.name = name
        self.sentences = Sentences(NAMED[name], n, seed)

    def __len__(self) -> int:
        return len(self.sentences)

    def read(self, index: int) -> Item:
        """One sentence."""
        found = self.sentences[index]
        return Item(label=found.names[0], object_labels=found.names, text=found.text, rationales=found.rationales)

    def fingerprint(self, start: int, stop: int) -> str:
        """Split and seed; a sentence depends on nothing else."""
        return f"sentences {self.sentences.split} {self.sentences.seed} {start} {stop}"


def load_dataset(name_or_path: str | os.PathLike[str], *, n: int | None = None, seed: int = 0) -> Dataset:
    """Data to evaluate on.

    Args:
        name_or_path: "demo" or "demo-two-object" (generated scenes with exact masks), "sentences" or
            "sentences-two-topic" (generated sentences with known rationales), or
            a folder with `images/` and `masks/` (equal file names up to the suffix);
            a CSV file of pairs with columns image, mask and optionally label or coarse_class, or a folder with such a
            `pairs.csv`; files are looked for beside it, and in `images/` and `masks/` there;
            a folder in the layout of PASCAL VOC 2012, torchvision's included (its validation split of segmentations);
            a folder in the layout of ImageNet-S (its validation split), or of COCO (needs pycocotools);
            a folder with one folder of pictures per class (ImageFolder), or with pictures only;
            a `.mat` file in the layout of ImageNet-Segmentation (needs h5py).
        n: At most this many pictures, the first ones; None takes all, 1000 scenes or 600 sentences.
        seed: Of scenes and sentences.

    Raises:
        ArgumentError: If there is no such data, or it is empty.
        MissingDependencyError: If a package is needed to read it.

    Example:
        >>> data = load_dataset("demo", n=3)
        >>> data.name, len(data), data.has_masks
        ('demo', 3, True)
    """
    if not isinstance(name_or_path, (str, os.PathLike)):
        raise ArgumentTypeError(f"dataset: expected a name or a path, got {type(name_or_path).__name__}")
    if n is not None and n < 1:
        raise ArgumentError(f"n: expected a positive number of pictures, got {n}")
    if str(name_or_path) in NAMED:
        made = SentenceData if str(name_or_path).startswith("sentences") else SceneData
        options = {} if n is None else {"n": n}
        return made(str(name_or_path), seed=seed, **options)
    from xattn.evaluation._folders import open_path

    path = Path(name_or_path)
    if not path.exists():
        names = ", ".join(NAMED)
        raise ArgumentError(f"dataset: there is no file or folder {str(path)!r}; by name there are {names}")
    dataset = open_path(path)
    if not len(dataset):
        raise ArgumentError(f"dataset: no pictures in {str(path)!r}")
    return dataset if n is None or n >= len(dataset) else Head(dataset, n)


class Head(Dataset):
    """The first `n` pictures of a data set."""

    def __init__(self, dataset: Dataset, n: int) -> None:
        self.name, self.classes, self.has_masks = dataset.name, dataset.classes, dataset.has_masks
        self.has_labels, self.has_objects, self.holds = dataset.has_labels, dataset.has_objects, dataset.holds
        self.dataset, self.n = dataset, min(n, len(dataset))

    def __len__(self) -> int:
        return self.n

    def read(self, index: int) -> Item:
        """One picture."""
        return self.dataset.read(index)

    def sample_name(self, index: int) -> str:
        """Its name."""
        return self.dataset.sample_name(index)

    def fingerprint(self, start: int, stop: int) -> str:
        """As in the whole data set."""
        return self.dataset.fingerprint(start, stop)


def model_class(label: Label | None, classes: tuple[str, ...], model_classes: tuple[str, ...]) -> int | None:
    """Number of the model's class that a label of the data set means; None where that is unknown.

    A number is one of the model's classes. A name is looked for among the model's class names, capitals aside; if the
    model has none of the data set's names and as many classes, the order decides, as with folders named by WordNet.
    """
    if label is None or isinstance(label, int):
        return label
    names = {name.lower(): i for i, name in enumerate(model_classes)}
    if label.lower() in names:
        return names[label.lower()]
    known = any(name.lower() in names for name in classes)
    return classes.index(label) if not known and len(classes) == len(model_classes) and label in classes else None


def digest(*parts: object) -> str:
    """Sixteen hexadecimal digits that stand for these parts."""
    return hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=8).hexdigest()
