"""Models by name: the two that need no hub, and what a loaded model can do."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from xattn.errors import ArgumentError, ArgumentTypeError, UnsupportedModelError, WeightsError
from xattn.models import Model, Preprocess, catalogue, demo, load
from xattn.models.scenes import NAMES, Scenes


@pytest.fixture(scope="module")
def model():
    return load("demo")


def test_demo_is_an_unmodified_timm_transformer(model):
    from timm.models.vision_transformer import VisionTransformer

    assert type(model.module) is VisionTransformer
    assert not model.module.training
    assert model.classes == NAMES
    assert model.layout.grid == (12, 12)
    assert model.dtype == torch.float32
    assert (demo._WEIGHTS / "demo.safetensors").stat().st_size < 3e6


def test_demo_names_held_out_objects(model):
    images, labels, _ = Scenes("test", 400).batch()
    x = torch.stack([model.preprocess(image) for image in images])
    with torch.no_grad():
        right = (model(x).argmax(1) == labels[:, 0]).float().mean()
    assert right >= 0.95
    assert demo.record()["test"]["accuracy"] >= 0.97
    assert demo.record()["test"]["scenes"] >= 2000


def test_demo_sees_one_of_two_objects(model):
    images, labels, _ = Scenes("two-object", 150).batch()
    with torch.no_grad():
        best = model(torch.stack([model.preprocess(image) for image in images])).argmax(1)
    assert (best[:, None] == labels).any(1).float().mean() >= 0.9


def test_two_loads_are_equal_and_independent(model):
    other = load("demo")
    x = torch.randn(2, 3, 96, 96)
    assert torch.equal(model(x), other(x))
    other.module.head.weight.data.zero_()
    assert not torch.equal(model(x), other(x))


def test_dtype():
    half = load("demo", dtype=torch.bfloat16)
    x = half.preprocess(Scenes("test", 1)[0].image)
    assert x.dtype == torch.bfloat16
    assert half(x[None]).dtype == torch.bfloat16
    with pytest.raises(ArgumentError, match="floating point"):
        load("demo", dtype=torch.int8)


def test_a_model_is_a_forward_func_for_captum(model):
    from captum.attr import Saliency

    x = torch.stack([model.preprocess(scene.image) for scene in Scenes("test", 2)]).requires_grad_()
    assert Saliency(model).attribute(x, target=[0, 1]).shape == x.shape


def test_predict(model):
    scenes = Scenes("test", 3)
    x = torch.stack([model.preprocess(scene.image) for scene in scenes])
    batch = model.predict(x, k=4)
    assert [len(row) for row in batch] == [4, 4, 4]
    assert model.predict(x[1], k=4)[0][0].name == batch[1][0].name
    for row in batch:
        assert [p.probability for p in row] == sorted((p.probability for p in row), reverse=True)
        assert all(model.classes[p.index] == p.name for p in row)
    assert sum(p.probability for p in model.predict(x[0], k=99)[0]) == pytest.approx(1, abs=1e-5)
    with pytest.raises(ArgumentError, match="at least 1"):
        model.predict(x, k=0)


def test_class_index(model):
    assert model.class_index("Fish") == model.class_index(NAMES.index("fish")) == model.class_index("6") == 6
    with pytest.raises(ArgumentError, match="crescent"):
        model.class_index("cresent")
    for wrong in (10, "10", -1, "-1"):
        with pytest.raises(ArgumentError, match="0 to 9"):
            model.class_index(wrong)


def test_denormalize_is_the_way_back(model):
    image = Scenes("test", 1)[0].image
    assert torch.allclose(model.denormalize(model.preprocess(image)), image, atol=1e-6)
    assert model.mean == (0.5, 0.5, 0.5)
    assert model.std == (0.25, 0.25, 0.25)


def test_outputs_that_are_not_tensors():
    class Output:
        logits = torch.ones(1, 2)

    wrapped = Model("wrapped", torch.nn.Identity(), Preprocess((8, 8)))
    assert wrapped(Output()).shape == (1, 2)
    assert wrapped.predict(torch.eye(2), k=1)[1][0].name == "class 1"
    with pytest.raises(UnsupportedModelError, match="logits"):
        wrapped({"features": torch.ones(1)})


def test_unknown_names_list_the_choices():
    with pytest.raises(ArgumentError, match=r"photos.*timm:NAME.*Did you mean 'demo'"):
        load("dmo")
    for wrong in ("", "timm:", "keras:resnet", "demo:x"):
        with pytest.raises(ArgumentError, match="choose from"):
            load(wrong)
    with pytest.raises(ArgumentTypeError, match="Path"):
        load(type("Path", (), {})())


def test_catalogue_lists_what_load_takes():
    assert {"demo", "photos", "timm:NAME", "hf:NAME", "torchvision:NAME"} <= {entry.name for entry in catalogue()}
    assert all(field for entry in catalogue() for field in entry)


def test_a_changed_weights_file_is_refused(tmp_path):
    changed = tmp_path / "demo.safetensors"
    state = load_file(demo._WEIGHTS / "demo.safetensors")
    state["head.bias"][0] += 1
    save_file(state, changed)
    expected = json.loads((demo._WEIGHTS / "demo.json").read_text())["sha256"]
    with pytest.raises(WeightsError, match=rf"expected SHA-256 {expected}, found [0-9a-f]{{64}}"):
        demo.load(changed)
    with pytest.raises(WeightsError, match="no weights file"):
        demo.load(tmp_path / "absent.safetensors")


def test_importing_models_brings_no_model_library():
    code = "import sys, xattn.models; print([m for m in ('timm', 'torchvision', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_layout_is_what_a_forward_call_shows():
    from xattn.attributions import RawAttention

    model = load("demo")
    images = torch.rand(1, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    assert RawAttention(model)._forward(images, None, (), None).layout == model.layout


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": 3},
        {"module": lambda x: x},
        {"transform": (32, 32)},
        {"classes": "cat"},
        {"classes": (1, 2)},
        {"layout": ("cls",)},
    ],
)
def test_parts_of_a_model_have_their_types(wrong):
    (argument,) = wrong
    parts = {"name": "mine", "module": torch.nn.Identity(), "transform": Preprocess((8, 8))}
    with pytest.raises(ArgumentTypeError, match=f"^{argument}: expected"):
        Model(**(parts | wrong))
