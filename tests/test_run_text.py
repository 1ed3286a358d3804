"""Runs over sentences: rows equal direct calls, every protocol, and pictures and sentences are not mixed up."""

import numpy as np
import pytest
import torch
from run_models import tiny, values
from text_models import tiny_text_model

from xattn.attributions import PredictionMap, TokenRank
from xattn.errors import ArgumentError
from xattn.evaluation import (
    benchmark,
    comprehensiveness,
    load_dataset,
    rationale_hit,
    sufficiency,
    token_removal,
    word_groups,
)

N = 5
PROTOCOLS = ["rationale", "token-removal", "eraser"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_text_model(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def sentences():
    return load_dataset("sentences-two-topic", n=N, seed=1)


@pytest.fixture(scope="module")
def results(model, sentences, tmp_path_factory):
    out = tmp_path_factory.mktemp("rows")
    return benchmark(model, sentences, ["tokenrank", "prediction_map", "random"], PROTOCOLS, out, chunk_size=2)


def close(found, expected):
    np.testing.assert_allclose(list(found.values()), expected.numpy(), atol=1e-6)


@pytest.mark.parametrize("method", [TokenRank, PredictionMap])
def test_rows_are_those_of_direct_calls(results, model, sentences, method):
    texts = [sentences.read(i).text for i in range(N)]
    ids, mask = model.preprocess(texts)
    target = model(ids, mask).argmax(1)
    relevance = method(model).attribute(ids, target, mask, resolution="token")
    groups = word_groups(model, texts)
    for order in ("positive", "negative"):
        curve = token_removal(model, ids, mask, relevance, target, order=order, groups=groups)
        close(values(results.rows, method.name, "token-removal", f"removal_{order}"), curve.auc())
        close(values(results.rows, method.name, "token-removal", f"removal_{order}", column="curve"), curve.values)
    for metric in (comprehensiveness, sufficiency):
        expected = metric(model, ids, mask, relevance, target, groups=groups)
        close(values(results.rows, method.name, "eraser", metric.__name__), expected)
    topics = [[model.classes.index(name) for name in sentences.read(i).object_labels] for i in range(N)]
    words = [model.words(text) for text in texts]
    per_word = [one.per_word(row[: len(one.tokens)]) for one, row in zip(words, relevance, strict=True)]
    rationales = [
        sentences.read(i).rationales[topics[i].index(t)] if t in topics[i] else ()
        for i, t in enumerate(target.tolist())
    ]
    close(values(results.rows, method.name, "rationale", "rationale_hit"), rationale_hit(per_word, rationales))


def test_an_answer_that_is_no_topic_of_the_sentence_has_no_rationale(results, model, sentences):
    rows = [row for row in results.rows.to_pylist() if (row["method"], row["protocol"]) == ("tokenrank", "rationale")]
    wrong = [row["sample_index"] for row in rows if row["undefined"]]
    about = [[model.classes.index(name) for name in sentences.read(i).object_labels] for i in range(N)]
    predicted = [int(model(*model.preprocess(sentences.read(i).text)).argmax()) for i in range(N)]
    assert wrong == [i for i in range(N) if predicted[i] not in about[i]]
    assert [row["correct"] for row in rows] == [predicted[i] in about[i] for i in range(N)]


def test_the_table_counts_sentences_and_the_report_is_written(results, tmp_path):
    assert f"{N} sentences" in str(results.table(resamples=20))
    page = results.report(tmp_path / "report.html").read_text()
    assert f"{N} sentences" in page
    assert "Examples" not in page


def test_batch_and_chunk_sizes_do_not_matter(results, model, sentences, tmp_path):
    other = benchmark(model, sentences, "tokenrank", PROTOCOLS, tmp_path, chunk_size=5, batch_size=3)
    for protocol, metric in (("token-removal", "removal_positive"), ("eraser", "sufficiency")):
        found, expected = (list(values(r.rows, "tokenrank", protocol, metric).values()) for r in (other, results))
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_label_can_be_explained(model, sentences, tmp_path):
    rows = benchmark(model, sentences, "prediction_map", "rationale", tmp_path, target="label").rows
    labels = [model.classes.index(sentences.read(i).label) for i in range(N)]
    assert list(values(rows, "prediction_map", column="target").values()) == labels
    assert not any(values(rows, "prediction_map", column="undefined").values())


def test_methods_of_captum_take_part(model, sentences, tmp_path):
    from captum.attr import LayerIntegratedGradients

    method = LayerIntegratedGradients(model, model.module.bert.embeddings)
    rows = benchmark(model, sentences, {"ig": method}, "token-removal", tmp_path, limit=2).rows
    ids, mask = model.preprocess([sentences.read(i).text for i in range(2)])
    target = model(ids, mask).argmax(1)
    relevance = method.attribute(ids, target=target, additional_forward_args=(mask,)).detach().sum(-1)
    groups = word_groups(model, [sentences.read(i).text for i in range(2)])
    expected = token_removal(model, ids, mask, relevance, target, groups=groups).auc()
    close(values(rows, "ig", "token-removal", "removal_positive"), expected)


def test_pictures_and_sentences_are_not_mixed_up(model, sentences, tmp_path):
    scenes = load_dataset("demo", n=1)
    with pytest.raises(ArgumentError, match="'demo' holds pictures, and model 'tiny' reads text"):
        benchmark(model, scenes, "tokenrank", "rationale", tmp_path)
    with pytest.raises(ArgumentError, match="'sentences-two-topic' holds text, and model 'tiny' reads pictures"):
        benchmark(tiny(), sentences, "tokenrank", "perturbation", tmp_path)
    with pytest.raises(
        ArgumentError, match="perturbation judges pictures; for text there are rationale, token-removal"
    ):
        benchmark(model, sentences, "tokenrank", "perturbation", tmp_path)


def test_sentences_are_data_by_name():
    data = load_dataset("sentences", n=4, seed=2)
    assert (len(data), data.holds, data.has_labels, data.has_masks) == (4, "text", True, False)
    item = data.read(1)
    assert item.object_labels == (item.label,)
    assert len(load_dataset("sentences")) == 600
    assert torch.is_tensor(load_dataset("demo", n=1).read(0).image)
