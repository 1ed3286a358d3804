"""Layouts found from a model and its input, without a word from the user."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import (
    CLASSES,
    DEPTH,
    WIDTH,
    LinearPatches,
    ToyBlock,
    TwoStages,
    hf_bert,
    hf_clip,
    hf_clip_text,
    hf_clip_vision,
    hf_dinov2,
    hf_gpt2,
    hf_swin,
    hf_vit,
    images,
    seeded,
    timm_deit_distilled,
    timm_dinov2,
    timm_swin,
    timm_vit,
    torch_encoder,
    torchvision_swin,
    torchvision_vit,
    words,
)
from torch import Tensor, nn

from xattn import TokenLayout
from xattn.attributions._forward import run_forward
from xattn.errors import ArgumentError, LayoutError, UnsupportedModelError

CLS, DIST, REGISTERS = ("cls",), ("cls", "dist"), ("register",) * 4


def image_layout(prefix: tuple[str, ...] = CLS, grid: tuple[int, int] = (4, 4), pooling: Any = "token") -> TokenLayout:
    return TokenLayout(prefix=prefix, grid=grid, pooling=pooling)


class WithHead(nn.Module):
    """A backbone's first output token as logits."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        return self.backbone(x, **kwargs)[0][:, 0]


IMAGE_MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int], TokenLayout]] = {
    "timm": (timm_vit, (32, 32), image_layout()),
    "timm_registers": (lambda: timm_vit(reg_tokens=4), (32, 32), image_layout(CLS + REGISTERS)),
    "timm_only_registers": (
        lambda: timm_vit(reg_tokens=4, class_token=False, global_pool="avg"),
        (32, 32),
        image_layout(REGISTERS, pooling="avg"),
    ),
    "timm_average": (
        lambda: timm_vit(class_token=False, global_pool="avg"),
        (32, 32),
        image_layout((), pooling="avg"),
    ),
    "timm_average_beside_class_token": (lambda: timm_vit(global_pool="avg"), (32, 32), image_layout(pooling="avg")),
    "timm_pooling": (lambda: timm_vit(class_token=False, global_pool="map"), (32, 32), image_layout((), pooling="map")),
    "timm_distilled": (timm_deit_distilled, (32, 32), image_layout(DIST)),
    "timm_dinov2": (timm_dinov2, (28, 28), image_layout(grid=(2, 2))),
    # 5 prefix tokens and 4 patches are nine tokens, and not 3 x 3
    "timm_dinov2_registers": (lambda: timm_dinov2(registers=True), (28, 28), image_layout(CLS + REGISTERS, (2, 2))),
    "torchvision": (torchvision_vit, (32, 32), image_layout()),
    "hf_vit": (hf_vit, (32, 32), image_layout()),
    "hf_vit_eager": (lambda: hf_vit("eager"), (32, 32), image_layout()),
    "hf_dinov2": (lambda: WithHead(hf_dinov2()), (32, 32), image_layout()),
    "hf_dinov2_registers": (lambda: WithHead(hf_dinov2(registers=True)), (32, 32), image_layout(CLS + REGISTERS)),
    "hf_clip_vision": (lambda: WithHead(hf_clip_vision()), (32, 32), image_layout()),
    # 16 patches in a row of two by eight, and not 4 x 4
    "timm_wide": (lambda: timm_vit(img_size=(16, 64)), (16, 64), image_layout(grid=(2, 8))),
    "timm_tall": (
        lambda: timm_vit(img_size=(64, 16), class_token=False, global_pool="avg"),
        (64, 16),
        image_layout((), (8, 2), "avg"),
    ),
    "timm_dynamic": (lambda: timm_vit(dynamic_img_size=True), (24, 40), image_layout(grid=(3, 5))),
    "timm_padded": (
        lambda: timm_vit(dynamic_img_size=True, dynamic_img_pad=True),
        (20, 39),
        image_layout(grid=(3, 5)),
    ),
    "hf_dinov2_wide": (lambda: WithHead(hf_dinov2()), (16, 64), image_layout(grid=(2, 8))),
    "hf_wide": (lambda: hf_vit(image_size=(16, 64)), (16, 64), image_layout(grid=(2, 8))),
}


@pytest.mark.parametrize("layers", ["all", -1])
@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_layout_of_image_models(name, layers):
    build, size, expected = IMAGE_MODELS[name]
    found = run_forward(build(), images(size=size), layers=layers)
    assert found.layout == expected
    assert len(found.records) == (DEPTH if layers == "all" else 1)
    assert all(record.attention.shape[-1] == expected.num_tokens for record in found.records)


@pytest.mark.parametrize("size", [(32, 32), (48, 24)])
def test_interpolated_position_embeddings_through_partial(size):
    forward = functools.partial(hf_vit(), interpolate_pos_encoding=True)
    assert run_forward(forward, images(size=size)).layout == image_layout(grid=(size[0] // 8, size[1] // 8))


@pytest.mark.parametrize("name", ["timm", "timm_registers", "timm_distilled", "torchvision", "hf_vit"])
def test_order_of_prefix_tokens_is_that_of_the_sequence(name):
    """The learned tokens are set to distinct constants and read off where they enter the first block."""
    build, size, expected = IMAGE_MODELS[name]
    model = build()
    roles = {"cls_token": 10.0, "class_token": 10.0, "dist_token": 20.0, "reg_token": 30.0}
    entered: list[Tensor] = []
    blocks = next(m for m in model.modules() if isinstance(m, (nn.ModuleList, nn.Sequential)) and len(m) == DEPTH)
    blocks[0].register_forward_pre_hook(lambda module, args: entered.append(args[0]))
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "pos_embed" in path or "position" in path:
                parameter.zero_()
            parameter.fill_(roles.get(path.rpartition(".")[2], 0.0)) if path.rpartition(".")[2] in roles else None
        model(images(size=size))
    levels = {10.0: "cls", 20.0: "dist", 30.0: "register"}
    head = entered[0][0, : expected.num_prefix, 0].tolist()
    assert tuple(levels[level] for level in head) == expected.prefix


TEXT_MODELS = {
    "bert": (hf_bert, None, TokenLayout(prefix=CLS, words=6, pooling="token")),
    "bert_eager": (lambda: hf_bert("eager"), None, TokenLayout(prefix=CLS, words=6, pooling="token")),
    "bert_padded": (hf_bert, "mask", TokenLayout(prefix=CLS, words=6, pooling="token")),
    "gpt2": (hf_gpt2, None, TokenLayout(words=7, pooling="last")),
    "gpt2_eager": (lambda: hf_gpt2("eager"), None, TokenLayout(words=7, pooling="last")),
    "gpt2_padded": (hf_gpt2, "mask", TokenLayout(words=7, pooling="last")),
    "clip_text": (lambda: WithHead(hf_clip_text()), None, TokenLayout(words=7, pooling="last")),
}


@pytest.mark.parametrize("layers", ["all", -1])
@pytest.mark.parametrize("name", TEXT_MODELS)
def test_layout_of_text_models(name, layers):
    build, mask, expected = TEXT_MODELS[name]
    model, padding = build(), torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    found = run_forward(lambda ids: model(ids, **({"attention_mask": padding} if mask else {})), words(), layers=layers)
    assert found.layout == expected
    if mask:
        assert (found.valid == padding.bool()).all()
        assert (found.tokens_read()[1, 5:] == 0).all()
    if expected.pooling == "last":
        last = 4 if mask else 6
        assert found.tokens_read()[1, last] == 1


def test_layout_of_embeddings():
    encoder = torch_encoder()
    found = run_forward(lambda x: encoder(x).mean(1), torch.randn(2, 6, WIDTH))
    assert found.layout == TokenLayout(words=6, pooling="avg")


def test_embeddings_with_the_sequence_first():
    encoder = torch_encoder(batch_first=False)
    found = run_forward(lambda x: encoder(x.transpose(0, 1)).mean(0), torch.randn(8, 4, WIDTH))
    assert found.layout.num_tokens == 4
    assert found.records[0].attention.shape == (8, 2, 4, 4)


# --- CLIP: who owns the input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["all", -1])
@pytest.mark.parametrize("length", [7, 17])  # 17 is the number of vision tokens
@pytest.mark.parametrize("texts", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 2])
def test_images_own_the_vision_tower(batch, texts, length, layers):
    model = hf_clip()

    def call(x: Tensor) -> Tensor:
        return model(input_ids=words(texts, length), pixel_values=x).logits_per_image

    found = run_forward(call, images(batch), layers=layers)
    assert found.layout == image_layout()
    assert {record.stream for record in found.records} == {"vision_model.encoder.layers"}
    assert {record.attention.shape[0] for record in found.records} == {batch}
    assert len(found.records) == (DEPTH if layers == "all" else 1)


@pytest.mark.parametrize("length", [7, 17])
@pytest.mark.parametrize("pictures", [1, 2])
def test_words_own_the_text_tower(pictures, length):
    model = hf_clip()
    found = run_forward(
        lambda ids: model(input_ids=ids, pixel_values=images(pictures)).logits_per_text, words(2, length)
    )
    assert {record.stream for record in found.records} == {"text_model.encoder.layers"}
    assert found.layout == TokenLayout(words=length, pooling="last")


@pytest.mark.parametrize("length", [7, 17])
def test_images_own_the_vision_tower_also_if_the_text_runs_first(length):
    model = hf_clip()

    def call(x: Tensor) -> Tensor:
        texts = model.text_model(words(2, length))[1]
        return model.visual_projection(model.vision_model(x)[1]) @ model.text_projection(texts).T

    found = run_forward(call, images(2))
    assert found.layout == image_layout()
    assert {record.stream.split(".")[0] for record in found.records} == {"vision_model"}


def test_a_layer_that_only_the_other_tower_has():
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.visual = timm_vit(depth=4)
            self.text = torch_encoder(depth=2)

        def forward(self, image: Tensor, text: Tensor) -> Tensor:
            return self.visual(image) @ self.text(text).mean(1)[:, :CLASSES].T

    towers, image, text = Towers(), images(), torch.randn(2, 6, WIDTH)
    assert len(run_forward(lambda x: towers(x, text), image, layers=3).records) == 1
    with pytest.raises(ArgumentError, match="layers: no self-attention layer 3; the explained layers are 2"):
        run_forward(lambda x: towers(image, x), text, layers=[0, 3])


# --- what has no layout ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["all", -1])
def test_unknown_layout_says_what_was_seen_and_what_to_pass(layers):
    with pytest.raises(LayoutError) as error:
        run_forward(seeded(LinearPatches), images(), layers=layers)
    message = str(error.value)
    assert "N=17" in message
    assert "32x32" in message
    assert "layout=TokenLayout(" in message


def test_given_layout():
    given = image_layout()
    found = run_forward(seeded(LinearPatches), images(), layout=given)
    assert found.layout == given
    assert len(found.records) == DEPTH
    assert run_forward(timm_vit(), images(), layout=image_layout((), (17, 1))).layout.grid == (17, 1)  # it wins


@pytest.mark.parametrize("layers", ["all", -1])
@pytest.mark.parametrize("build", [timm_vit, hf_vit, lambda: seeded(LinearPatches)])
def test_given_layout_that_does_not_fit(build, layers):
    with pytest.raises(ArgumentError, match="layout: it has 10 tokens, the attention 17"):
        run_forward(build(), images(), layout=image_layout(grid=(3, 3)), layers=layers)


class TwoClassTokens(nn.Module):
    """More tokens than the names of its parameters explain."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 8, 8)
        self.queries = nn.Parameter(torch.zeros(1, 2, WIDTH))
        self.blocks = nn.Sequential(ToyBlock(), ToyBlock())

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.queries.expand(len(x), -1, -1), self.patch(x).flatten(2).mT], dim=1)
        return self.blocks(x)[:, 0]


def test_tokens_without_a_known_role():
    with pytest.raises(LayoutError, match=r"N=18 .*32x32.*4x4 patches = 16; pass layout=TokenLayout"):
        run_forward(seeded(TwoClassTokens), images())


@pytest.mark.parametrize("layers", ["all", 0, -1])
@pytest.mark.parametrize("build", [timm_swin, torchvision_swin, hf_swin, lambda: hf_swin("eager")])
def test_windows_are_refused_with_what_works(build, layers):
    with pytest.raises(UnsupportedModelError, match=r"runs over windows.*Saliency"):
        run_forward(build(), images(), layers=layers)


@pytest.mark.parametrize("layers", ["all", -1])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("convolution", [False, True])
def test_hierarchical_models_are_refused_with_what_works(convolution, named, layers):
    with pytest.raises(UnsupportedModelError, match=r"hierarchical model.*Saliency"):
        run_forward(seeded(TwoStages, convolution=convolution, named=named), images(), layers=layers)


@pytest.mark.parametrize("layers", ["all", -1])
def test_layers_with_reduced_keys_are_refused(layers):
    """As PVT has: its last stage alone would pass for the whole model."""

    class Reduced(ToyBlock):
        def forward(self, x: Tensor) -> Tensor:
            keys = x[:, ::2]
            return x + nn.functional.scaled_dot_product_attention(x[:, None], keys[:, None], keys[:, None])[:, 0]

    class Pyramid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(3, WIDTH, 8, 8)
            self.blocks = nn.Sequential(Reduced(), ToyBlock())

        def forward(self, x: Tensor) -> Tensor:
            return self.blocks(self.patch(x).flatten(2).mT).mean(1)

    with pytest.raises(UnsupportedModelError, match=r"attend to other tokens than their own.*Saliency"):
        run_forward(seeded(Pyramid), images(), layers=layers)


def test_two_models_on_one_image_are_not_one_chain():
    one, two = timm_vit(), hf_vit()
    with pytest.raises(UnsupportedModelError, match=r"'blocks' and other ones in 'vit.layers'.*several models"):
        run_forward(lambda x: one(x) + two(x).logits, images())


def test_a_decoder_does_not_make_its_encoder_hierarchical():
    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(3, WIDTH, 8, 8)
            self.queries = nn.Parameter(torch.randn(1, 5, WIDTH))
            self.encoder = torch_encoder()
            layer = nn.TransformerDecoderLayer(WIDTH, 2, 2 * WIDTH, batch_first=True)
            self.decoder = nn.TransformerDecoder(layer, 2)

        def forward(self, x: Tensor) -> Tensor:
            memory = self.encoder(self.patch(x).flatten(2).mT)
            return self.decoder(self.queries.expand(len(x), -1, -1), memory)[:, 0]

    found = run_forward(seeded(Detector), images())
    assert found.layout == image_layout((), pooling="avg")
    assert {record.stream for record in found.records} == {"encoder.layers"}


@pytest.mark.parametrize("build", [timm_vit, timm_swin, torchvision_vit, hf_vit, lambda: seeded(LinearPatches)])
def test_an_image_without_batch(build):
    with pytest.raises(ArgumentError, match=r"\(3, 32, 32\).*x\[None\]") as error:
        run_forward(build(), images()[0])
    assert str(error.value).startswith("inputs: ")


def test_an_image_without_batch_that_the_model_accepts():
    class Lenient(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(3, WIDTH, 8, 8)
            self.blocks = nn.Sequential(ToyBlock(), ToyBlock())

        def forward(self, x: Tensor) -> Tensor:
            return self.blocks(self.patch(x if x.ndim == 4 else x[None]).flatten(2).mT).mean(1)

    with pytest.raises((ArgumentError, UnsupportedModelError), match=r"\(3, 32, 32\)"):
        run_forward(seeded(Lenient), images()[0])


@pytest.mark.parametrize("build", [timm_vit, torchvision_vit, hf_vit])
def test_an_image_size_that_the_model_refuses(build):
    with pytest.raises(ArgumentError, match=r"inputs: the model refused images of shape \(2, 3, 40, 40\)"):
        run_forward(build(), images(size=(40, 40)))


@pytest.mark.parametrize("layers", ["all", -1, 0])
def test_pooling_weights_are_read_for_every_choice_of_layers(layers):
    model, weights = timm_vit(class_token=False, global_pool="map"), []
    model.attn_pool.fused_attn = False
    original = Tensor.softmax

    class Spy(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func is original and result.shape[-2:] == (1, 16):
                weights.append(result)
            return result

    with Spy():
        model(images())
    found = run_forward(model, images(), layers=layers)
    assert torch.allclose(found.tokens_read(), weights[0].mean((1, 2)), atol=1e-6)
    assert torch.allclose(found.tokens_read().sum(-1), torch.ones(2), atol=1e-5)


def test_a_model_that_reads_an_image_twice_is_no_single_chain():
    model = timm_vit()
    with pytest.raises(UnsupportedModelError, match="read 2 images in one call"):
        run_forward(lambda x: model(x) + model(x.flip(-1)), images())
    with pytest.raises(UnsupportedModelError, match="read 2 images in one call"):
        run_forward(lambda x: model.forward_features(x) + model.forward_features(x.flip(-1)), images())


@pytest.mark.parametrize("cut", [lambda logits: logits[:1], lambda logits: logits.mean(0, keepdim=True)])
def test_logits_are_those_of_the_samples(cut):
    model = timm_vit()
    found = run_forward(lambda x: cut(model(x)), images(2), target=0)
    with pytest.raises(ArgumentError, match="logits for each of 2 samples"):
        _ = found.target_index
