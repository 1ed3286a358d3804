"""`explain` on sentences: a tiny random BERT for the code, the real encoder for what it finds."""

from inspect import signature

import pytest
import torch
from captum.attr import FeatureAblation, LayerIntegratedGradients
from text_models import real_text_model, tiny_text_model

import xattn.models
from xattn.attributions import TokenRank, methods
from xattn.errors import ArgumentError, ArgumentTypeError, UnsupportedModelError
from xattn.explain import Explanation, explain
from xattn.explanation import save_arrays

SENTENCE = "The ukulele & the <b>, again."


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_text_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def explanation(model):
    return explain(model, SENTENCE)


def test_maps_are_what_the_methods_give(model, explanation):
    ids, mask = model.preprocess(SENTENCE)
    assert explanation.skipped.keys() == {"center"}
    assert set(explanation.maps) == set(methods) - {"center"}
    for name, relevance in explanation.maps.items():
        options = {"precision": "float64"} if "precision" in signature(methods[name]).parameters else {}
        method = methods[name](model, **options)
        expected = method.attribute(ids, explanation.target, mask, resolution="token")[0]
        assert torch.equal(relevance, expected), name
        assert relevance.shape == (len(explanation.tokens),)


def test_words_tokens_and_prediction(model, explanation):
    words = model.words(SENTENCE)
    assert (explanation.text, explanation.tokens, explanation.words) == (SENTENCE, words.tokens, words.words)
    assert explanation.spans == words.spans
    assert explanation.image is None
    assert torch.equal(explanation.input, model.preprocess(SENTENCE)[0][0])
    best = model.predict(SENTENCE, k=1)[0][0]
    assert (explanation.target, explanation.target_name) == (best.index, best.name)
    for name, relevance in explanation.maps.items():
        assert torch.equal(explanation.per_word(name), words.per_word(relevance))
        assert torch.equal(explanation.map(name), relevance)
    with pytest.raises(ArgumentError, match="method: expected one of tokenrank"):
        explanation.per_word("shap")


def test_the_round_trip_is_exact(explanation, tmp_path):
    found = Explanation.load(explanation.save(tmp_path / "a.safetensors"))
    assert found.facts() == explanation.facts()
    for name, relevance in explanation.maps.items():
        assert torch.equal(found.maps[name], relevance)
        assert torch.equal(found.per_word(name), explanation.per_word(name))
    assert found.image is None
    assert torch.equal(found.input, explanation.input)
    assert (found.tokens, found.words, found.spans) == (explanation.tokens, explanation.words, explanation.spans)


def test_figure_and_html_show_the_words(explanation):
    markup = explanation._repr_html_()
    for name in explanation.maps:
        assert f">{name}</th>" in markup
    assert ">ukulele</span>" in markup
    assert "&lt;" in markup
    assert "<b>, again" not in markup
    assert "center skipped" in markup
    assert ">[CLS]</span>" not in markup
    assert ">[CLS]</span>" in explanation.html(pieces=True)
    texts = [text.get_text() for text in explanation.plot().axes[0].texts]
    assert texts.count("ukulele") == len(explanation.maps)
    assert explanation.title in texts
    pieces = explanation.plot(pieces=True, title="mine").axes[0].texts
    assert {"mine", "[CLS]"} <= {text.get_text() for text in pieces}


def test_methods_target_and_layers(model):
    found = explain(model, SENTENCE, ["tokenrank", TokenRank(model, layers=0)], "music", layers=1)
    assert found.target_name == "music"
    assert [facts["layers"] for facts in found.methods.values()] == [1, 0]
    with pytest.raises(UnsupportedModelError, match="words have no centre"):
        explain(model, SENTENCE, "center")


def test_captum_methods_on_ids_and_embeddings(model):
    embeddings = model.module.bert.embeddings.word_embeddings
    given = {"ablation": FeatureAblation(model), "integrated": LayerIntegratedGradients(model, embeddings)}
    found = explain(model, SENTENCE, given, target=1)
    ids, mask = model.preprocess(SENTENCE)
    for name, method in given.items():
        expected = method.attribute(ids, target=1, additional_forward_args=mask)[0]
        expected = expected.sum(-1) if expected.ndim == 2 else expected
        torch.testing.assert_close(found.maps[name], expected, check_dtype=False)


def test_a_model_by_name(monkeypatch, model):
    monkeypatch.setattr(xattn.models, "load", lambda name, **options: {"text": model}[name])
    assert explain("text", SENTENCE, "random").model == "tiny"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (["a", "b"], ArgumentTypeError, "text: expected one sentence as a string, got list"),
        (torch.ones(1, 4), ArgumentTypeError, "text: expected one sentence"),
        ("  ", ArgumentError, "text: expected at least one word"),
        ("the " * 100, ArgumentError, "word pieces are more than the 64"),
    ],
)
def test_bad_sentences_are_named(text, error, message, model):
    with pytest.raises(error, match=message):
        explain(model, text, "tokenrank")


def test_arrays_and_words_are_not_mixed_up(model, explanation, tmp_path):
    image = Explanation(torch.rand(3, 4, 4), torch.rand(3, 4, 4), {"random": torch.rand(2, 2)})
    with pytest.raises(UnsupportedModelError, match="a picture was explained, it has no words"):
        image.per_word("random")
    with pytest.raises(ArgumentError, match="expected the same methods"):
        save_arrays([explain(model, SENTENCE, "random"), image], tmp_path / "a.npz")


def test_the_real_model_names_the_instrument_without_warnings():
    found = explain(
        real_text_model(), "On Monday my cousin told us about the ukulele while we waited in the vestibule."
    )
    assert found.prediction[0].name == "music"
    assert found.warnings == {}
    for name in ("tokenrank", "n_bounce", "generic_attention", "transinterp", "attnlrp"):
        assert found.words[int(found.per_word(name).argmax())] == "ukulele", name
