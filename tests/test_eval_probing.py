"""Linear probing: what is pooled, that the right weighting wins, and scikit-learn's own numbers."""

import csv

import numpy as np
import pytest
import torch
from run_models import Picked
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tiny_models import timm_vit
from torch.nn import functional as F
from typer.testing import CliRunner

from xattn.attributions import ColumnSum, TokenRank, TransformerAttribution
from xattn.cli import app
from xattn.errors import ArgumentError
from xattn.evaluation import linear_probing, load_dataset
from xattn.evaluation._probe import judge
from xattn.evaluation.datasets import BrokenSampleError, Dataset, Item
from xattn.evaluation.probing import pooled_features, pooling
from xattn.models.image import Preprocess
from xattn.models.model import Model


class Corner(TransformerAttribution):
    """Relevance at the first patch alone."""

    name = "corner"

    def _relevance(self, forward, reducer):
        relevance = torch.zeros(forward.inputs.shape[0], forward.layout.num_tokens)
        relevance[:, forward.layout.num_prefix] = 1
        return relevance


class Cornered(Dataset):
    """Noise whose first patch alone tells the class, in most of the pictures."""

    name, has_labels, classes = "cornered", True, ("bright", "dark")

    def __init__(self, n=40, seed=0, broken=()):
        self.n, self.seed, self.broken = n, seed, broken

    def __len__(self):
        return self.n

    def read(self, index):
        if index in self.broken:
            raise BrokenSampleError(f"sample {index}: broken")
        image = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(1000 * self.seed + index))
        image[:, :8, :8] = 0.65 - 0.3 * (index % 2)
        return Item(image, self.classes[index % 2])


@pytest.fixture(scope="module")
def model():
    return Model("tiny", timm_vit(), Preprocess((32, 32)))


def test_pooled_features_are_weighted_means_of_the_models_normalised_tokens(model):
    x = torch.rand(3, 3, 32, 32)
    weightings = pooling(model, ["tokenrank", ColumnSum, "uniform", "class_token"])
    pooled = pooled_features(model, x, weightings)
    norm = model.module.norm
    with torch.no_grad():
        tokens = (model.module.forward_features(x) - norm.bias) / norm.weight
    patches = tokens[:, 1:]
    rank = TokenRank(model).attribute(x, resolution="token")[:, 1:]
    expected = {
        "tokenrank": (rank / rank.sum(1, keepdim=True)).unsqueeze(2).mul(patches).sum(1),
        "uniform": patches.mean(1),
        "class_token": tokens[:, 0],
    }
    assert list(pooled) == ["tokenrank", "column_sum", "uniform", "class_token"]
    for name, features in expected.items():
        torch.testing.assert_close(pooled[name], features, atol=1e-4, rtol=1e-4)


def test_an_earlier_layer_and_weights_that_are_not_positive(model):
    x = torch.rand(2, 3, 32, 32)
    weightings = {"uniform": None, "none": lambda x: -torch.ones(2, 16)}
    early, late = (pooled_features(model, x, weightings, layer) for layer in (0, -1))
    torch.testing.assert_close(early["none"], early["uniform"])
    assert not torch.allclose(early["uniform"], late["uniform"])
    block = torch.tensor([])

    def keep(module, args, output):
        nonlocal block
        block = output

    with model.module.blocks[0].register_forward_hook(keep), torch.no_grad():
        model(x)
    torch.testing.assert_close(early["uniform"], F.layer_norm(block, block.shape[-1:])[:, 1:].mean(1))
    with pytest.raises(ArgumentError, match="the relevance of bad is not finite"):
        pooled_features(model, x, {"bad": lambda x: torch.full((2, 16), torch.nan)})
    with pytest.raises(ArgumentError, match="no self-attention layer 5"):
        pooled_features(model, x, weightings, 5)


def test_the_weighting_that_finds_the_patch_wins(model):
    found = linear_probing(model, Cornered(), [Corner, "uniform"], layer=0, strength=0.01)
    assert found.accuracy["corner"].estimate == 1.0
    assert found.accuracy["uniform"].estimate < 0.9
    (compared,) = found.comparisons
    assert (compared.first, compared.second) == ("corner", "uniform")
    wrong = int((~found.correct["uniform"]).sum())
    assert compared.difference == pytest.approx(wrong / 40)
    assert compared.p_adjusted < 0.05
    assert found.classes == ("bright", "dark")
    assert len(found.samples) == found.accuracy["corner"].n == 40


def test_a_test_set_is_judged_by_a_fit_on_the_other(model):
    test = Cornered(20, seed=1)
    found = linear_probing(model, Cornered(), ["uniform"], test=test, layer=0, strength=0.1)
    pooled = [torch.stack([s.image for s in data.samples(model)]).split(32) for data in (Cornered(), test)]
    x, other = (
        torch.cat([pooled_features(model, part, {"uniform": None}, 0)["uniform"] for part in parts]).double().numpy()
        for parts in pooled
    )
    y = np.arange(40) % 2
    fitted = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=5000)).fit(x, y)
    assert found.correct["uniform"].tolist() == (fitted.predict(other) == np.arange(20) % 2).tolist()


def test_the_probe_is_scikit_learns_cross_validation():
    generator = np.random.default_rng(0)
    y = np.array(["a", "b", "c"])[np.arange(60) % 3]
    x = generator.normal(size=(60, 5)) + (y[:, None] == np.array(["a", "b", "c", "d", "e"])[None]) * 1.0
    right, strengths = judge(x, y, None, strengths=(0.5,), folds=4, seed=3)
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.5, max_iter=5000))
    folds = StratifiedKFold(4, shuffle=True, random_state=3)
    assert right.tolist() == (cross_val_predict(probe, x, y, cv=folds) == y).tolist()
    assert strengths == (0.5,) * 4
    assert 0.4 < right.mean() < 1


def test_the_strength_is_chosen_within_the_fit():
    generator = np.random.default_rng(0)
    y = np.array(["a", "b"])[np.arange(80) % 2]
    x = generator.normal(size=(80, 60))
    x[:, 0] += 3.0 * (y == "a")
    _, strengths = judge(x, y, (x, y), strengths=(1e-9, 0.01), folds=4, seed=0)
    assert strengths == (0.01,)


def test_broken_and_unlabelled_pictures_are_counted_or_fatal(model):
    data = Cornered(42, broken=(3, 5))
    found = linear_probing(model, data, ["uniform"], layer=0, strength=0.01)
    assert len(found.samples) == 40
    assert found.skipped == {"3": "sample 3: broken", "5": "sample 5: broken"}
    with pytest.raises(BrokenSampleError, match="sample 3"):
        linear_probing(model, data, ["uniform"], on_broken="raise")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weightings": ["tokenrank", "TokenRank"]}, "weightings: 'tokenrank' comes twice"),
        ({"weightings": ["rank"]}, "method: expected one of"),
        ({"strength": 0.0}, "strength: expected positive"),
        ({"folds": 1}, "folds: expected at least 2"),
        ({"reference": "tokenrank", "weightings": ["uniform"], "folds": 30}, "folds: each class needs at least 30"),
        ({"dataset": Picked(Cornered(), [0, 2, 4])}, "at least two classes, got bright"),
        ({"dataset": load_dataset("demo", n=4), "test": Cornered(4), "folds": 2}, "folds: each class"),
        ({"layer": 9}, "no self-attention layer 9"),
    ],
)
def test_bad_arguments_are_named(model, options, message):
    arguments = {"dataset": Cornered(), "weightings": ["uniform"]} | options
    with pytest.raises(ArgumentError, match=message):
        linear_probing(model, arguments.pop("dataset"), arguments.pop("weightings"), **arguments)


def test_without_class_token_or_labels():
    pooled = Model("pooled", timm_vit(class_token=False, global_pool="avg"), Preprocess((32, 32)))
    with pytest.raises(ArgumentError, match="needs a class token"):
        linear_probing(pooled, Cornered(), ["class_token"])
    data = Cornered()
    data.has_labels = False
    with pytest.raises(ArgumentError, match="needs labels"):
        linear_probing(pooled, data)


def test_the_command_prints_and_writes_the_table(tmp_path):
    file = tmp_path / "probe.csv"
    options = [
        "--weighting",
        "tokenrank,uniform",
        "--limit",
        "50",
        "--folds",
        "2",
        "--layer",
        "0",
        "--strength",
        "0.1",
        "--out",
    ]
    result = CliRunner().invoke(app, ["probe", *options, str(file)])
    assert result.exit_code == 0, result.output
    rows = {row["weighting"]: row for row in csv.DictReader(file.read_text().splitlines())}
    expected = linear_probing(
        "demo", load_dataset("demo", n=50), ["tokenrank", "uniform"], strength=0.1, folds=2, layer=0
    )
    for name, accuracy in expected.accuracy.items():
        assert float(rows[name]["accuracy"]) == accuracy.estimate
        assert f"{accuracy.estimate:.3f}" in result.output
    assert rows["uniform"]["p"] == ""
    assert float(rows["tokenrank"]["p"]) == expected.comparisons[0].p_adjusted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--weighting", "rank"], "--weighting: "),
        (["--folds", "1"], "--folds: "),
        (["--strength", "x"], "expected numbers"),
        (["--out", "a.txt"], "file .csv"),
    ],
)
def test_the_command_names_its_flags(options, message):
    result = CliRunner().invoke(app, ["probe", "--limit", "4", *options])
    assert result.exit_code in (1, 2)
    assert message in result.output
