import json
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pytest
import timm
import torch
from captum.attr import Saliency
from PIL import Image
from safetensors.torch import save_file

import xattn.models
from xattn.attributions import CenterPrior, NBounceAttention, TokenRank, methods
from xattn.errors import ArgumentError, ArgumentTypeError, UnsupportedModelError
from xattn.explain import Explanation, configuration, explain
from xattn.explanation import ClassProbability, save_arrays, write_atomically
from xattn.models.image import Preprocess
from xattn.models.model import Model

CLASSES = ("star", "ring", "cross", "heart", "fish")


def vit(**options):
    torch.manual_seed(0)
    settings = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 5}
    return timm.models.vision_transformer.VisionTransformer(**{**settings, **options})


@pytest.fixture(scope="module")
def model():
    return Model("tiny", vit().eval(), Preprocess((32, 32)), CLASSES)


@pytest.fixture(scope="module")
def picture():
    return torch.rand(3, 40, 48, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def explanation(model, picture):
    return explain(model, picture)


def assert_same(one, other):
    assert one.facts() == other.facts()
    assert list(one.maps) == list(other.maps)
    for name in one.maps:
        assert one.maps[name].dtype == other.maps[name].dtype
        assert torch.equal(one.maps[name], other.maps[name])
    assert torch.equal(one.image, other.image)
    assert torch.equal(one.input, other.input)
    assert one.input.dtype == other.input.dtype


def test_maps_are_what_the_methods_give(model, picture, explanation):
    batch = model.preprocess(picture)[None]
    assert list(explanation.maps) == list(methods)
    for name, relevance in explanation.maps.items():
        expected = methods[name](model).attribute(batch, target=explanation.target, resolution="patch")[0]
        assert torch.equal(relevance, expected), name
        assert relevance.shape == (4, 4)
        assert not relevance.requires_grad


def test_prediction_target_and_shown_image(model, picture, explanation):
    batch = model.preprocess(picture)[None]
    probabilities = model(batch).detach().double().softmax(-1)[0]
    assert [entry.index for entry in explanation.prediction] == probabilities.argsort(descending=True).tolist()
    assert [entry.probability for entry in explanation.prediction] == pytest.approx(
        sorted(probabilities.tolist())[::-1]
    )
    assert explanation.target == int(probabilities.argmax())
    assert explanation.target_name == CLASSES[explanation.target] == explanation.prediction[0].name
    assert torch.allclose(explanation.image, model.denormalize(batch[0]))
    assert torch.equal(explanation.input, batch[0])
    assert set(explanation.seconds) == set(methods)
    assert all(value > 0 for value in explanation.seconds.values())
    assert {"xattn", "torch", "timm"} <= set(explanation.versions)


def test_map_resolutions(explanation):
    patches = explanation.map("tokenrank", "patch")
    pixels = explanation.map("tokenrank")
    assert pixels.shape == (32, 32)
    assert torch.equal(pixels, patches.repeat_interleave(8, 0).repeat_interleave(8, 1))
    assert not torch.equal(explanation.map("tokenrank", interpolation="bilinear"), pixels)
    with pytest.raises(ArgumentError, match="method: expected one of tokenrank"):
        explanation.map("shap")
    with pytest.raises(ArgumentError, match="resolution: expected"):
        explanation.map("tokenrank", "token")


@pytest.mark.parametrize("kind", ["path", "string", "pil", "array", "tensor", "preprocessed"])
def test_every_kind_of_image(kind, model, picture, tmp_path):
    data = (picture * 255).round().byte().permute(1, 2, 0).numpy()
    expected = explain(model, data, "tokenrank")
    file = tmp_path / "picture.png"
    Image.fromarray(data).save(file)
    image = {
        "path": file,
        "string": str(file),
        "pil": Image.fromarray(data),
        "array": data.astype(np.float64) / 255,
        "tensor": torch.from_numpy(data).permute(2, 0, 1),
        "preprocessed": model.preprocess(data)[None],
    }[kind]
    found = explain(model, image, "tokenrank")
    assert torch.allclose(found.maps["tokenrank"], expected.maps["tokenrank"], atol=1e-6)
    assert found.source == (str(file) if kind in ("path", "string") else "")


def test_methods_by_name_class_object_and_mapping(model, picture):
    three = NBounceAttention(model, n=3)
    found = explain(model, picture, ["TokenRank", "n-bounce", CenterPrior, three])
    assert list(found.maps) == ["tokenrank", "n_bounce", "center", "n_bounce #2"]
    assert (found.methods["n_bounce"]["n"], found.methods["n_bounce #2"]["n"]) == (2, 3)
    assert not torch.equal(found.maps["n_bounce"], found.maps["n_bounce #2"])
    named = explain(model, picture, {"one": NBounceAttention(model, n=1), "three": three})
    assert list(named.maps) == ["one", "three"]
    assert torch.equal(named.maps["three"], found.maps["n_bounce #2"])


def test_configuration_is_complete_and_json(model, picture):
    seeded = TokenRank(model, layers=[0, 1], personalization=CenterPrior(model, sigma=0.25))
    facts = explain(model, picture, seeded).methods["tokenrank"]
    assert facts["class"] == "xattn.attributions.markov.TokenRank"
    assert facts["layers"] == [0, 1]
    assert facts["personalization"]["sigma"] == 0.25
    assert json.loads(json.dumps(facts)) == facts


def test_any_configuration_becomes_json():
    @dataclass(frozen=True)
    class Rules:
        table: Mapping[str, object]
        shape: tuple[int, ...]

    class Method:
        def __init__(self, forward_func, rules, start, how, unseen=0):
            self.rules, self.start, self.how = rules, start, how

        def attribute(self):
            pass

    rules = Rules(MappingProxyType({"linear": len, "seed": torch.tensor([1, 2])}), (2, 3))
    facts = configuration(Method(None, rules, {1, 2}, TokenRank))
    assert facts["rules"] == {"table": {"linear": "len", "seed": [1, 2]}, "shape": [2, 3]}
    assert (facts["start"], facts["how"]) == ("set", "TokenRank")
    assert "unseen" not in facts
    assert json.loads(json.dumps(facts)) == facts


def test_layers_reach_the_methods_that_choose_them(model, picture):
    found = explain(model, picture, ["tokenrank", "attention_rollout"], layers=0)
    assert torch.equal(found.maps["tokenrank"], explain(model, picture, TokenRank(model, layers=0)).maps["tokenrank"])
    assert not torch.equal(found.maps["tokenrank"], explain(model, picture, "tokenrank").maps["tokenrank"])
    with pytest.raises(ArgumentError, match="layers: none of attention_rollout chooses layers"):
        explain(model, picture, "attention_rollout", layers=0)
    with pytest.raises(ArgumentError, match="layers: no self-attention layer 7"):
        explain(model, picture, "tokenrank", layers=7)


@pytest.mark.parametrize("target", [3, "heart", "Heart", "3"])
def test_target_by_number_and_name(target, model, picture):
    found = explain(model, picture, "tokenrank", target)
    assert (found.target, found.target_name) == (3, "heart")
    assert "explained: heart" in found.title or found.prediction[0].index == 3


def test_a_captum_method_keeps_its_pixels(model, picture):
    found = explain(model, picture, {"saliency": Saliency(model)}, target=1)
    batch = model.preprocess(picture)[None].requires_grad_()
    expected = Saliency(model).attribute(batch, target=1)[0].sum(0)
    assert torch.allclose(found.maps["saliency"], expected)


def test_warnings_of_a_method_are_kept_and_passed_on(model, picture, tmp_path):
    class Worried(TokenRank):
        def _relevance(self, forward, reducer):
            warnings.warn("uniform restart", stacklevel=2)
            return super()._relevance(forward, reducer)

    with pytest.warns(UserWarning, match="uniform restart"):
        found = explain(model, picture, [Worried(model), "center"])
    assert found.warnings == {"tokenrank": ["uniform restart"]}
    assert Explanation.load(found.save(tmp_path / "a.safetensors")).warnings == found.warnings
    assert "uniform restart" in found._repr_html_()


def test_any_callable_with_a_tensor():
    module = vit()
    image = torch.randn(3, 32, 32)
    found = explain(module, image, "tokenrank")
    assert found.model == "VisionTransformer"
    assert module.training
    assert found.prediction[0].name == f"class {found.prediction[0].index}"
    assert (found.image.min(), found.image.max()) == (0, 1)
    wrapped = explain(lambda x: module(x), image[None], "tokenrank")
    assert torch.equal(wrapped.maps["tokenrank"], found.maps["tokenrank"])


def test_a_model_by_name_is_loaded(monkeypatch, model, picture):
    asked = []
    monkeypatch.setattr(xattn.models, "load", lambda name, **options: asked.append(name) or model)
    assert explain("tiny", picture, "tokenrank").model == "tiny"
    assert asked == ["tiny"]


def test_refusals_are_reported_by_default_and_raised_by_name(picture):
    pooled = Model("pooled", vit(class_token=False, global_pool="avg").eval(), Preprocess((32, 32)), CLASSES)
    found = explain(pooled, picture)
    assert set(found.skipped) >= {name for name, method in methods.items() if method.needs_class_token}
    assert "class token" in found.skipped["dino_attention"]
    assert set(found.maps) == set(methods) - set(found.skipped)
    with pytest.raises(UnsupportedModelError, match="needs a class token"):
        explain(pooled, picture, ["tokenrank", "dino_attention"])


def test_a_model_that_every_method_refuses_raises():
    convolution = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 8, 8), torch.nn.Flatten(), torch.nn.Linear(64, 5))
    with pytest.raises(ValueError, match="no attention was seen"):
        explain(convolution, torch.rand(3, 32, 32))


def test_an_embedding_model_has_no_prediction():
    class Output:
        pass

    module = vit(num_classes=0)

    def features(x):
        module(x)
        return Output()

    found = explain(features, torch.rand(3, 32, 32))
    assert found.prediction == ()
    assert found.target is None
    assert found.target_name == ""
    assert not any(methods[name].is_class_specific for name in found.maps)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"methods": "shap"}, ArgumentError, "method: expected one of tokenrank.*got 'shap'"),
        ({"methods": []}, ArgumentError, "methods: expected at least one"),
        ({"methods": [3]}, ArgumentTypeError, "methods: expected names, classes"),
        ({"methods": [Saliency]}, ArgumentTypeError, "methods: expected names, classes"),
        ({"target": 5}, ArgumentError, r"target: .*0\.\.4, got 5"),
        ({"target": -1}, ArgumentError, "target: expected a class"),
        ({"target": "dog"}, ArgumentError, "target: .*'dog'"),
        ({"target": 1.5}, ArgumentTypeError, "target: expected a number or a name"),
        ({"image": torch.rand(2, 3, 32, 32)}, ArgumentError, "image: expected one image"),
        (
            {"image": torch.rand(1, 3, 30, 30)},
            ArgumentError,
            r"model 'tiny' failed on an input of shape \(1, 3, 30",
        ),
        ({"image": torch.full((1, 3, 32, 32), float("nan"))}, ArgumentError, "NaN"),
        ({"image": "missing.png"}, ArgumentError, "there is no file 'missing.png'"),
        ({"model": 7}, ArgumentTypeError, "model: expected a name"),
        ({"model": "no such model"}, ArgumentError, "no model 'no such model'"),
        ({"device": "quantum"}, ArgumentError, "device: 'quantum' cannot be used"),
    ],
)
def test_bad_arguments_are_named(change, error, message, model, picture):
    arguments = {"model": model, "image": picture, "methods": "tokenrank", **change}
    with pytest.raises(error, match=message):
        explain(**arguments)


def test_a_bare_module_wants_a_tensor():
    with pytest.raises(ArgumentTypeError, match=r"image: expected a tensor \(C, H, W\)"):
        explain(vit(), "cat.png", "tokenrank")
    with pytest.raises(ArgumentError, match="this model has no class names"):
        explain(vit(), torch.rand(3, 32, 32), "tokenrank", "cat")


def test_round_trip_is_exact(explanation, tmp_path):
    file = explanation.save(tmp_path / "new" / "cat.safetensors")
    assert_same(Explanation.load(file), explanation)
    assert [path.name for path in file.parent.iterdir()] == ["cat.safetensors"]


def test_round_trip_keeps_dtypes_nan_and_unusual_facts(tmp_path):
    odd = Explanation(
        image=torch.rand(3, 4, 4),
        input=torch.rand(3, 4, 4).to(torch.bfloat16),
        maps={"z": torch.rand(2, 2).double(), "ä/b": torch.full((2, 2), float("nan")).half(), "t": torch.rand(2, 3).T},
        prediction=(ClassProbability("größer & <b>", 1, 0.1 + 0.2),),
        target=(1, 2),
        skipped={"x": "why"},
    )
    found = Explanation.load(odd.save(tmp_path / "odd.safetensors"))
    assert list(found.maps) == ["z", "ä/b", "t"]
    assert found.maps["ä/b"].isnan().all()
    assert found.maps["ä/b"].dtype == torch.float16
    assert torch.equal(found.maps["z"], odd.maps["z"])
    assert torch.equal(found.maps["t"], odd.maps["t"])
    assert found.facts() == odd.facts()
    assert found.target == (1, 2)
    assert found.prediction == odd.prediction
    assert found.input.dtype == torch.bfloat16


def test_files_that_are_none_of_ours_are_refused(explanation, tmp_path):
    whole = explanation.save(tmp_path / "whole.safetensors")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(whole.read_bytes()[:-100])
    foreign = tmp_path / "foreign.safetensors"
    save_file({"a": torch.zeros(1)}, foreign)
    text = tmp_path / "text.safetensors"
    text.write_text("hello")
    for path, message in (
        (cut, "cut.safetensors' is damaged"),
        (text, "is damaged or not written by"),
        (foreign, "is a safetensors file, but not one of"),
        (tmp_path / "missing", "there is no file"),
    ):
        with pytest.raises(ArgumentError, match=message):
            Explanation.load(path)


def test_a_failed_write_leaves_what_was_there(tmp_path):
    file = tmp_path / "a.bin"
    file.write_bytes(b"old")

    def fail(handle):
        handle.write(b"half")
        raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        write_atomically(file, fail)
    assert file.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    with pytest.raises(ArgumentError, match="cannot write"):
        write_atomically(file / "below" / "b.bin", fail)


def test_arrays_hold_all_maps_and_facts(explanation, model, picture, tmp_path):
    other = explain(model, picture.flip(2))
    file = save_arrays([explanation, other], tmp_path / "both.npz")
    with np.load(file) as arrays:
        assert arrays["methods"].tolist() == list(methods)
        assert arrays["images"].shape == (2, 3, 32, 32)
        for name in methods:
            assert np.array_equal(arrays[f"map/{name}"], np.stack([explanation.maps[name], other.maps[name]]))
        assert json.loads(str(arrays["facts"]))[1]["target"] == other.target


def test_notebooks_show_figure_and_prediction(explanation):
    markup = explanation._repr_html_()
    assert 'src="data:image/png;base64,iVBOR' in markup
    assert f"Explained: <b>{explanation.target_name}</b>" in markup
    figure = explanation.plot()
    assert {ax.get_title() for ax in figure.axes if ax.get_title()} == {"image", *methods}
    assert figure.get_suptitle() == explanation.title
    assert explanation.plot(title="mine").get_suptitle() == "mine"


def test_notebooks_say_how_it_was_made(model, picture):
    weights = torch.rand(17)  # of the class token and 4 x 4 patches
    found = explain(model, picture, {"<mine>": TokenRank(model, personalization=weights)}, target=3)
    markup = found._repr_html_()
    origin = markup[markup.index("How this was made") :]
    assert "&lt;mine&gt;" in origin
    assert "TokenRank(layers=-1, tokens=&#x27;patches&#x27;" in origin
    assert "personalization=[" in origin
    assert len(origin) < 2000  # long arguments are cut
    for fact in (found.model, found.target_name, f"torch {found.versions['torch']}"):
        assert fact in origin


def test_its_representation_is_one_short_line(model, picture):
    found = explain(model, picture, ["tokenrank", "center"])
    assert repr(found) == f"<Explanation {found.title}; tokenrank (4, 4), center (4, 4)>"


def test_the_package_gives_the_function_whatever_was_imported_first():
    code = """
import xattn
from xattn import Explanation
import xattn.explain
from xattn import explain
try:
    explain(7, None)
except TypeError as error:
    print(error)
try:
    xattn.explain(7, None)
except TypeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("model: expected a name, a loaded Model") == 2
