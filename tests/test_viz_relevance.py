"""The growth of relevance over layers: what is drawn is what the accounts hold."""

import numpy as np
import pytest
import tiny_models as tiny

from xattn import viz
from xattn.attributions import AttnLRP
from xattn.errors import ArgumentError

LARGEST = {"patch": [8.0, 2.0, 4.0], "block 0": [1.0, 1.0, 100.0], "": [0.0, np.inf, np.nan]}


def test_the_line_is_the_median_and_the_band_the_range():
    (ax,) = viz.relevance_layers({"a": LARGEST}).axes
    assert ax.get_yscale() == "log"
    assert ax.lines[0].get_ydata()[:2].tolist() == [4, 1]
    points = ax.collections[0].get_paths()[0].vertices
    assert [(h.min(), h.max()) for h in (points[points[:, 0] == x, 1] for x in (0, 1))] == [(2, 8), (1, 100)]
    assert np.isnan(ax.lines[0].get_ydata()[2])  # neither zero nor infinity has a place
    assert [label.get_text() for label in ax.get_xticklabels()] == ["patch", "block 0", "(model)"]


def test_accounts_of_several_methods_and_layers_that_one_lacks():
    account = AttnLRP(tiny.timm_vit(depth=2), precision="float64").account(tiny.images(3), 1)
    (ax,) = viz.relevance_layers({"attnlrp": account, "other": {"head": [2.0]}}).axes
    assert [label.get_text() for label in ax.get_xticklabels()] == list(account.largest)
    expected = [float(values.median()) for values in account.largest.values()]
    assert ax.lines[0].get_ydata() == pytest.approx(expected)
    assert np.isfinite(ax.lines[1].get_ydata()).tolist() == [layer == "head" for layer in account.largest]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["attnlrp", "other"]


def test_zeros_are_not_left_out_in_silence():
    (ax,) = viz.relevance_layers({"a": {"block": [0.0, 0.0]}}).axes
    assert ax.get_legend().get_texts()[0].get_text() == "a (nothing above zero)"


@pytest.mark.parametrize(
    ("accounts", "message"),
    [
        ({}, "accounts: expected at least one account"),
        ({"a": {}}, "accounts: expected at least one account with at least one layer"),
        ({"a": 3}, r"accounts\['a'\]: expected an Account, got int"),
        ({"a": {"block": 3.0}}, r"accounts\['a'\]: expected \(B,\) in layer 'block', got shape \(\)"),
    ],
)
def test_bad_arguments_are_named(accounts, message):
    with pytest.raises(ArgumentError, match=message):
        viz.relevance_layers(accounts)
