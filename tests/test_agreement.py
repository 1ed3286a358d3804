"""How far maps agree, in Python and on the command line."""

import re

import numpy as np
import pytest
import torch
from captum.attr import InputXGradient
from scipy.stats import spearmanr
from typer.testing import CliRunner

from xattn import explain
from xattn._agreement import rank_agreement
from xattn.cli import app
from xattn.models.scenes import Scenes


def test_rank_correlation_is_scipys():
    generator = torch.Generator().manual_seed(0)
    maps = {name: torch.randint(0, 9, (5, 7), generator=generator).float() for name in "abc"}  # with ties
    maps["minus a"] = -maps["a"]
    found = rank_agreement(maps)
    expected = spearmanr(np.stack([m.flatten().numpy() for m in maps.values()], 1)).statistic
    np.testing.assert_allclose(found.to_numpy(), expected, atol=1e-12)
    assert found.loc["a", "minus a"] == pytest.approx(-1)
    assert list(found.index) == list(found.columns) == list(maps)


def test_maps_without_ranks_agree_with_nothing():
    maps = {"flat": torch.ones(4), "nan": torch.tensor([1.0, 2.0, float("nan"), 4.0]), "good": torch.arange(4.0)}
    found = rank_agreement(maps)
    assert found.notna().to_numpy().sum() == 1
    assert found.loc["good", "good"] == pytest.approx(1)


def test_maps_of_pixels_and_of_patches_meet_at_pixels():
    image = Scenes("test", 1)[0].image
    from xattn import load

    model = load("demo")
    both = explain(model, image, {"rank": "tokenrank", "pixels": InputXGradient(model.module)})
    assert both.maps["pixels"].shape != both.maps["rank"].shape
    expected = spearmanr(both.map("rank").flatten(), both.map("pixels").flatten()).statistic
    assert both.agreement().loc["rank", "pixels"] == pytest.approx(expected)


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "wide.png"
    from PIL import Image

    scene = (Scenes("test", 1)[0].image.permute(1, 2, 0) * 255).byte().numpy()
    Image.fromarray(np.concatenate([scene, scene], 1)).save(path)
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_compare_writes_a_figure_and_prints_the_matrix(picture, tmp_path):
    out = tmp_path / "comparison.png"
    result = run(picture, "--model", "demo", "--method", "tokenrank,n_bounce,random", "--out", out)
    assert result.exit_code == 0, result.output
    assert out.read_bytes().startswith(b"\x89PNG")
    expected = explain("demo", picture, ["tokenrank", "n_bounce", "random"]).agreement()
    numbers = re.findall(r"-?\d\.\d\d(?!\d)", result.output.split("method")[-1])
    pairs = [("n_bounce", "tokenrank"), ("random", "tokenrank"), ("random", "n_bounce")]
    assert numbers[:3] == [f"{expected.loc[pair]:.2f}" for pair in pairs]
    assert "the centre of a picture of 192 x 96" in result.output  # what the model did not see is said


def test_compare_of_many_methods_prints_the_ends(picture, tmp_path):
    result = run(picture, "--model", "demo", "--out", tmp_path / "all.npz")
    assert result.exit_code == 0, result.output
    assert "most alike" in result.output
    table = result.output.split("most alike")[1].split("Spearman")[0]
    assert max(map(len, table.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "tokenrank"], "two methods"),
        (["--method", "tokenrnk,random"], "Did you mean"),
        (["--method", "tokenrank,random", "--target", "99"], "--target"),
    ],
)
def test_what_compare_refuses(picture, tmp_path, arguments, words):
    result = run(picture, "--model", "demo", "--out", tmp_path / "x.png", *arguments)
    assert result.exit_code != 0
    assert words in re.sub(r"[\s│]+", " ", result.output)
    assert list(tmp_path.iterdir()) == [picture]
