"""What the base class promises: checks, resolution, chunks, devices."""

import pytest
import torch
from method_cases import PlantedViT, case
from torch import nn

from xattn.attributions import RawAttention, TokenRank, TransformerAttribution, find_method, methods
from xattn.attributions._resolution import from_pixels, from_tokens
from xattn.errors import ArgumentError, ArgumentTypeError, CaptureError, LayoutError, XattnError
from xattn.layout import TokenLayout


def attribute(inputs, model=None, **kwargs):
    return RawAttention(model or case("cls").model).attribute(inputs, **kwargs)


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (torch.rand(3), ArgumentError, r"inputs: expected .* got shape \(3,\)"),
        (torch.rand(1, 3, 32, 32, 1), ArgumentError, "inputs: expected"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), ArgumentTypeError, "floating point numbers .*uint8"),
        (torch.rand(2, 7), ArgumentTypeError, "integers .*float32"),
        (torch.rand(0, 3, 32, 32), ArgumentError, "at least one sample"),
        (torch.full((1, 3, 32, 32), torch.nan), ArgumentError, "NaN or infinity"),
        (torch.full((1, 3, 32, 32), torch.inf), ArgumentError, "NaN or infinity"),
        (torch.rand(1, 3, 32, 32, device="meta"), ArgumentError, "inputs: expected numbers, .* meta device"),
        ("cat.png", ArgumentTypeError, "expected a tensor, got str"),
        ((torch.rand(1, 3, 32, 32),) * 2, ArgumentError, "additional_forward_args"),
        (torch.rand(1, 3, 40, 40), ArgumentError, r"refused images of shape \(1, 3, 40, 40\)"),
        (torch.rand(1, 1, 32, 32), ArgumentError, r"refused images of shape \(1, 1, 32, 32\)"),
    ],
)
def test_bad_inputs(inputs, error, message):
    with pytest.raises(error, match=message):
        attribute(inputs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"resolution": "pixel"}, "resolution: expected one of input, patch, token"),
        ({"interpolation": "cubic"}, "interpolation: expected one of nearest, bilinear"),
        ({"internal_batch_size": 0}, "internal_batch_size: expected a positive integer"),
        ({"internal_batch_size": 2.5}, "internal_batch_size: expected a positive integer"),
    ],
)
def test_bad_arguments_of_attribute(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        attribute(case("cls").inputs, **arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"layers": 3}, ArgumentError, "layers: no self-attention layer 3"),
        ({"layers": -4}, ArgumentError, "layers: no self-attention layer -4"),
        ({"layers": "last"}, ArgumentError, "layers: expected"),
        ({"layers": 0.5}, ArgumentTypeError, "layers: expected"),
        ({"layers": []}, ArgumentError, "layers: expected"),
        ({"layout": "4x4"}, ArgumentTypeError, "layout: expected a TokenLayout"),
        ({"layout": TokenLayout(prefix=("cls",), grid=(3, 3))}, ArgumentError, "layout: it has 10 tokens"),
    ],
)
def test_bad_arguments_of_the_constructor(arguments, error, message):
    with pytest.raises(error, match=message):
        RawAttention(case("cls").model, **arguments).attribute(case("cls").inputs)


def test_forward_func_must_be_callable():
    with pytest.raises(ArgumentTypeError, match="forward_func: expected a module or a callable, got int"):
        RawAttention(3)


def test_a_model_without_attention():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 900, 2))
    with pytest.raises(CaptureError, match="no attention was seen"):
        attribute(case("cls").inputs, network)


def test_every_error_is_an_xattn_error_and_of_the_expected_builtin_kind():
    for error, builtin in ((ArgumentError, ValueError), (ArgumentTypeError, TypeError), (LayoutError, ValueError)):
        assert issubclass(error, XattnError)
        assert issubclass(error, builtin)


def test_types_that_differ_are_named():
    with pytest.raises(ArgumentError, match=r"inputs: they are torch.float64, and the model computes in another type"):
        attribute(case("cls").inputs.double())


def test_devices_that_differ_are_both_named():
    model = case("cls").model
    with pytest.raises(ArgumentError, match="they are on meta, the model on cpu"):
        TokenRank(model)._forward(torch.rand(1, 3, 32, 32, device="meta"), None, (), None)


LAYOUT = TokenLayout(prefix=("cls",), grid=(2, 3))
TOKENS = torch.arange(7.0)[None]


def test_a_patch_is_spread_over_its_pixels_and_channels():
    image = torch.zeros(1, 3, 4, 9)
    spread = from_tokens(TOKENS, LAYOUT, image, "input", "nearest")
    assert spread.shape == image.shape
    assert spread.is_contiguous()
    assert spread[0, 1, :, ::3].tolist() == [[1, 2, 3], [1, 2, 3], [4, 5, 6], [4, 5, 6]]
    assert torch.equal(spread[:, 0], spread[:, 2])


def test_bilinear_on_request():
    smooth = from_tokens(TOKENS, LAYOUT, torch.zeros(1, 1, 4, 6), "input", "bilinear")
    expected = nn.functional.interpolate(TOKENS[:, 1:].view(1, 1, 2, 3), scale_factor=2, mode="bilinear")
    torch.testing.assert_close(smooth, expected)


def test_pixels_are_summed_over_a_patch():
    pixels = torch.rand(2, 3, 4, 9)
    patches = from_pixels(pixels, LAYOUT, "patch")
    torch.testing.assert_close(patches[1, 1, 2], pixels[1, :, 2:, 6:].sum())
    tokens = from_pixels(pixels, LAYOUT, "token")
    assert tokens.shape == (2, 7)
    assert (tokens[:, 0] == 0).all()
    torch.testing.assert_close(tokens.sum(), pixels.sum())
    assert from_pixels(pixels, LAYOUT, "input") is pixels


def test_embeddings_and_ids_keep_their_shape():
    words = TokenLayout(words=7)
    assert (
        from_tokens(TOKENS, words, torch.zeros(1, 7, dtype=torch.long), "input", "nearest").tolist() == TOKENS.tolist()
    )
    spread = from_tokens(TOKENS, words, torch.zeros(1, 7, 5), "input", "nearest")
    assert torch.equal(spread, TOKENS.unsqueeze(-1).expand(1, 7, 5))


def test_ten_lines_make_a_method():
    class Brightest(TransformerAttribution):
        name = "brightest"
        family = "test"
        summary = paper = "test"

        def _relevance(self, forward, reducer):
            return forward.layout.tokens(
                forward.inputs.mean(1).unfold(1, 4, 4).unfold(2, 4, 4).mean((-1, -2)).flatten(1)
            )

    image = torch.rand(1, 3, 16, 16)
    relevance = Brightest(PlantedViT()).attribute(image, resolution="patch")
    torch.testing.assert_close(relevance, nn.functional.avg_pool2d(image.mean(1, keepdim=True), 4)[:, 0])


def test_a_method_without_its_step_cannot_be_made():
    class Nothing(TransformerAttribution):
        name = family = summary = paper = "nothing"

    with pytest.raises(TypeError, match="abstract"):
        Nothing(PlantedViT())


@pytest.mark.parametrize(
    ("given", "meant"),
    [("tokenrnk", "tokenrank"), ("Attention-GradCAMs", "attention_gradcam"), ("TransInterpretability", "transinterp")],
)
def test_a_misspelt_method_is_guessed(given, meant):
    with pytest.raises(ArgumentError, match=f"got '{given}'. Did you mean '{meant}'") as caught:
        find_method(given)
    assert all(name in str(caught.value) for name in methods)


def test_what_resembles_nothing_is_not_guessed():
    with pytest.raises(ArgumentError, match=r"got 'xyz'$"):
        find_method("xyz")


@pytest.mark.parametrize("returned", [None, torch.zeros(2, 16), torch.zeros(3), [1.0]])
def test_what_a_method_of_ones_own_returns_is_checked(returned):
    class Own(RawAttention):
        name = "own"

        def _relevance(self, forward, reducer):
            return returned

    with pytest.raises(ArgumentTypeError, match=r"Own\._relevance: expected a tensor \(2, \d+\) of tokens, got"):
        Own(case("cls").model).attribute(case("cls").inputs[:2])
