"""Prediction maps and prediction attention against the models' own heads and the equations written as loops."""

import math

import pytest
import tiny_models as tiny
import torch
from method_cases import PlantedViT, case

from xattn import AttentionTap, explain
from xattn.attributions import PredictionAttention, PredictionMap, TokenRank
from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.viz import DIVERGING

EXACT = {"atol": 1e-10, "rtol": 1e-8}


def double(model):
    return model.double().eval()


def hooked(module, forward):
    """The tokens that come out of a module."""
    seen = []
    handle = module.register_forward_hook(lambda _, args, output: seen.append(output))
    try:
        with torch.no_grad():
            forward()
    finally:
        handle.remove()
    return seen[0]


@pytest.mark.parametrize("layer", [-2, -1, 0])
@pytest.mark.parametrize("kwargs", [{}, {"reg_tokens": 4}, {"global_pool": "avg"}, {"init_values": 0.1}])
def test_timm_norm_and_head_on_each_patch(layer, kwargs):
    model, images = double(tiny.timm_vit(depth=3, **kwargs)), tiny.images(dtype=torch.float64)
    tokens = hooked(model.blocks[layer], lambda: model(images))[:, model.num_prefix_tokens :]
    expected = model.head(model.fc_norm(model.norm(tokens))).softmax(-1)
    method = PredictionMap(model, layer=layer)
    torch.testing.assert_close(method.maps(images).flatten(2), expected.mT, **EXACT)
    chosen = method.attribute(images, target=[3, 1], resolution="patch")
    torch.testing.assert_close(chosen.flatten(1), torch.stack([expected[0, :, 3], expected[1, :, 1]]), **EXACT)


def test_norm_before_the_mean():
    model = double(tiny.timm_vit(class_token=False, global_pool="avg", fc_norm=False))
    images = tiny.images(dtype=torch.float64)
    tokens = hooked(model.blocks[-2], lambda: model(images))
    maps = PredictionMap(model, space="logit").maps(images).flatten(2)
    torch.testing.assert_close(maps, model.head(model.norm(tokens)).mT, **EXACT)


def test_distilled_model_is_asked_with_both_heads():
    model, images = double(tiny.timm_deit_distilled()), tiny.images(dtype=torch.float64)
    tokens = model.norm(hooked(model.blocks[-2], lambda: model(images))[:, 2:])
    expected = ((model.head(tokens) + model.head_dist(tokens)) / 2).mT
    torch.testing.assert_close(PredictionMap(model, space="logit").maps(images).flatten(2), expected, **EXACT)


def test_torchvision():
    model, images = double(tiny.torchvision_vit()), tiny.images(dtype=torch.float64)
    tokens = hooked(model.encoder.layers[-2], lambda: model(images))[:, 1:]
    expected = model.heads(model.encoder.ln(tokens)).mT
    torch.testing.assert_close(PredictionMap(model, space="logit").maps(images).flatten(2), expected, **EXACT)


def test_transformers_vit():
    model, images = double(tiny.hf_vit()), tiny.images(dtype=torch.float64)
    with torch.no_grad():
        tokens = model(images, output_hidden_states=True).hidden_states[-2][:, 1:]
    expected = model.classifier(model.vit.layernorm(tokens)).mT
    torch.testing.assert_close(PredictionMap(model, space="logit").maps(images).flatten(2), expected, **EXACT)


def test_bert_asks_pooler_and_classifier_at_each_word():
    model, ids = double(tiny.hf_bert()), tiny.words()
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    with torch.no_grad():
        tokens = model(ids, mask, output_hidden_states=True).hidden_states[-2][:, 1:]
    expected = model.classifier(model.bert.pooler.dense(tokens).tanh()).mT * mask[:, None, 1:]
    maps = PredictionMap(model, space="logit").maps(ids, mask)
    torch.testing.assert_close(maps, expected.float())  # token ids have no dtype to follow


def loops(rows, prediction, similarity, space):
    """The equation of prediction attention for one sample: rows (L, H, P), prediction (P)."""
    if similarity == "kl":
        share = prediction.softmax(0) if space == "logit" else prediction / prediction.sum()
    result = torch.zeros_like(prediction)
    for layer in rows:
        for row in layer:
            if similarity == "dot":
                weight = sum(float(a * m) for a, m in zip(row, prediction, strict=True))
            elif similarity == "cosine":
                weight = float(row @ prediction) / math.sqrt(float(row @ row) * float(prediction @ prediction))
            else:
                a = row / row.sum()
                weight = math.exp(-sum(float(x) * math.log(float(x) / float(m)) for x, m in zip(a, share, strict=True)))
            result += max(0.0, weight) * row
    return result * prediction


@pytest.mark.parametrize("space", ["probability", "logit"])
@pytest.mark.parametrize("similarity", ["dot", "cosine", "kl"])
@pytest.mark.parametrize("layers", ["all", -1, [0, 2]])
def test_prediction_attention_is_its_equation(similarity, space, layers):
    model, images = double(tiny.timm_vit(depth=3, reg_tokens=2)), tiny.images(dtype=torch.float64)
    with AttentionTap() as tap, torch.no_grad():
        model(images)
    rows = torch.stack(tap.maps, 1)[:, :, :, 0, 3:]
    rows = rows if layers == "all" else rows[:, [layers] if isinstance(layers, int) else layers]
    maps = PredictionMap(model, space=space).attribute(images, target=2, resolution="patch").flatten(1)
    expected = torch.stack([loops(*pair, similarity, space) for pair in zip(rows, maps, strict=True)])
    method = PredictionAttention(model, similarity=similarity, space=space, layers=layers)
    torch.testing.assert_close(method.attribute(images, target=2, resolution="patch").flatten(1), expected, **EXACT)
    torch.testing.assert_close(method.maps(images)[:, 2].flatten(1), expected, **EXACT)


def test_without_a_class_token_the_rows_of_all_patches_are_averaged():
    model = double(tiny.timm_vit(class_token=False, global_pool="avg"))
    images = tiny.images(dtype=torch.float64)
    with AttentionTap() as tap, torch.no_grad():
        model(images)
    rows = torch.stack([attention.mean(2) for attention in tap.maps], 1)
    maps = PredictionMap(model).attribute(images, target=2, resolution="patch").flatten(1)
    expected = torch.stack([loops(*pair, "dot", "probability") for pair in zip(rows, maps, strict=True)])
    actual = PredictionAttention(model).attribute(images, target=2, resolution="patch").flatten(1)
    torch.testing.assert_close(actual, expected, **EXACT)


def test_two_planted_objects_are_told_apart():
    """One patch in the colour of class 0 and one in that of class 2, equally bright: attention sees no difference."""
    image = torch.full((1, 3, 16, 16), 0.02)
    image[0, :, :4, 4:8] = torch.tensor([1.5, 0.3, 0.3])[:, None, None]
    image[0, :, 8:12, 8:12] = torch.tensor([0.3, 0.3, 1.5])[:, None, None]
    for method in (PredictionMap, PredictionAttention):
        found = [method(PlantedViT()).attribute(image, target=t, resolution="patch").argmax() for t in (0, 2)]
        assert [int(i) for i in found] == [1, 10]


def test_tokenrank_restarts_where_the_prediction_map_is_high():
    this = case("cls")
    prediction = PredictionMap(this.model)
    ranked = TokenRank(this.model, personalization=prediction, alpha=0.5)
    assert ranked.is_class_specific
    assert not TokenRank(this.model).is_class_specific
    for target in (0, 3):
        seed = prediction.attribute(this.inputs, target=target, resolution="token")
        expected = TokenRank(this.model, personalization=seed, alpha=0.5).attribute(this.inputs)
        torch.testing.assert_close(ranked.attribute(this.inputs, target=target), expected)
    only = TokenRank(this.model, personalization=prediction, alpha=0.0).attribute(this.inputs, 1, resolution="token")
    seed = prediction.attribute(this.inputs, 1, resolution="token")
    torch.testing.assert_close(only, seed / seed.sum(-1, keepdim=True))


def test_a_single_output_is_a_sigmoid():
    model, images = double(tiny.timm_vit(num_classes=1)), tiny.images(dtype=torch.float64)
    logits = PredictionMap(model, space="logit").attribute(images, resolution="patch")
    expected = logits.sigmoid()
    for forward in (model, lambda x: model(x).squeeze(1)):
        torch.testing.assert_close(PredictionMap(forward).attribute(images, resolution="patch"), expected, **EXACT)


def test_the_model_is_called_once():
    calls = []
    model = case("cls").model
    images = case("cls").inputs
    PredictionMap(lambda x: calls.append(len(x)) or model(x)).attribute(images)
    assert calls == [5]


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"layer": "all"}, ArgumentError, "layer: expected an integer or a list"),
        ({"layer": 1.5}, ArgumentTypeError, "expected"),
        ({"layer": [-1, -2]}, ArgumentError, "layer: several layers need head="),
        ({"layer": 3}, ArgumentError, "layer: no self-attention layer 3; the explained layers are 3"),
        ({"layer": -4}, ArgumentError, "layer: no self-attention layer -4"),
        ({"space": "odds"}, ArgumentError, 'space: expected "probability" or "logit"'),
        ({"head": 3}, ArgumentTypeError, "head: expected a callable"),
        ({"similarity": "l2"}, ArgumentError, 'similarity: expected "dot"'),
        ({"layers": 7}, ArgumentError, "layers: no self-attention layer 7"),
        ({"layers": "some"}, ArgumentError, "layers: expected"),
    ],
)
def test_wrong_options(kwargs, error, message):
    with pytest.raises(error, match=message):
        PredictionAttention(case("cls").model, **kwargs).attribute(case("cls").inputs)


def test_maps_at_input_resolution_are_refused():
    with pytest.raises(ArgumentError, match='"patch" or "token"'):
        PredictionMap(case("cls").model).maps(case("cls").inputs, resolution="input")
    tokens = PredictionMap(case("cls").model).maps(case("cls").inputs, resolution="token")
    assert tokens.shape == (5, 5, 17)
    assert (tokens[..., 0] == 0).all()


@pytest.mark.parametrize("method", [PredictionMap, PredictionAttention])
def test_logits_are_signed_and_probabilities_are_not(method):
    this = case("cls")
    for space, signed in (("logit", True), ("probability", False)):
        explainer = method(this.model, space=space)
        relevance = explainer.attribute(this.inputs, target=0, resolution="patch")
        assert explainer.is_signed == signed
        assert bool((relevance < 0).any()) == signed
        found = explain(this.model, this.inputs[:1], {space: explainer}, target=0)
        colours = {image.get_cmap().name for axes in found.plot().axes for image in axes.images}
        assert (DIVERGING in colours) == signed
    assert not method.is_signed
