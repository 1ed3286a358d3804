"""Text protocols on a linear bag of words, where every value is known in closed form."""

import math

import pytest
import torch
from text_models import tiny_text_model

from xattn.errors import ArgumentError
from xattn.evaluation.text import comprehensiveness, rationale_hit, sufficiency, token_removal, word_groups

WEIGHTS = torch.zeros(30, 2)
WEIGHTS[5:15, 1] = torch.linspace(-1.5, 3, 10)
CLS, SEP, UNKNOWN = 1, 2, 3


def bag(ids, mask):
    """Logit of class 1: sum of the words' weights; of class 0: 0. Position plays no part."""
    return (WEIGHTS[ids] * mask.unsqueeze(2)).sum(1)


def padded(*rows):
    longest = max(map(len, rows)) + 2
    ids = torch.tensor([[CLS, *row, SEP] + [29] * (longest - 2 - len(row)) for row in rows])
    mask = torch.tensor([[1] * (len(row) + 2) + [0] * (longest - 2 - len(row)) for row in rows])
    return ids, mask


ROWS = ([5, 14, 9, 13], [14, 6, 10, 7, 12, 8, 11, 13])
IDS, MASK = padded(*ROWS)
RELEVANCE = WEIGHTS[IDS][..., 1] + 100.0 * (MASK == 0) + 50.0 * (IDS == CLS) - 50.0 * (IDS == SEP)


def p(words):
    return torch.sigmoid(WEIGHTS[torch.tensor(words, dtype=torch.long)][:, 1].sum()).item()


def by_relevance(row):
    return sorted(row, key=lambda word: -WEIGHTS[word, 1])


@pytest.mark.parametrize("how", ["mask", "delete", "replace"])
@pytest.mark.parametrize("order", ["positive", "negative"])
def test_curves_in_closed_form(how, order):
    fractions = (0.0, 0.1, 0.25, 0.5, 0.7, 1.0)
    fill = UNKNOWN if how == "replace" else None
    curve = token_removal(
        bag, IDS, MASK, RELEVANCE, 1, order=order, fractions=fractions, how=how, fill=fill, batch_size=3
    )
    for row, values in zip(ROWS, curve.values, strict=True):
        words = by_relevance(row) if order == "positive" else by_relevance(row)[::-1]
        expected = [p(words[math.ceil(fraction * len(row) - 1e-9) :]) for fraction in fractions]
        assert values.tolist() == pytest.approx(expected, abs=1e-6)
    assert curve.fractions.tolist() == pytest.approx(fractions)
    assert curve.higher_is_better is (order == "negative")
    assert not curve.constant.any()


def test_comprehensiveness_and_sufficiency_in_closed_form():
    fractions = (0.25, 0.5)
    lost = comprehensiveness(bag, IDS, MASK, RELEVANCE, 1, fractions=fractions)
    short = sufficiency(bag, IDS, MASK, RELEVANCE, 1, fractions=fractions)
    for row, found, missing in zip(ROWS, lost, short, strict=True):
        words, n = by_relevance(row), len(row)
        assert float(found) == pytest.approx(sum(p(row) - p(words[int(f * n) :]) for f in fractions) / 2, abs=1e-6)
        assert float(missing) == pytest.approx(sum(p(row) - p(words[: int(f * n)]) for f in fractions) / 2, abs=1e-6)


def test_the_exact_relevance_beats_its_inverse_and_the_default_fractions_work():
    assert (comprehensiveness(bag, IDS, MASK, RELEVANCE, 1) > comprehensiveness(bag, IDS, MASK, -RELEVANCE, 1)).all()
    assert (sufficiency(bag, IDS, MASK, RELEVANCE, 1) < sufficiency(bag, IDS, MASK, -RELEVANCE, 1)).all()


def test_a_batch_is_its_sentences():
    together = token_removal(bag, IDS, MASK, RELEVANCE)
    for i, row in enumerate(ROWS):
        ids, mask = padded(row)
        alone = token_removal(bag, ids, mask, RELEVANCE[i : i + 1, : ids.shape[1]])
        torch.testing.assert_close(together.values[i : i + 1], alone.values)
        assert together.target[i] == alone.target[0]


def test_groups_go_together():
    ids, mask = padded([14, 5, 13, 6])
    groups = torch.tensor([[-1, 0, 0, 1, 1, -1]])
    relevance = torch.tensor([[9.0, 5, 0, 3, 3, 9]])  # sums: 5 and 6
    curve = token_removal(bag, ids, mask, relevance, 1, fractions=(0, 0.5, 1), groups=groups)
    assert curve.values[0].tolist() == pytest.approx([p([14, 5, 13, 6]), p([14, 5]), p([])])


def test_nan_constant_and_ties():
    relevance = RELEVANCE.clone()
    relevance[0, 2] = math.nan
    relevance[1] = torch.where(MASK[1] == 1, 2.0, math.nan)  # NaN at padding is no matter
    curve = token_removal(bag, IDS, MASK, relevance, 1, fractions=(0, 0.5))
    assert curve.undefined.tolist() == [True, False]
    assert curve.constant.tolist() == [False, True]
    assert curve.values[0].isnan().all()
    assert float(curve.values[1, 1]) == pytest.approx(p(ROWS[1][4:]))  # from left to right


@pytest.mark.parametrize(
    ("relevance", "rationale", "expected"),
    [
        ([0.1, 0.9, 0.3], [1], 1.0),
        ([0.1, 0.9, 0.3], [0, 2], 0.0),
        ([0.5, 0.5, 0.1], [1], 0.5),
        ([1.0, 1.0, 1.0], [0, 1], 2 / 3),
        ([-3.0, -1.0, -2.0], [1, 2], 1.0),
        ([0.5, math.nan, 0.1], [0], math.nan),
        ([0.5, 0.1], [], math.nan),
    ],
)
def test_rationale_hit(relevance, rationale, expected):
    hit = rationale_hit([torch.tensor(relevance)], [rationale])
    assert hit.tolist() == pytest.approx([expected], nan_ok=True)


def test_words_of_a_text_model(tmp_path):
    model = tiny_text_model(tmp_path)
    texts = ["The ukulele, again.", "The wolf."]
    groups = word_groups(model, texts)
    ids, mask = model.preprocess(texts)
    assert groups.shape == ids.shape
    assert (groups[mask == 0] == -1).all()
    for row, text in zip(groups, texts, strict=True):
        words = model.words(text)
        assert [int((row == i).sum()) for i in range(len(words))] == [stop - start for start, stop in words.spans]
        assert row[0] == row[len(words.tokens) - 1] == -1
    relevance = torch.rand(ids.shape)
    for how in ("mask", "delete"):
        curve = token_removal(model, ids, mask, relevance, groups=groups, how=how)
        assert curve.values.shape == (2, 11)
        alone = token_removal(model, *model.preprocess(texts[1]), relevance[1:, : int(mask[1].sum())], how=how)
        ungrouped = token_removal(model, ids, mask, relevance, how=how)
        torch.testing.assert_close(ungrouped.values[1:], alone.values, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"how": "erase"}, "how: expected"),
        ({"how": "replace"}, "fill: expected a token id"),
        ({"fill": 3}, "fill: expected a token id"),
        ({"score": "loss"}, "score: expected"),
        ({"fractions": (0.5, 0.1)}, "fractions: expected increasing"),
        ({"batch_size": 0}, "batch_size: expected"),
        ({"groups": torch.zeros(2, 3)}, "groups: expected the shape"),
        ({"groups": torch.full(IDS.shape, -1)}, r"nothing can be taken away in the sentences \[0, 1\]"),
        ({"relevance": torch.zeros(2, 3)}, "relevance: expected the shape"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ArgumentError, match=message):
        token_removal(bag, IDS, MASK, **{"relevance": RELEVANCE, **options})


def test_bad_rationales_are_named():
    with pytest.raises(ArgumentError, match="expected one per sentence"):
        rationale_hit([torch.ones(2)], [])
    with pytest.raises(ArgumentError, match="expected positions of words"):
        rationale_hit([torch.ones(2)], [[2]])
