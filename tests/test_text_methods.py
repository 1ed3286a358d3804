"""Every registered method on padded batches of sentences, and whether it finds the words that decide."""

from inspect import signature

import pytest
import torch
from family_models import hf_distilbert
from text_models import real_text_model, tiny_text_model
from tiny_models import words

from xattn.attributions import methods
from xattn.errors import ArgumentError, UnsupportedModelError
from xattn.models.sentences import Sentences

PAIR = [
    "On Monday my cousin told us about the ukulele while we waited in the vestibule.",
    "The wolf and the choir.",
]
ATTENTION = ("tokenrank", "n_bounce", "lambda2_rollout", "column_sum", "raw_attention", "attention_rollout")
MUST_APPLY = (*ATTENTION, "dino_attention", "attention_gradcam", "gradient_rollout", "generic_attention", "random")
LEAVES_OUT_CLS = {"tokenrank", "n_bounce", "column_sum", "dino_attention", "attention_gradcam", "token_gradcam",
                  "prediction_map", "prediction_attention", "random"}  # fmt: skip
STARTS_WITH_IDENTITY = {"generic_attention", "transinterp", "relevance_rollout"}
# Mean share of the other words that lie below the deciding one: 0.5 by chance, 0.94 to 0.99 on 120 test sentences.
FINDS_THE_WORD = {"tokenrank": 0.8, "n_bounce": 0.8, "raw_attention": 0.85, "generic_attention": 0.95}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_text_model(tmp_path_factory.mktemp("tiny"))


def attribute(name, model, ids, mask, target):
    options = {"precision": "float64"} if "precision" in signature(methods[name]).parameters else {}
    method = methods[name](model, **options)
    try:
        return method.attribute(ids, target=target, additional_forward_args=mask, resolution="token")
    except UnsupportedModelError as error:
        if name in MUST_APPLY:
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("name", methods)
@pytest.mark.parametrize("size", ["tiny", "real"])
def test_padded_batches(name, size, tiny):
    model = tiny if size == "tiny" else real_text_model()
    ids, mask = model.preprocess(PAIR)
    batch = attribute(name, model, ids, mask, [1, 2])
    assert batch.shape == ids.shape
    assert batch.isfinite().all()
    assert (batch[mask == 0] == 0).all()
    assert (mask == 0).any()
    for index, sentence in enumerate(PAIR):
        words = model.words(sentence)
        n = len(words.tokens)
        per_word = words.per_word(batch[index])
        torch.testing.assert_close(per_word.sum(), batch[index, 1 : n - 1].sum(), atol=1e-5, rtol=1e-4)
        if name == "random":  # its noise is a function of the ids, padding included
            continue
        single = attribute(name, model, *model.preprocess(sentence), index + 1)
        torch.testing.assert_close(batch[index, :n], single[0], atol=1e-4 * float(single.abs().max()), rtol=1e-3)


@pytest.mark.parametrize("name", methods)
def test_special_tokens_have_what_the_method_gives_them_and_words_leave_them_out(name, tiny):
    ids, mask = tiny.preprocess(PAIR[0])
    relevance = attribute(name, tiny, ids, mask, 1)[0]
    assert bool(relevance[0] == 0) == (name in LEAVES_OUT_CLS)
    if name in STARTS_WITH_IDENTITY:
        assert relevance[0] >= 1
    sentence = tiny.words(PAIR[0])
    assert (sentence.tokens[0], sentence.tokens[-1]) == ("[CLS]", "[SEP]")
    changed = relevance.clone()
    changed[[0, -1]] = 7.0
    assert torch.equal(sentence.per_word(changed), sentence.per_word(relevance))


@pytest.mark.parametrize("name", methods)
def test_distilbert(name):
    model, ids = hf_distilbert(), words(2, 7)
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    relevance = attribute(name, model, ids, mask, 1)
    assert relevance.isfinite().all()
    assert (relevance[1, 4:] == 0).all()
    assert (relevance.abs().sum(1) > 0).all()
    if name != "random":  # its noise is a function of the ids, padding included
        alone = attribute(name, model, ids[1:, :4], mask[1:, :4], 1)
        torch.testing.assert_close(relevance[1:, :4], alone, atol=1e-5 * float(alone.abs().max()), rtol=1e-3)


@pytest.mark.parametrize("name", FINDS_THE_WORD)
def test_methods_find_the_deciding_word(name):
    model, sentences = real_text_model(), list(Sentences("test", 24))
    ids, mask = model.preprocess([sentence.text for sentence in sentences])
    relevance = attribute(name, model, ids, mask, [sentence.label for sentence in sentences])
    ranks = []
    for row, sentence in zip(relevance, sentences, strict=True):
        words = model.words(sentence.text).per_word(row)
        ranks += [float((words < words[i]).sum()) / (len(words) - 1) for i in sentence.rationale]
    assert sum(ranks) / len(ranks) > FINDS_THE_WORD[name]


@pytest.mark.parametrize("name", ["gradient_rollout", "generic_attention"])
def test_class_specific_methods_tell_two_topics_apart(name):
    model, sentences = real_text_model(), list(Sentences("two-topic", 24))
    ids, mask = model.preprocess([sentence.text for sentence in sentences])
    right = 0
    for asked in range(2):
        relevance = attribute(name, model, ids, mask, [sentence.labels[asked] for sentence in sentences])
        for row, sentence in zip(relevance, sentences, strict=True):
            words = model.words(sentence.text).per_word(row)
            best = [float(words[list(rationale)].max()) for rationale in sentence.rationales]
            right += best[asked] > best[1 - asked]
    assert right / (2 * len(sentences)) > 0.9


@pytest.mark.parametrize("left", [0, 1], ids=["nothing", "the class token"])
@pytest.mark.parametrize("name", [name for name in methods if name != "center"])
def test_a_mask_that_leaves_no_word_is_named(name, left, tiny):
    ids, mask = tiny.preprocess(PAIR)
    mask[1, left:] = 0
    with pytest.raises(ArgumentError, match=r"attention_mask: .*one word .* sample\(s\) 1 of the batch"):
        methods[name](tiny).attribute(ids, target=0, additional_forward_args=mask)


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        (torch.tensor([[1, 100_000]]), None, r"inputs: expected token ids .* got ids 1 to 100000 of shape \(1, 2\)"),
        (torch.tensor([[-3, 1]]), None, "got ids -3 to 1"),
        (
            torch.ones(2, 5).long(),
            torch.eye(2, 4),
            r"additional_forward_args: expected a mask .*\(2, 5\), got \(2, 4\)",
        ),
        (torch.ones(1, 65).long(), None, r"inputs: the model refused token ids of shape \(1, 65\)"),
    ],
)
def test_ids_and_masks_that_the_model_refuses_are_named(ids, mask, message, tiny):
    with pytest.raises(ArgumentError, match=message):
        methods["tokenrank"](tiny).attribute(ids, additional_forward_args=mask)
