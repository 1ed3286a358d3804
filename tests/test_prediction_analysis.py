"""Statistics of patch predictions against a few lines of numpy."""

import numpy as np
import pytest
import tiny_models as tiny
import torch
from scipy.special import log_softmax

from xattn import AttentionTap
from xattn.attributions import PredictionMap
from xattn.attributions.prediction_analysis import as_frame, layer_statistics, similar_heads
from xattn.errors import ArgumentError, UnsupportedModelError


@pytest.fixture(scope="module")
def model():
    return tiny.timm_vit(depth=3).double()


def images(batch=3):
    return tiny.images(batch, dtype=torch.float64)


@pytest.mark.parametrize("target", [None, [4, 0, 1]])
def test_statistics_of_each_layer(model, target):
    actual = layer_statistics(model, images(), target)
    wanted = model(images()).argmax(-1).tolist() if target is None else target
    for layer in range(3):
        logits = PredictionMap(model, layer=layer, space="logit").maps(images()).flatten(2).numpy()
        for sample in range(3):
            values, log_p = logits[sample].T, log_softmax(logits[sample].T, -1)  # (patches, classes)
            ordered = np.sort(values, -1)
            expected = {
                "accuracy": np.mean(values.argmax(-1) == wanted[sample]),
                "probability": np.exp(log_p[:, wanted[sample]]).mean(),
                "margin": (ordered[:, -1] - ordered[:, -2]).mean(),
                "entropy": -(np.exp(log_p) * log_p).sum(-1).mean(),
            }
            assert {name: float(v[sample, layer]) for name, v in actual.items()} == pytest.approx(expected)


def test_padding_is_not_counted():
    bert, ids = tiny.hf_bert(), tiny.words(1)
    alone = layer_statistics(bert, ids[:, :5])
    padded = layer_statistics(bert, ids, None, torch.tensor([[1] * 5 + [0] * 2]))
    for name, values in alone.items():
        torch.testing.assert_close(padded[name], values)


def test_a_single_output_has_no_classes():
    with pytest.raises(UnsupportedModelError, match="at least two classes"):
        layer_statistics(tiny.timm_vit(num_classes=1), tiny.images())


def test_the_most_similar_head(model):
    with AttentionTap() as tap, torch.no_grad():
        model(images())
    rows = torch.stack(tap.maps, 1)[:, :, :, 0, 1:]
    maps = PredictionMap(model).attribute(images(), target=2, resolution="patch").flatten(1)
    scores = torch.einsum("blhp,bp->blh", rows, maps)
    found = similar_heads(model, images(), target=2)
    torch.testing.assert_close(found["similarity"], scores)
    for sample in range(3):
        best = np.unravel_index(int(scores[sample].argmax()), scores[sample].shape)
        assert (int(found["layer"][sample]), int(found["head"][sample])) == best
    assert found["histogram"].shape == (3, 2)
    assert int(found["histogram"].sum()) == 3
    assert found["histogram"][found["layer"][0], found["head"][0]] > 0


@pytest.mark.parametrize("similarity", ["cosine", "kl"])
def test_similarities_of_one_are_the_most(model, similarity):
    similar = similar_heads(model, images(), similarity=similarity)["similarity"]
    assert float(similar.max()) <= 1
    assert float(similar.min()) > 0


def test_a_data_frame_has_a_row_per_entry(model):
    statistics = layer_statistics(model, images())
    frame = as_frame(statistics, ("sample", "layer"))
    assert list(frame.columns) == ["sample", "layer", *statistics]
    assert frame.iloc[5].to_dict() == {"sample": 1, "layer": 2, **{n: float(v[1, 2]) for n, v in statistics.items()}}
    means = frame.groupby("layer")["entropy"].mean()
    assert means.tolist() == pytest.approx(statistics["entropy"].mean(0).tolist())


def test_the_histogram_is_counted_from_the_best_heads(model):
    found = similar_heads(model, images())
    counts = as_frame({"count": found["histogram"]}, ("layer", "head"))
    similar = as_frame({"similarity": found["similarity"]}, ("sample", "layer", "head"))
    best = similar.loc[similar.groupby("sample")["similarity"].idxmax()].groupby(["layer", "head"]).size()
    assert counts.set_index(["layer", "head"])["count"].loc[lambda n: n > 0].to_dict() == best.to_dict()


@pytest.mark.parametrize("statistics", [{}, {"a": torch.zeros(2), "b": torch.zeros(3)}, {"a": torch.zeros(2, 2)}])
def test_a_data_frame_needs_one_shape_and_its_axes(statistics):
    with pytest.raises(ArgumentError, match="statistics: expected tensors of one shape"):
        as_frame(statistics, ("layer",))
