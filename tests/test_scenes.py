"""The scene generator: the same scenes everywhere, exact masks, nothing but the silhouette gives the class away."""

import pytest
import torch

from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.models.scenes import NAMES, SPLITS, Scenes
from xattn.models.shapes import CLASSES

# Split: class names, mask areas, the pixel (40, 40), the mean of the picture; all of scene 7.
GOLDEN = {
    "train": (("mushroom",), [1851], [0.7706, 0.7352, 0.6006], 0.371),
    "val": (("house",), [1876], [0.5686, 0.6908, 0.6334], 0.3736),
    "test": (("star",), [1135], [0.362, 0.3463, 0.3273], 0.4102),
    "two-object": (("ring", "crescent"), [494, 417], [0.786, 0.703, 0.7685], 0.3827),
    "two-object-train": (("star", "mushroom"), [588, 484], [0.429, 0.1896, 0.531], 0.4083),
}


@pytest.mark.parametrize("split", GOLDEN)
def test_scenes_are_the_ones_the_demo_model_was_measured_on(split):
    names, areas, pixel, mean = GOLDEN[split]
    scene = Scenes(split, 10)[7]
    assert scene.names == names
    # Two pixels of slack for a different libm; colours are exact to rounding.
    assert [int(mask.sum()) for mask in scene.masks] == pytest.approx(areas, abs=2)
    assert scene.image[:, 40, 40].tolist() == pytest.approx(pixel, abs=2e-3)
    assert float(scene.image.mean()) == pytest.approx(mean, abs=1e-3)


@pytest.mark.parametrize("split", SPLITS)
def test_a_scene_depends_on_its_index_alone(split):
    alone = Scenes(split, 100)[31]
    short = Scenes(split, 40)
    _ = [short[i] for i in (5, 39, 0)]
    again = short[31]
    assert torch.equal(alone.image, again.image)
    assert torch.equal(alone.masks, again.masks)
    assert alone.labels == again.labels
    assert torch.equal(short[-9].image, again.image)


def test_splits_and_seeds_do_not_share_scenes():
    scenes = [*(Scenes(split, 30) for split in SPLITS), Scenes("train", 30, seed=1)]
    digests = [scene.image.numpy().tobytes() for part in scenes for scene in part]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("split", ["test", "two-object"])
def test_the_mask_is_exactly_where_the_picture_differs_from_its_background(split):
    scenes = Scenes(split, 60)
    for i, scene in enumerate(scenes):
        changed = (scene.image != scenes.background(i)).any(0)
        assert torch.equal(changed, scene.mask)
        assert scene.masks.dtype == torch.bool


def test_pictures_are_valid_and_objects_neither_tiny_nor_cut_off():
    images, labels, masks = Scenes("test", 200).batch()
    assert images.shape == (200, 3, 96, 96)
    assert images.dtype == torch.float32
    assert images.min() >= 0
    assert images.max() <= 1
    assert labels.shape == (200, 1)
    area = masks.float().mean((1, 2, 3))
    assert area.min() > 0.01
    assert area.max() < 0.45
    edge = torch.cat([masks[..., 0], masks[..., -1], masks[..., 0, :], masks[..., -1, :]], -1)
    assert edge.float().mean() < 0.005


def test_two_objects_are_of_two_classes_and_apart():
    for scene in Scenes("two-object", 100):
        assert len(scene.labels) == 2
        assert scene.labels[0] != scene.labels[1]
        assert scene.masks.shape == (2, 96, 96)
        assert not (scene.masks[0] & scene.masks[1]).any()
        assert scene.masks.flatten(1).sum(1).min() > 60


def test_every_class_occurs_about_equally_often():
    labels = torch.tensor([scene.label for scene in Scenes("val", 500)])
    counts = labels.bincount(minlength=10)
    assert len(NAMES) == len(CLASSES) == len(counts) == 10
    assert counts.min() > 25
    assert counts.max() < 80


def test_colour_and_place_do_not_give_the_class_away():
    images, labels, masks = Scenes("train", 1000).batch()
    inside = masks[:, 0].float()
    colour = (images * inside[:, None]).sum((2, 3)) / inside.sum((1, 2))[:, None]
    rows = (inside.sum(2) * torch.arange(96)).sum(1) / inside.sum((1, 2)) / 96
    features = torch.cat([colour, rows[:, None], images.mean((2, 3)), torch.ones(1000, 1)], 1)
    targets = torch.nn.functional.one_hot(labels[:, 0], 10).float()
    fitted = torch.linalg.lstsq(features[:500], targets[:500]).solution
    right = ((features[500:] @ fitted).argmax(1) == labels[500:, 0]).float().mean()
    assert right < 0.2


def test_wrong_arguments_say_what_is_possible():
    with pytest.raises(ArgumentError, match="two-object"):
        Scenes("tests")
    with pytest.raises(ArgumentError, match="n must be at least 1"):
        Scenes("test", 0)
    with pytest.raises(ArgumentTypeError, match="must be int"):
        Scenes("test", 1.5)
    with pytest.raises(IndexError):
        Scenes("test", 3)[3]
