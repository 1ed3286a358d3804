"""ZeroShot gives the logits of the image-text model itself, and every method explains it."""

import copy

import pytest
import tiny_models as tiny
import torch
import transformers
from torch import nn
from torch.nn import functional as F

import xattn
from xattn import AttentionTap, ZeroShot
from xattn.attributions import PredictionMap, RawAttention, methods
from xattn.errors import ArgumentError, ArgumentTypeError, UnsupportedModelError

IDS = torch.cat([tiny.words(3, 6), torch.full((3, 1), 2)], 1)  # the end token, which CLIP reads
WORDS = ["a cat", "a dog", "a bird"]


class OpenClipLike(nn.Module):
    """The interface of open_clip: encode_image, encode_text, logit_scale; the image tower ends in a matrix product."""

    def __init__(self):
        super().__init__()
        self.visual = tiny.timm_vit(num_classes=0)
        self.proj = nn.Parameter(torch.randn(tiny.WIDTH, 8))
        self.token_embedding = nn.Embedding(tiny.VOCABULARY, 8)
        self.transformer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def encode_image(self, images, normalize=False):
        features = self.visual(images) @ self.proj
        return F.normalize(features, dim=-1) if normalize else features

    def encode_text(self, text):
        return self.transformer(self.token_embedding(text))[:, -1]

    def forward(self, images, text):
        image, text = self.encode_image(images, normalize=True), F.normalize(self.encode_text(text), dim=-1)
        return image @ text.T * self.logit_scale.exp()


def open_clip():
    """A tiny model of open_clip itself, with random weights."""
    library = pytest.importorskip("open_clip.model", reason="open_clip_torch is not installed (extra: clip)")
    vision = library.CLIPVisionCfg(layers=2, width=tiny.WIDTH, head_width=12, patch_size=tiny.PATCH, image_size=32)
    text = library.CLIPTextCfg(context_length=7, vocab_size=tiny.VOCABULARY, width=16, heads=2, layers=2)
    return tiny.seeded(library.CLIP, 8, vision, text)


def open_clip_like():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return OpenClipLike().eval()


class Tokenizer:
    """The interface of a transformers tokenizer."""

    model_input_names = ("input_ids", "attention_mask")

    def __call__(self, texts, padding, return_tensors):
        assert (padding, return_tensors) == (True, "pt")
        ids = IDS[[WORDS.index(text) for text in texts]]
        return transformers.BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})


class Processor:
    """The interface of a transformers processor."""

    tokenizer = Tokenizer()


def test_logits_are_those_of_clip():
    clip, images = tiny.hf_clip(), tiny.images()
    with torch.no_grad():
        expected = clip(input_ids=IDS, pixel_values=images).logits_per_image
    for texts, tokenizer in (
        (IDS, None),
        ({"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}, None),
        (WORDS, Tokenizer()),
        (WORDS, Processor()),
        (WORDS, lambda texts: IDS[: len(texts)]),
    ):
        model = ZeroShot(clip, texts, tokenizer=tokenizer)
        torch.testing.assert_close(model(images), expected)
        assert model.module is clip
        assert model.classes == (tuple(WORDS) if texts is WORDS else ())


def test_logits_are_those_of_siglip_with_its_bias():
    config = transformers.SiglipConfig(text_config={**tiny._HF, **tiny._HF_TEXT}, vision_config=tiny._HF_IMAGE)
    siglip, images = tiny.seeded(transformers.SiglipModel, config), tiny.images()
    with torch.no_grad():
        expected = siglip(input_ids=IDS, pixel_values=images).logits_per_image
    torch.testing.assert_close(ZeroShot(siglip, IDS)(images), expected)


def test_logits_are_those_of_open_clip():
    model, images = open_clip_like(), tiny.images()
    torch.testing.assert_close(ZeroShot(model, IDS)(images), model(images, IDS))
    torch.testing.assert_close(
        ZeroShot(model, IDS, logit_scale=3)(images), model(images, IDS) / model.logit_scale.exp() * 3
    )


def test_open_clip_itself():
    clip, images = open_clip(), tiny.images()
    model = ZeroShot(clip, IDS)
    with torch.no_grad():
        image, text, scale = clip(images, IDS)
    torch.testing.assert_close(model(images), scale * image @ text.T)
    named = ZeroShot(clip, WORDS, tokenizer=lambda texts: IDS[: len(texts)])  # as open_clip.get_tokenizer gives one
    assert named.classes == tuple(WORDS)
    with AttentionTap() as tap:
        model(images)
    assert [tuple(matrix.shape) for matrix in tap.maps] == [(2, 2, 17, 17)] * 2


def test_only_the_image_tower_is_seen():
    model = ZeroShot(tiny.hf_clip(), IDS)
    with AttentionTap() as tap:
        model(tiny.images())
    assert {record.stream for record in tap.records} == {"module.vision_model.encoder.layers"}
    assert len(tap.maps) == tiny.DEPTH


def test_texts_are_encoded_once():
    clip, calls = tiny.hf_clip(), []
    handle = clip.text_model.register_forward_hook(lambda *_: calls.append(1))
    model = ZeroShot(clip, IDS)
    model(tiny.images())
    RawAttention(model).attribute(tiny.images())
    handle.remove()
    assert calls == [1]


@pytest.mark.filterwarnings("ignore::xattn.errors.PrecisionWarning")
@pytest.mark.parametrize("build", [tiny.hf_clip, open_clip_like, open_clip])
@pytest.mark.parametrize("method", methods)
def test_every_method_explains_it(method, build):
    model = ZeroShot(build(), IDS).eval()
    relevance = methods[method](model).attribute(tiny.images(), target=1)
    assert relevance.shape == (2, 3, 32, 32)
    assert relevance.isfinite().all()
    assert relevance.abs().sum() > 0


def test_prediction_maps_are_similarities_of_patches():
    clip, images = tiny.hf_clip().double(), tiny.images(dtype=torch.float64)
    model = ZeroShot(clip, IDS)
    with torch.no_grad():
        tokens = clip.vision_model(images, output_hidden_states=True).hidden_states[-2][:, 1:]
        features = F.normalize(clip.visual_projection(clip.vision_model.post_layernorm(tokens)), dim=-1)
        expected = (features @ model.text_features.T * clip.logit_scale.exp()).mT
    actual = PredictionMap(model, space="logit").maps(images).flatten(2)
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-8)


def test_the_model_is_left_as_it_was():
    clip = tiny.hf_clip()
    clip.train()
    clip.vision_model.eval()
    flags = [module.training for module in clip.modules()]
    state = copy.deepcopy(clip.state_dict())
    model = ZeroShot(clip, IDS)
    assert [module.training for module in clip.modules()] == flags
    assert all(torch.equal(value, state[name]) for name, value in clip.state_dict().items())
    assert not model.text_features.requires_grad
    with torch.inference_mode():
        born_here = ZeroShot(clip.eval(), IDS)
    assert not born_here.text_features.is_inference()


def test_dtype_follows_the_image():
    model = ZeroShot(tiny.hf_clip(), IDS).to(torch.bfloat16)
    assert model(tiny.images(dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "message"),
    [
        ((3, IDS), {}, ArgumentTypeError, "model: expected a module"),
        ((nn.Linear(2, 2), IDS), {}, UnsupportedModelError, "neither"),
        ((None, WORDS), {}, ArgumentError, "tokenizer: strings need one"),
        ((None, []), {}, ArgumentError, "texts: expected at least one"),
        ((None, "a cat"), {}, ArgumentTypeError, "texts: expected a list of strings"),
        ((None, [1, 2]), {}, ArgumentTypeError, "texts: expected a list of strings"),
        ((None, IDS[0]), {}, ArgumentError, "texts: expected token ids"),
        ((None, IDS.float()), {}, ArgumentError, "texts: expected token ids"),
        ((None, WORDS), {"tokenizer": list}, ArgumentTypeError, "tokenizer: expected token ids"),
        ((None, IDS), {"logit_scale": -1}, ArgumentError, "logit_scale: expected a positive number"),
    ],
)
def test_wrong_arguments(args, kwargs, error, message):
    model = open_clip_like() if args[0] is None else args[0]
    with pytest.raises(error, match=message):
        ZeroShot(model, args[1], **kwargs)


def test_a_model_without_a_scale_needs_one():
    model = open_clip_like()
    del model.logit_scale
    with pytest.raises(ArgumentError, match="has none of its own"):
        ZeroShot(model, IDS)
    assert ZeroShot(model, IDS, logit_scale=1.0)(tiny.images()).abs().max() <= 1 + 1e-6


def test_it_is_exported():
    assert "ZeroShot" in xattn.__all__
    assert "texts=3" in repr(ZeroShot(open_clip_like(), IDS))


@pytest.mark.parametrize("build", [tiny.hf_clip, open_clip, open_clip_like])
def test_a_model_without_its_texts_is_sent_here(build):
    with pytest.raises(UnsupportedModelError, match=r"forward_func: \w+ compares images with texts.*xattn\.ZeroShot"):
        RawAttention(build()).attribute(tiny.images())
    with pytest.raises(UnsupportedModelError, match=r"xattn\.ZeroShot"):
        xattn.explain(build(), tiny.images()[0], methods="raw_attention")


def test_a_model_with_its_texts_keeps_its_own_errors():
    model = ZeroShot(tiny.hf_clip(), IDS)
    with pytest.raises(ArgumentError, match="inputs: the model refused images of shape"):
        RawAttention(model).attribute(torch.rand(1, 3, 40, 40))
