"""Pictures of every kind become the same tensor, and what is no picture is refused by name."""

import numpy as np
import pytest
import torch
from PIL import Image

from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.models import Preprocess, read_image


@pytest.fixture
def picture():
    return np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)


def test_file_pil_array_and_tensor_agree(tmp_path, picture):
    file = tmp_path / "picture.png"
    Image.fromarray(picture).save(file)
    wanted = torch.from_numpy(picture).permute(2, 0, 1).float() / 255
    kinds = [str(file), file, Image.fromarray(picture), picture, picture / 255, picture.astype(np.float32) / 255]
    kinds += [torch.from_numpy(picture).permute(2, 0, 1), wanted, wanted.double()]
    preprocess = Preprocess((24, 24), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    expected = preprocess(picture)
    assert expected.shape == (3, 24, 24)
    assert expected.dtype == torch.float32
    for kind in kinds:
        assert torch.allclose(read_image(kind), wanted, atol=1e-6)
        assert torch.allclose(preprocess(kind), expected, atol=1e-5)


@pytest.mark.parametrize("mode", ["L", "1", "P", "CMYK", "YCbCr", "I", "F", "I;16", "LA", "RGBA"])
def test_pil_modes(picture, mode):
    grey = Image.fromarray(picture).convert("L")
    if mode in ("I;16", "I"):
        image = Image.fromarray(np.array(grey).astype(np.uint16) * 257).convert(mode)
    else:
        image = (grey if mode in ("F", "LA") else Image.fromarray(picture)).convert(mode)
    values = read_image(image)
    assert values.shape == (3, 30, 40)
    assert 0 <= values.min() < values.max() <= 1
    if mode in ("L", "I", "F", "I;16", "LA"):
        assert torch.allclose(values[1] * 255, torch.from_numpy(np.array(grey)).float(), atol=0.51)


def test_transparency_is_laid_on_white():
    array = np.zeros((4, 4, 4), dtype=np.uint8)
    array[:2, :, 3] = 255
    palette = Image.new("P", (2, 2), 0)
    palette.putpalette([255, 0, 0, 0, 255, 0])
    palette.info["transparency"] = 0
    for kind in (array, Image.fromarray(array), torch.from_numpy(array).permute(2, 0, 1)):
        values = read_image(kind)
        assert values[:, 0, 0].tolist() == [0, 0, 0]
        assert values[:, 3, 3].tolist() == [1, 1, 1]
    assert read_image(palette).min() == 1


def test_grey_arrays(picture):
    grey = picture[..., 0]
    for kind in (grey, grey[..., None], torch.from_numpy(grey)[None]):
        values = read_image(kind)
        assert values.shape == (3, 30, 40)
        assert torch.equal(values[0], values[2])


def test_exif_rotation_is_applied(tmp_path, picture):
    file = tmp_path / "rotated.png"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture).save(file, exif=exif)
    turned = torch.from_numpy(np.rot90(picture, -1).copy()).permute(2, 0, 1).float() / 255
    assert torch.allclose(read_image(file), turned)
    with Image.open(file) as opened:
        assert torch.allclose(read_image(opened), turned)


def test_bad_files_are_named(tmp_path, picture):
    with pytest.raises(ArgumentError, match=r"no file .*absent\.png"):
        read_image(tmp_path / "absent.png")
    text = tmp_path / "text.jpg"
    text.write_text("not a picture")
    whole = tmp_path / "whole.png"
    Image.fromarray(picture).save(whole)
    cut = tmp_path / "cut.png"
    cut.write_bytes(whole.read_bytes()[:300])
    empty = tmp_path / "empty.png"
    empty.touch()
    for file in (text, cut, empty):
        with pytest.raises(ArgumentError, match=file.name) as caught:
            read_image(file)
        assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("image", "error", "words"),
    [
        (torch.zeros(1, 3, 8, 8), ArgumentError, r"\(channels, H, W\)"),
        (np.zeros((8,), np.uint8), ArgumentError, r"\(H, W\)"),
        (np.zeros((3, 8, 9), np.uint8), ArgumentError, "channels"),
        (np.zeros((0, 8, 3), np.uint8), ArgumentError, "no empty side"),
        (np.zeros((8, 8, 3), np.int64), ArgumentTypeError, "int64"),
        (torch.zeros(3, 8, 8, dtype=torch.int64), ArgumentTypeError, "int64"),
        (np.full((8, 8, 3), np.nan), ArgumentError, "NaN"),
        (torch.full((3, 8, 8), torch.inf), ArgumentError, "infinite"),
        (torch.full((3, 8, 8), -2.0), ArgumentError, "preprocessed already"),
        (None, ArgumentTypeError, "NoneType"),
    ],
)
def test_what_is_no_picture(image, error, words):
    with pytest.raises(error, match=words):
        read_image(image)


def test_geometry_and_way_back():
    image = torch.zeros(3, 40, 80)
    image[:, :, 20:60] = 1
    center, squash = Preprocess((20, 20)), Preprocess((20, 20), crop="squash")
    assert center.denormalize(center(image)).min() > 0.9
    assert squash.denormalize(squash(image))[:, :, 0].max() < 0.1
    mask = image[0].bool()
    assert center.mask(mask).all()
    assert squash.mask(mask).sum() == 200
    assert squash.mask(mask[None, None].expand(2, 3, -1, -1)).shape == (2, 3, 20, 20)
    labels = torch.full((40, 80), 255, dtype=torch.uint8)
    assert center.mask(labels).dtype == torch.uint8
    assert (center.mask(labels) == 255).all()
    odd = Preprocess((17, 23), crop_share=0.9)
    assert odd(torch.rand(3, 31, 29)).shape == (3, 17, 23)


def test_a_picture_of_the_right_size_is_only_normalised():
    image = torch.rand(3, 24, 24)
    preprocess = Preprocess((24, 24), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    assert torch.allclose(preprocess.denormalize(preprocess(image)), image, atol=1e-6)
    batch = torch.stack([preprocess(image)] * 2)
    assert torch.allclose(preprocess.denormalize(batch)[1], image, atol=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 32},
        {"size": (0, 32)},
        {"size": (32, -1)},
        {"size": (32.0, 32.0)},
        {"mean": (0.5, 0.5)},
        {"mean": (0.5, 0.5, float("nan"))},
        {"std": (0.5, 0.5, 0.0)},
        {"std": "abc"},
        {"crop": "middle"},
        {"crop_share": 0},
        {"interpolation": "cubic"},
    ],
)
def test_nonsense_is_refused(wrong):
    (argument,) = wrong
    with pytest.raises(ArgumentError, match=f"^{argument}: expected"):
        Preprocess(**({"size": (32, 32)} | wrong))
