"""Models of timm, transformers and torchvision; no test needs a network."""

import time

import pytest
import torch

from xattn.errors import ArgumentError, UnsupportedModelError, WeightsError
from xattn.models import hub, load


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No hub, an empty cache, and downloads that fail."""
    from huggingface_hub import constants

    def refuse(*_, **__):
        raise OSError("network is unreachable")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("torch.hub.download_url_to_file", refuse)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    "name",
    [
        "timm:vit_tiny_patch16_224",
        "timm:vit_small_patch14_dinov2.lvd142m",
        "hf:nobody/no-such-model",
        "torchvision:vit_b_16",
    ],
)
def test_offline_is_one_prompt_error(name):
    begin = time.perf_counter()
    with pytest.raises(WeightsError, match=f"model '{name}': its weights could not be had") as caught:
        load(name)
    assert time.perf_counter() - begin < 20
    assert "pass it to the method" in str(caught.value)
    assert caught.value.__suppress_context__
    assert "\n" not in str(caught.value)


def test_an_unreachable_hub_is_not_retried(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    before = constants.HF_HUB_OFFLINE
    with hub._no_retries():
        assert constants.HF_HUB_OFFLINE is True
    assert constants.HF_HUB_OFFLINE is before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("timm:vit_tny_patch16_224", "vit_tiny_patch16_224"),
        ("timm:vit_tiny_patch16_224.nonsense", "no such tag.*augreg_in21k"),
        ("torchvision:vit_b16", "vit_b_16"),
        ("torchvision:zzzzzzzz", "There are"),
    ],
)
def test_unknown_names(name, words):
    with pytest.raises(ArgumentError, match=words):
        load(name)


def test_timm_without_published_weights():
    import timm

    published = {name.partition(".")[0] for name in timm.list_pretrained()}
    name = next(name for name in timm.list_models("vit_*") if name not in published)
    with pytest.raises(WeightsError, match="publishes no weights"):
        load(f"timm:{name}")


def test_timm_settings_are_taken_over(monkeypatch):
    import timm

    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: create(name, pretrained=False))
    monkeypatch.setattr(hub, "_reachable", lambda _: False)
    model = load("timm:vit_tiny_patch16_224")
    assert model.transform.size == (224, 224)
    assert model.transform.crop_share == 0.9
    assert len(model.classes) == 1000
    assert model.classes[3] == "tiger shark"
    assert model(model.preprocess(torch.rand(3, 100, 120))[None]).shape == (1, 1000)


def test_torchvision_settings_are_taken_over(monkeypatch):
    import torchvision

    create = torchvision.models.get_model
    monkeypatch.setattr(hub, "weights_model", lambda name, _: create(name))
    model = load("torchvision:vit_b_16")
    assert model.transform.size == (224, 224)
    assert model.transform.crop_share == pytest.approx(224 / 256)
    assert model.transform.interpolation == "bilinear"
    assert model.classes[0] == "tench"


def test_huggingface_folder(tmp_path):
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=32,
        patch_size=8,
        id2label={0: "cat", 1: "dog"},
        label2id={"cat": 0, "dog": 1},
    )
    ViTForImageClassification(config).save_pretrained(tmp_path)
    processor = ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.1] * 3, image_std=[0.2] * 3)
    processor.save_pretrained(tmp_path)
    model = load(f"hf:{tmp_path}")
    assert model.classes == ("cat", "dog")
    assert model.transform.size == (32, 32)
    assert model.transform.crop == "squash"
    assert model.mean == pytest.approx((0.1, 0.1, 0.1))
    assert model(model.preprocess(torch.rand(3, 40, 50))[None]).shape == (1, 2)


@pytest.mark.parametrize("config", [None, "{}", '{"model_type": "vit"}'])
def test_a_folder_that_is_no_saved_model(config, tmp_path):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(WeightsError, match=r"expected a folder with config\.json, preprocessor_config\.json"):
        load(f"hf:{tmp_path}")


def test_huggingface_text_model_is_refused(tmp_path):
    from transformers import BertConfig

    BertConfig().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="'bert' is none"):
        load(f"hf:{tmp_path}")


def test_processor_with_centre_crop():
    class Processor:
        size = {"shortest_edge": 256}  # noqa: RUF012
        crop_size = {"height": 224, "width": 224}  # noqa: RUF012
        do_center_crop = True
        do_normalize = False
        resample = 3

    transform = hub._from_processor(Processor())
    assert transform.size == (224, 224)
    assert transform.crop_share == pytest.approx(0.875)
    assert transform.interpolation == "bicubic"
    assert transform.std == (1.0, 1.0, 1.0)
