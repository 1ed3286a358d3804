"""Words and word pieces, on a vocabulary of a few lines; the real one is compared in test_text_model.py."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xattn.errors import ArgumentError, ArgumentTypeError, WeightsError
from xattn.models.wordpiece import WordPieces, Words, split_words

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "uk", "##ule", "##le", "sang", "isn", "'", "t", "."]
VOCABULARY += [*"abcdefghijklmnopqrsuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return WordPieces(path, longest=40)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The choir sang.", ["The", "choir", "sang", "."]),
        ("Well-known, isn't it?!", ["Well-known", ",", "isn't", "it", "?", "!"]),
        ("  (“quoted”)\n3.50 $", ["(", "“", "quoted", "”", ")", "3.50", "$"]),
        ("...", [".", ".", "."]),
        ("a a a", ["a", "a", "a"]),
        ("", []),
        (" \t\n ", []),
    ],
)
def test_split_words(text, words):
    assert [text[start:stop] for start, stop in split_words(text)] == words


@given(st.text())
def test_words_cover_all_but_white_space(text):
    spans = split_words(text)
    assert "".join(text[start:stop] for start, stop in spans) == "".join(text.split())
    assert all(start < stop for start, stop in spans)
    assert all(one[1] <= two[0] for one, two in pairwise(spans))


def test_spans_of_pieces(pieces):
    words = pieces.words("The ukulele isn't sang.")
    assert words.tokens == ("[CLS]", "the", "uk", "##ule", "##le", "isn", "'", "t", "sang", ".", "[SEP]")
    assert list(words) == ["The", "ukulele", "isn't", "sang", "."]
    assert words.spans == ((1, 2), (2, 5), (5, 8), (8, 9), (9, 10))


def test_relevance_of_a_word_is_the_sum_of_its_pieces(pieces):
    words = pieces.words("The ukulele sang")
    relevance = torch.tensor([100.0, 1, 2, 4, 8, 16, 100, 7, 7])  # the last two are padding
    assert words.per_word(relevance).tolist() == [1, 14, 16]
    assert words.per_word(relevance.expand(3, 2, 9)).shape == (3, 2, 3)


def test_what_the_tokenizer_drops_is_an_empty_word(pieces):
    words = pieces.words("the \u200b sang")
    assert words.spans == ((1, 2), (2, 2), (2, 3))
    assert words.per_word(torch.ones(4)).tolist() == [1, 0, 1]


@settings(max_examples=200)
@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=15))
def test_every_piece_belongs_to_one_word(pieces, text):
    try:
        words = pieces.words(text)
    except ArgumentError:
        return
    covered = [i for start, stop in words.spans for i in range(start, stop)]
    assert covered == list(range(1, len(words.tokens) - 1))


def test_batches_are_padded(pieces):
    ids, mask = pieces.encode(["the", "the ukulele sang"])
    assert ids.shape == mask.shape == (2, 7)
    assert mask.tolist() == [[1, 1, 1, 0, 0, 0, 0], [1] * 7]
    assert pieces.decode(ids[0]) == ["[CLS]", "the", "[SEP]", "[PAD]", "[PAD]", "[PAD]", "[PAD]"]


def test_wrong_texts(pieces, tmp_path):
    with pytest.raises(ArgumentTypeError, match="text: expected a string or a list of strings, got int"):
        pieces.encode([3])
    with pytest.raises(ArgumentError, match="expected at least one sentence"):
        pieces.encode([])
    with pytest.raises(ArgumentError, match="expected at least one word, got ' '"):
        pieces.encode([" "])
    with pytest.raises(ArgumentError, match="text: 52 word pieces are more than the 40 the model takes"):
        pieces.words("the " * 50)
    with pytest.raises(WeightsError, match="is not a readable vocabulary"):
        WordPieces(tmp_path / "none.txt")


def test_wrong_relevance_and_ids():
    words = Words(("the",), ((1, 2),), ("[CLS]", "the", "[SEP]"))
    with pytest.raises(
        ArgumentError, match=r"relevance: expected a number for each of the 3 tokens .* got shape \(2,\)"
    ):
        words.per_word(torch.ones(2))
    with pytest.raises(ArgumentTypeError, match="relevance: expected a tensor, got list"):
        words.per_word([1.0])


def test_ids_of_one_sentence_are_asked_for(pieces):
    with pytest.raises(ArgumentError, match=r"ids: expected the token ids \(N,\) of one sentence, got shape \(1, 4\)"):
        pieces.decode(torch.ones(1, 4, dtype=torch.long))
