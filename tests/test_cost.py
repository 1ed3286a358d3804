"""Counted passes and memory."""

import pytest
import tiny_models as tiny
import torch
from method_cases import case
from torch import nn
from typer.testing import CliRunner

from xattn._cost import Cost, measure, measure_methods
from xattn.attributions import AttentionRollout, TokenRank, methods
from xattn.cli import app


def test_memory_is_the_largest_sum_of_living_tensors():
    def work():
        a = torch.ones(1000)
        b = a + 1
        del a
        c = torch.ones(500)
        return b.view(10, 100), c  # a view takes nothing

    assert measure(work, nn.Linear(1, 1)).peak_bytes == 8000


def test_memory_that_autograd_keeps_counts():
    x = torch.ones(1000, requires_grad=True)

    def work():
        return x.exp().exp().exp().sum()

    assert measure(work, nn.Linear(1, 1)).peak_bytes >= 3 * 4000
    with torch.no_grad():
        assert measure(work, nn.Linear(1, 1)).peak_bytes <= 2 * 4000 + 4


def test_passes():
    layer = nn.Linear(2, 2)
    x = torch.ones(1, 2)

    def work():
        layer(x)
        score = layer(x).sum()
        torch.autograd.grad(score, list(layer.parameters()), retain_graph=True)
        torch.autograd.grad(score, list(layer.parameters()))
        nn.Linear(2, 2)(x).sum().backward()

    cost = measure(work, layer)
    assert (cost.forwards, cost.backwards) == (2, 2)
    assert measure(lambda: None, layer) == Cost(0, 0, 0)


def test_nothing_is_left_behind():
    layer = nn.Linear(2, 2)
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 / 0, layer)
    assert measure(lambda: layer(torch.ones(1, 2)), layer).forwards == 1
    assert not torch.nn.modules.module._global_forward_hooks


@pytest.mark.filterwarnings("ignore::xattn.errors.PrecisionWarning")
@pytest.mark.parametrize("name", methods)
def test_methods_cost_what_their_metadata_says(name):
    this, method = case("cls"), methods[name]
    cost = measure(lambda: method(this.model).attribute(this.inputs), this.model)
    assert (cost.forwards, cost.backwards) == (method.forwards, method.backwards)
    assert (method.backwards > 0) == method.needs_gradient
    assert cost.peak_bytes > 0


def test_streaming_methods_need_no_more_memory_for_deeper_models():
    images = tiny.images(1)
    shallow, deep = (tiny.timm_vit(depth=depth, patch_size=4) for depth in (2, 8))
    for method in (TokenRank, AttentionRollout):
        costs = [measure(lambda m=m, method=method: method(m).attribute(images), m) for m in (shallow, deep)]
        assert costs[1].peak_bytes <= 1.1 * costs[0].peak_bytes


@pytest.fixture(scope="module")
def measured():
    return measure_methods()


def test_every_method_is_measured(measured):
    assert list(measured) == ["forward", *methods]
    for name, method in methods.items():
        assert (measured[name].forwards, measured[name].backwards) == (method.forwards, method.backwards)


def test_command_line(measured, monkeypatch):
    monkeypatch.setattr("xattn._cost.measure_methods", lambda: measured)
    result = CliRunner().invoke(app, ["methods", "--cost"])
    assert result.exit_code == 0
    for word in ("forwards", "backwards", "peak MiB", *methods):
        assert word in result.stdout
