"""The sentence generator: deterministic, balanced, and true about where its deciding words are."""

from collections import Counter

import pytest

from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.models.phrases import FILLERS, ONE_TOPIC, TEST_TERMS, TRAIN_TERMS, TWO_TOPICS
from xattn.models.sentences import NAMES, SPLITS, Sentences


def terms_of(split):
    return TRAIN_TERMS if split.endswith("train") else TEST_TERMS


def words_of(terms):
    return {word.lower() for topic in terms.values() for term in topic for word in term.split()}


@pytest.mark.parametrize("split", SPLITS)
def test_rationales_are_the_terms_of_the_labels(split):
    for sentence in Sentences(split, 300):
        assert len(sentence.labels) == len(sentence.rationales) == (2 if split.startswith("two") else 1)
        for label, rationale in zip(sentence.labels, sentence.rationales, strict=True):
            term = " ".join(sentence.words[i] for i in rationale)
            assert term in terms_of(split)[NAMES[label]]
            assert f"{'T' if rationale[0] == 1 else 't'}he {term}" in sentence.text


@pytest.mark.parametrize("split", SPLITS)
def test_no_other_word_is_a_term(split):
    every = words_of(TRAIN_TERMS) | words_of(TEST_TERMS)
    for sentence in Sentences(split, 300):
        others = {word.lower() for i, word in enumerate(sentence.words) if i not in sentence.rationale}
        assert not others & every


@pytest.mark.parametrize("split", SPLITS)
def test_topics_are_balanced(split):
    counts = Counter(sentence.labels for sentence in Sentences(split, 300))
    assert len(counts) == (30 if split.startswith("two") else 6)
    assert len(set(counts.values())) == 1
    assert all(len(set(labels)) == len(labels) for labels in counts)


def test_test_terms_are_new():
    assert not words_of(TRAIN_TERMS) & words_of(TEST_TERMS)
    assert {len(terms) for terms in TRAIN_TERMS.values()} == {20}
    assert {len(terms) for terms in TEST_TERMS.values()} == {10}
    assert list(TRAIN_TERMS) == list(TEST_TERMS)


def test_splits_share_no_sentence():
    texts = [{sentence.text for sentence in Sentences(split, 300)} for split in SPLITS]
    assert sum(len(part) for part in texts) == len(set().union(*texts))
    assert all(len(part) > 295 for part in texts)


def test_fillers_do_not_depend_on_the_topic():
    """Each filler occurs with each topic."""
    seen = {(word, sentence.label) for sentence in Sentences("train", 1800) for word in sentence.words}
    missing = [
        (word, topic)
        for words in FILLERS.values()
        for word in words
        for topic in range(len(NAMES))
        if (word, topic) not in seen
    ]
    assert not missing


def test_all_templates_are_written_well():
    for template in ONE_TOPIC + TWO_TOPICS:
        assert template[-1] in ".?"
        assert ("{1}" in template) == (template in TWO_TOPICS)
    for words in FILLERS["adj"], FILLERS["thing"], FILLERS["time"]:
        assert all(word[0] not in "aeiou" for word in words), "the templates say 'a', never 'an'"


def test_golden_sentences():
    assert [(s.text, s.labels, s.rationales) for s in Sentences("test", 2)] == [
        (
            "What Cordelia remembered of that month was the turtle, not the clipboard in the office.",
            (NAMES.index("animals"),),
            ((8,),),
        ),
        (
            "Nobody in the vestibule had noticed the orbit until the plumber moved the plain bucket.",
            (NAMES.index("astronomy"),),
            ((7,),),
        ),
    ]
    sentence = Sentences("two-topic", 2)[1]
    assert sentence.text == (
        "The spaceship reminded the bystander of a night with Peter, a narrow doormat and the ice cream."
    )
    assert sentence.names == ("astronomy", "food")
    assert sentence.rationales == ((1,), (16, 17))


def test_sentences_depend_on_seed_and_index_alone():
    few, many = Sentences("test", 3), Sentences("test", 40)
    assert list(few) == [many[i] for i in range(3)]
    assert few[-1] == few[2]
    assert [s.text for s in few] != [s.text for s in Sentences("test", 3, seed=1)]
    assert len(many) == len(list(many)) == 40


def test_names_and_positions_of_all_terms():
    sentence = Sentences("two-topic", 1)[0]
    assert sentence.names == tuple(NAMES[label] for label in sentence.labels)
    assert sentence.label == sentence.labels[0]
    assert sentence.rationale == sentence.rationales[0] + sentence.rationales[1]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("val",), ArgumentError, "split must be one of train, test, two-topic, two-topic-train; got 'val'"),
        (("test", 0), ArgumentError, "n must be at least 1"),
        (("test", 2, -1), ArgumentError, "seed at least 0"),
        (("test", 2.0), ArgumentTypeError, "n and seed must be int; got float and int"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        Sentences(*arguments)


def test_an_index_out_of_range():
    with pytest.raises(IndexError, match="sentence 2 of a split of 2"):
        Sentences("test", 2)[2]
