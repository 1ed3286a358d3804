"""Data sets: layouts on disk, masks, labels, and what is reported about broken ones."""

import builtins
import json
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from run_models import CLASSES, tiny

from xattn.errors import ArgumentError, ArgumentTypeError, MissingDependencyError
from xattn.evaluation import load_dataset
from xattn.evaluation.datasets import BrokenSampleError, model_class
from xattn.models.scenes import NAMES, Scenes

MODEL = tiny()


def picture(path, size=(20, 30), value=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.full((*size, 3), 100 if value is None else value, np.uint8)
    Image.fromarray(array).save(path)


def mask(path, size=(20, 30), values=(0, 255), mode=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.full(size, values[0], np.uint8)
    array[: size[0] // 2] = values[1]
    image = Image.fromarray(array)
    if mode == "P":
        image = Image.fromarray(array, "L").convert("P")
        image.putdata(array.flatten().tolist())
    image.save(path)


def test_scenes_are_those_of_the_generator():
    data = load_dataset("demo", n=3, seed=2)
    scene, sample = Scenes("test", 3, 2)[1], load_dataset("demo", n=3, seed=2).sample(1, tiny())
    assert (len(data), data.classes, data.has_masks, data.has_labels) == (3, NAMES, True, True)
    torch.testing.assert_close(sample.image, MODEL.preprocess(scene.image))
    assert torch.equal(sample.mask, MODEL.transform.mask(scene.mask.long()))
    assert sample.mask.shape == (32, 32)
    assert len(load_dataset("demo")) == 1000


def test_two_object_scenes_have_a_mask_for_each():
    data = load_dataset("demo-two-object", n=40)
    assert data.has_objects
    index = next(i for i in range(40) if len(data.sample(i, MODEL).object_labels) == 2)
    sample, scene = data.sample(index, MODEL), Scenes("two-object", 40)[index]
    assert sample.object_labels == scene.labels
    assert sample.object_masks.shape == (2, 32, 32)
    assert torch.equal(sample.object_masks.any(0), sample.mask == 1)


def test_folders_of_classes(tmp_path):
    for name, value in (("ring", 10), ("heart", 20), ("heart/more", 30), ("unheard-of", 40)):
        picture(tmp_path / name / "a.png", value=value)
    (tmp_path / "ring" / "notes.txt").touch()
    data = load_dataset(tmp_path)
    samples = list(data.samples(MODEL))
    assert [s.name for s in samples] == ["heart/a.png", "heart/more/a.png", "ring/a.png", "unheard-of/a.png"]
    assert [s.label for s in samples] == [CLASSES.index("heart"), CLASSES.index("heart"), CLASSES.index("ring"), None]
    assert not data.has_masks
    assert samples[0].mask is None
    assert len(load_dataset(tmp_path, n=2)) == 2


def test_as_many_unknown_classes_as_the_model_has_go_by_order():
    names = ("n01", "n02", "n03")
    assert [model_class(n, names, ("tench", "goldfish", "shark")) for n in names] == [0, 1, 2]
    assert model_class("n02", names, ("tench", "goldfish")) is None
    assert model_class("Goldfish", ("goldfish", "x"), ("tench", "goldfish")) == 1
    assert model_class(7, (), ("tench",)) == 7


def test_images_beside_masks(tmp_path):
    for name in ("a", "b", "c"):
        picture(tmp_path / "images" / f"{name}.jpg")
    mask(tmp_path / "masks" / "a.png")
    mask(tmp_path / "masks" / "b.png", size=(30, 20))
    data = load_dataset(tmp_path)
    first = data.sample(0, MODEL)
    assert first.mask.unique().tolist() == [0, 1]
    assert first.mask[0, 0] == 1
    with pytest.raises(BrokenSampleError, match=r"images/b\.jpg.*masks/b\.png has 20x30 pixels, the picture 30x20"):
        data.sample(1, MODEL)
    with pytest.raises(BrokenSampleError, match=r"images/c\.jpg.*c\.png: there is no such file"):
        data.sample(2, MODEL)


@pytest.mark.parametrize("column", ["label", "coarse_class"])
def test_tables_of_pairs(tmp_path, column):
    picture(tmp_path / "images" / "a.png")
    mask(tmp_path / "masks" / "m.png")
    picture(tmp_path / "elsewhere" / "b.png")
    lines = [f"image,mask,{column}", "a.png,m.png,cross", "elsewhere/b.png,m.png,", "gone.png,m.png,ring"]
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    for path in (tmp_path, tmp_path / "pairs.csv"):
        data = load_dataset(path)
        assert [data.sample(i, MODEL).label for i in (0, 1)] == [CLASSES.index("cross"), None]
        assert data.sample(0, MODEL).mask.any()
        with pytest.raises(BrokenSampleError, match=r"sample 2 \(gone\.png\): image: there is no file"):
            data.sample(2, MODEL)
    (tmp_path / "pairs.csv").write_text("picture\na.png\n")
    with pytest.raises(ArgumentError, match="needs a column image, and has picture"):
        load_dataset(tmp_path)


def test_numbers_as_labels(tmp_path):
    picture(tmp_path / "a.png")
    (tmp_path / "pairs.csv").write_text("image,label\na.png,3\n")
    assert load_dataset(tmp_path).sample(0, MODEL).label == 3


def test_pascal_voc(tmp_path):
    for name in ("a", "b", "c"):
        picture(tmp_path / "JPEGImages" / f"{name}.jpg")
    mask(tmp_path / "SegmentationClass" / "a.png", values=(15, 255), mode="P")
    mask(tmp_path / "SegmentationClass" / "b.png", values=(0, 7), mode="P")
    (tmp_path / "ImageSets" / "Segmentation").mkdir(parents=True)
    (tmp_path / "ImageSets" / "Segmentation" / "val.txt").write_text("a\nb\n")
    data = load_dataset(tmp_path)
    assert [sorted(s.mask.unique().tolist()) for s in data.samples(MODEL)] == [[-1, 1], [0, 1]]


@pytest.mark.parametrize(("values", "expected"), [((0, 1), [0, 1]), ((100, 200), [0, 1]), ((0, 0), [0]), ((1, 1), [1])])
def test_what_counts_as_object(tmp_path, values, expected):
    picture(tmp_path / "images" / "a.png")
    mask(tmp_path / "masks" / "a.png", values=values)
    assert load_dataset(tmp_path).sample(0, MODEL).mask.unique().tolist() == expected


def test_content_is_part_of_the_fingerprint(tmp_path):
    for i in range(4):
        picture(tmp_path / f"{i}.png")
    data = load_dataset(tmp_path)
    before = data.fingerprint(0, 2), data.fingerprint(2, 4)
    picture(tmp_path / "3.png", value=7, size=(21, 30))
    assert data.fingerprint(0, 2) == before[0]
    assert data.fingerprint(2, 4) != before[1]
    assert load_dataset("demo", seed=1).fingerprint(0, 2) != load_dataset("demo").fingerprint(0, 2)
    assert load_dataset("demo", n=5).fingerprint(0, 2) == load_dataset("demo").fingerprint(0, 2)


def imagenet_segmentation(path, sizes=((6, 9), (8, 5)), bad=None):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        refs = file.create_group("#refs#")
        for key in ("img", "gt"):
            file.create_dataset(f"value/{key}", (len(sizes), 1), dtype=h5py.ref_dtype)
        for i, (height, width) in enumerate(sizes):
            colours = np.zeros((3, width, height), np.uint8)
            colours[0, 0, :] = 255  # MATLAB stores (H, W, 3) reversed: the left column is red
            segment = np.zeros((width, height if i != bad else height + 1), np.uint8)
            segment[:, 0] = 1  # the top row is the object
            file["value/img"][i, 0] = refs.create_dataset(f"image{i}", data=colours).ref
            cell = refs.create_dataset(f"cell{i}", (1, 1), dtype=h5py.ref_dtype)
            cell[0, 0] = refs.create_dataset(f"segment{i}", data=segment).ref
            file["value/gt"][i, 0] = cell.ref
    return path


def test_imagenet_segmentation(tmp_path):
    data = load_dataset(imagenet_segmentation(tmp_path / "gtsegs.mat", bad=1))
    assert (len(data), data.name, data.has_masks) == (2, "gtsegs", True)
    item = data.read(0)
    assert item.image.shape == (6, 9, 3)
    assert item.image[:, 0, 0].tolist() == [255] * 6
    assert item.image[:, 1:].sum() == 0
    assert item.mask[0].tolist() == [1] * 9
    assert item.mask[1:].sum() == 0
    assert data.sample(0, MODEL).mask.shape == (32, 32)
    with pytest.raises(BrokenSampleError, match=r"sample 1 \(gtsegs\): the mask has 5x9 pixels, the picture 5x8"):
        data.sample(1, MODEL)


def test_other_mat_files_are_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.mat", "w") as file:
        file["other"] = 1
    (tmp_path / "b.mat").write_bytes(b"MATLAB 5.0")
    with pytest.raises(ArgumentError, match=r"a\.mat has no value/img.*it has other"):
        load_dataset(tmp_path / "a.mat")
    with pytest.raises(ArgumentError, match="not a readable HDF5 file"):
        load_dataset(tmp_path / "b.mat")


def test_the_extra_is_named_where_h5py_is_missing(tmp_path, monkeypatch):
    (tmp_path / "a.mat").touch()
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name == "h5py":
            raise ImportError
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingDependencyError, match=r"xattn\[datasets\]"):
        load_dataset(tmp_path / "a.mat")


def test_what_is_no_data_set_is_refused(tmp_path, monkeypatch):
    for path, message in ((tmp_path / "none", "no file or folder"), (tmp_path, "no pictures in")):
        with pytest.raises(ArgumentError, match=message):
            load_dataset(path)
    (tmp_path / "a.txt").touch()
    with pytest.raises(ArgumentError, match=r"expected a folder, \.csv or"):
        load_dataset(tmp_path / "a.txt")
    with pytest.raises(ArgumentTypeError, match="name or a path"):
        load_dataset(3)
    with pytest.raises(ArgumentError, match="positive"):
        load_dataset("demo", n=0)

    def denied(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.iterdir", denied)
    with pytest.raises(ArgumentError, match=r"cannot read .*Permission denied"):
        load_dataset(tmp_path)


def test_pascal_voc_as_torchvision_unpacks_it(tmp_path):
    root = tmp_path / "VOCdevkit" / "VOC2012"
    picture(root / "JPEGImages" / "a.jpg")
    mask(root / "SegmentationClass" / "a.png", values=(15, 255), mode="P")
    data = load_dataset(tmp_path)
    assert (len(data), data.has_masks) == (1, True)
    assert data.sample(0, MODEL).mask.unique().tolist() == [-1, 1]


def test_imagenet_s(tmp_path):
    names = [("n01443537", "ILSVRC2012_val_1", 1), ("n02102040", "ILSVRC2012_val_2", 600)]
    for folder, name, number in names:
        picture(tmp_path / "validation" / folder / f"{name}.JPEG", size=(30, 20))
        colours = np.zeros((30, 20, 3), np.uint8)
        colours[:10] = (number % 256, number // 256, 0)
        colours[20:] = (1000 % 256, 1000 // 256, 0)  # not labelled
        path = tmp_path / "validation-segmentation" / folder / f"{name}.png"
        path.parent.mkdir(parents=True)
        Image.fromarray(colours).save(path)
    data = load_dataset(tmp_path)
    assert data.classes == ("n01443537", "n02102040")
    for i, (folder, name, _) in enumerate(names):
        item = data.read(i)
        assert (item.label, data.sample_name(i)) == (folder, f"validation/{folder}/{name}.JPEG")
        assert [item.mask[row].unique().tolist() for row in (0, 15, 25)] == [[1], [0], [-1]]


def coco(folder, objects, split="val2017"):
    """Pictures of 20x30 pixels with rectangles (image, x, y, width, height, crowd) as objects."""
    pytest.importorskip("pycocotools")
    images = sorted({one[0] for one in objects} | {9})
    for number in images:
        picture(folder / split / f"{number}.jpg", size=(30, 20))
    annotations = [
        {
            "id": i,
            "image_id": image,
            "category_id": 1,
            "iscrowd": int(crowd),
            "bbox": [x, y, w, h],
            "area": w * h,
            "segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]] if not crowd else whole_picture(),
        }
        for i, (image, x, y, w, h, crowd) in enumerate(objects, 1)
    ]
    facts = {
        "images": [{"id": n, "file_name": f"{n}.jpg", "width": 20, "height": 30} for n in images],
        "annotations": annotations,
        "categories": [{"id": 1, "name": "thing"}],
    }
    (folder / "annotations").mkdir(exist_ok=True)
    (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(facts))


def whole_picture():
    return {"counts": [0, 600], "size": [30, 20]}


def test_coco(tmp_path, capsys):
    coco(tmp_path, [(3, 2, 4, 10, 6, False), (3, 15, 20, 3, 5, False), (7, 0, 0, 5, 5, False), (7, 0, 0, 20, 30, True)])
    coco(tmp_path, [(1, 0, 0, 5, 5, False)], split="train2017")
    data = load_dataset(tmp_path)
    assert capsys.readouterr().out == ""
    assert (data.name, len(data), data.has_masks) == (f"{tmp_path.name} val2017", 2, True)
    assert [data.sample_name(i) for i in range(2)] == ["3.jpg", "7.jpg"]  # the picture without objects is left out
    expected = torch.zeros(30, 20, dtype=torch.int64)
    expected[4:10, 2:12] = expected[20:25, 15:18] = 1
    assert torch.equal(data.read(0).mask, expected)
    crowd = torch.full((30, 20), -1)
    crowd[:5, :5] = 1
    assert torch.equal(data.read(1).mask, crowd)
    copied = pickle.loads(pickle.dumps(data))
    assert torch.equal(copied.read(1).mask, crowd)
    picture(tmp_path / "val2017" / "7.jpg", size=(30, 21))
    with pytest.raises(BrokenSampleError, match=r"sample 1 \(7\.jpg\): the annotations are for 20x30 pixels"):
        data.read(1)
    (tmp_path / "val2017" / "3.jpg").unlink()
    with pytest.raises(BrokenSampleError, match=r"sample 0 \(3\.jpg\)"):
        data.read(0)


def test_what_is_no_coco_is_refused(tmp_path):
    pytest.importorskip("pycocotools")
    (tmp_path / "annotations").mkdir()
    with pytest.raises(ArgumentError, match=r"no instances_\*\.json"):
        load_dataset(tmp_path)
    (tmp_path / "annotations" / "instances_val.json").write_text("[]")
    with pytest.raises(ArgumentError, match=r"instances_val\.json is no file of COCO instances"):
        load_dataset(tmp_path)
