"""ClassTokenRank against numpy, computed from captured attention and its gradient."""

import numpy as np
import pytest
import tiny_models as tiny
import torch
from method_cases import PlantedViT, case

from xattn import AttentionTap
from xattn.attributions import ClassTokenRank, PredictionMap, TokenRank
from xattn.errors import ArgumentError, UnsupportedModelError


@pytest.fixture(scope="module")
def model():
    return tiny.timm_vit(depth=3).double()


def images():
    return tiny.images(dtype=torch.float64)


def evidence(model, target):
    """max(0, gradient x attention) of each layer and head, (layers, B, heads, N, N)."""
    with AttentionTap(require_grad=True) as tap:
        logits = model(images())
    gradients = torch.autograd.grad(logits[:, target].sum(), tap.maps)
    return np.stack([(g * a).clamp_min(0).detach().numpy() for g, a in zip(gradients, tap.maps, strict=True)])


def ranked(matrix, alpha, p):
    """The left eigenvector of the completed chain."""
    sums = matrix.sum(-1, keepdims=True)
    chain = np.where(sums > 0, matrix / np.where(sums > 0, sums, 1), p)
    values, vectors = np.linalg.eig((alpha * chain + (1 - alpha) * p).T)
    vector = np.real(vectors[:, np.argmax(np.real(values))])
    return vector / vector.sum()


@pytest.mark.parametrize(
    ("layers", "tokens", "first"),
    [([-1, -2], "all", 0), ("all", "patches", 1), ([0, 1], "patches", 1), (-1, "all", 0), (-2, "all", 0)],
)
def test_the_equation(model, layers, tokens, first):
    found = evidence(model, 2)
    chosen = found if layers == "all" else found[layers if isinstance(layers, list) else [layers]]
    matrices = chosen.mean((0, 2))[:, first:, first:]
    p = np.linspace(1, 2, 17)
    method = ClassTokenRank(model, layers=layers, tokens=tokens, alpha=0.9, personalization=torch.tensor(p))
    actual = method.attribute(images(), target=2, resolution="token").numpy()
    p = p[first:] / p[first:].sum()
    for sample, matrix in enumerate(matrices):
        np.testing.assert_allclose(actual[sample, first:], ranked(matrix, 0.9, p), atol=1e-9)
    assert (actual[:, :first] == 0).all()


def test_backward_walks_from_key_to_query(model):
    matrix = evidence(model, 1).mean((0, 2))[0, 1:, 1:]
    sums = matrix.sum(-1, keepdims=True)
    chain = np.where(sums > 0, matrix / np.where(sums > 0, sums, 1), 1 / 16)
    actual = ClassTokenRank(model, layers="all", tokens="patches", direction="backward").attribute(
        images(), target=1, resolution="patch"
    )
    np.testing.assert_allclose(actual[0].flatten(), ranked(chain.T, 0.99, np.full(16, 1 / 16)), atol=1e-8)


def test_maps_of_each_layer_and_head(model):
    found = evidence(model, 2)
    maps = ClassTokenRank(model, layers="all", tokens="patches").maps(images(), target=2).flatten(3).numpy()
    assert maps.shape == (2, 3, 2, 16)
    expected = ranked(found[1, 0, 1, 1:, 1:], 0.99, np.full(16, 1 / 16))
    np.testing.assert_allclose(maps[0, 1, 1], expected, atol=1e-8)
    np.testing.assert_allclose(maps[:, 2], 1 / 16)  # the last layer of a class-token model: restarts only
    with pytest.raises(ArgumentError, match='"patch" or "token"'):
        ClassTokenRank(model).maps(images(), resolution="input")


def test_the_last_layer_of_a_class_token_model_has_no_evidence_among_patches(model):
    with pytest.raises(UnsupportedModelError, match="choose earlier layers or tokens="):
        ClassTokenRank(model, tokens="patches").attribute(images())


def test_samples_without_positive_evidence_fall_back_with_a_warning():
    """Class 1 only falls with the attention to any patch: what speaks for it is nothing."""
    dark = -torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0)) - 0.5
    model = PlantedViT(sharpness=0.0)
    bright = torch.cat([dark, -dark])
    with pytest.warns(UserWarning, match="speaks for the target in 1 of 2 samples"):
        relevance = ClassTokenRank(model).attribute(bright, target=1, resolution="patch")
    torch.testing.assert_close(relevance[0], torch.full((4, 4), 1 / 17))
    assert relevance[1].std() > 0


def test_by_default_the_class_token_leads_to_its_evidence_and_all_else_restarts(model):
    row = evidence(model, 2)[-1].mean(1)[:, 0]
    relevance = ClassTokenRank(model).attribute(images(), target=2, resolution="token").numpy()
    base = relevance.min(-1, keepdims=True)
    np.testing.assert_allclose(
        (relevance - base) / (relevance - base).sum(-1, keepdims=True),
        (row - row.min(-1, keepdims=True)) / (row - row.min(-1, keepdims=True)).sum(-1, keepdims=True),
        atol=1e-9,
    )


def test_tiny_gradients_change_nothing(model):
    expected = ClassTokenRank(model).attribute(images(), target=2)
    for scale in (1e-30, 1e30):
        scaled = ClassTokenRank(lambda x, s=scale: model(x) * s).attribute(images(), target=2)
        torch.testing.assert_close(scaled, expected, atol=1e-9, rtol=1e-6)


def test_it_differs_between_classes_where_tokenrank_does_not():
    this = case("cls")
    assert torch.equal(*(TokenRank(this.model).attribute(this.inputs, target=t) for t in (0, 1)))
    assert not torch.allclose(*(ClassTokenRank(this.model).attribute(this.inputs, target=t) for t in (0, 1)))


def test_a_personalization_that_knows_the_class():
    this = case("cls")
    prediction = PredictionMap(this.model)
    seed = prediction.attribute(this.inputs, 3, resolution="token")
    expected = ClassTokenRank(this.model, personalization=seed).attribute(this.inputs, 3)
    torch.testing.assert_close(
        ClassTokenRank(this.model, personalization=prediction).attribute(this.inputs, 3), expected
    )
