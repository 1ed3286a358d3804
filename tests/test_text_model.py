"""The text model: its interface on a tiny random BERT, its figures on the real one where that was fetched."""

import pytest
import torch
from scipy.stats import binomtest
from text_models import real_text_model, tiny_text_model

from xattn.errors import ArgumentError
from xattn.models import text
from xattn.models.sentences import NAMES, Sentences

ODD = [
    "Well-known, isn't it?",
    "Ça coûte 3.50€ — naïve café",
    "hello\u200bworld \u200b x",
    "東京 is big, 한국어 मराठी",
    "20°C 🙂🙂 ok",
    "zzzzqqqxxyyzz unaffable " + "a" * 150,
    "[MASK] said [SEP]",
    "tab\there\nnew\x00\x07bell",
    "ﬁne Ⅷ İstanbul ẞ e\u0301clair",
    "don’t “quote” … $100 ^^ ~`|",
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_text_model(tmp_path_factory.mktemp("tiny"))


def test_one_text_and_several(tiny):
    ids, mask = tiny.preprocess("The nurse sang.")
    both, masks = tiny.preprocess(["The nurse sang.", "Was it the wolf or the choir?"])
    assert ids.shape == mask.shape
    assert both.shape == masks.shape == (2, masks.sum(1).max())
    assert torch.equal(both[0, : ids.shape[1]], ids[0])
    torch.testing.assert_close(tiny(both, masks)[:1], tiny(ids, mask), atol=1e-5, rtol=1e-5)
    assert tiny(both, masks).shape == (2, 6)


def test_tokens_and_words_fit_together(tiny):
    sentence = "The ukulele, again."
    ids, _ = tiny.preprocess(sentence)
    words = tiny.words(sentence)
    assert tiny.tokens(ids[0]) == list(words.tokens)
    assert list(words) == ["The", "ukulele", ",", "again", "."]
    relevance = torch.randn(len(words.tokens))
    assert float(words.per_word(relevance).sum()) == pytest.approx(float(relevance[1:-1].sum()), abs=1e-5)


def test_predictions_have_names(tiny):
    best = tiny.predict(["The wolf.", "The choir."], k=9)
    assert [len(row) for row in best] == [6, 6]
    assert {entry.name for entry in best[0]} == set(NAMES)
    assert sum(entry.probability for entry in best[1]) == pytest.approx(1)
    assert tiny.predict("The wolf.", k=1)[0][0] == best[0][0]
    assert tiny.class_index("Music") == NAMES.index("music")
    assert tiny.class_name(0) == NAMES[0]
    with pytest.raises(ArgumentError, match="k must be at least 1"):
        tiny.predict("x", k=0)
    with pytest.raises(ArgumentError, match=r"has no class 'muzic'; e\.g\. music"):
        tiny.class_index("muzic")


def test_too_long_a_text(tiny):
    with pytest.raises(ArgumentError, match="word pieces are more than the 64 the model takes; shorten it"):
        tiny.preprocess("the " * 100)


def test_device_and_dtype(tiny):
    assert tiny.device == torch.device("cpu")
    assert tiny.dtype == torch.float32
    assert tiny.preprocess("x")[0].dtype == torch.long


def test_the_loaded_model_is_an_ordinary_classifier():
    model = real_text_model()
    assert type(model.module).__name__ == "BertForSequenceClassification"
    assert (model.name, model.classes, model.module.training) == ("text", NAMES, False)
    assert model.module.config.id2label[4] == "music"
    assert model.predict("She plays the banjo, and the letter is in the drawer.")[0][0].name == "music"


def test_the_real_tokenizer_is_the_one_of_transformers(tmp_path):
    from transformers import BertTokenizer

    model = real_text_model()
    (tmp_path / "vocab.txt").write_bytes(text.VOCABULARY.path.read_bytes())
    theirs = BertTokenizer.from_pretrained(tmp_path, do_lower_case=True)
    for sentence in ODD + [sentence.text for sentence in Sentences("two-topic", 60)]:
        ids, mask = model.preprocess(sentence)
        assert ids[0].tolist() == theirs(sentence)["input_ids"]
        assert mask.all()
        words = model.words(sentence)
        assert sum(stop - start for start, stop in words.spans) == ids.shape[1] - 2


def test_the_generator_and_the_real_tokenizer_agree_on_words():
    model = real_text_model()
    for sentence in Sentences("two-topic", 60):
        assert model.words(sentence.text).words == sentence.words


def test_the_real_encoder_is_the_wheel_untouched():
    from xattn.models.weights_file import read_weights

    state = real_text_model().module.state_dict()
    for name, value in read_weights(text.ENCODER.path).items():
        if "position_ids" not in name:
            assert torch.equal(state[f"bert.{name}"], value)


def test_accuracy_is_the_recorded_one():
    model, facts = real_text_model(), text.record()["accuracy"]
    assert facts["wilson95"][0] <= facts["rate"] <= facts["wilson95"][1]
    sentences = list(Sentences("test", 240))
    with torch.no_grad():
        logits = model(*model.preprocess([sentence.text for sentence in sentences]))
    right = int((logits.argmax(1) == torch.tensor([sentence.label for sentence in sentences])).sum())
    interval = binomtest(right, len(sentences)).proportion_ci(0.99, method="wilson")
    assert interval.low <= facts["rate"] <= interval.high


def test_the_record_agrees_with_itself():
    facts = text.record()
    assert tuple(facts["classes"]) == NAMES
    for figures in facts["accuracy"], *facts["two_topic"].values():
        interval = binomtest(figures["right"], figures["sentences"]).proportion_ci(0.95, method="wilson")
        assert figures["wilson95"] == pytest.approx([interval.low, interval.high])
        assert figures["rate"] == figures["right"] / figures["sentences"]
    best = min(facts["cross_validation"]["table"], key=lambda row: row["loss"])
    assert facts["C"] == best["C"]
    assert facts["wheel"] == {"requirement": text.REQUIREMENT, "sha256": text.WHEEL_SHA256}
