"""Digests change with what a function, class or model does, and with nothing else."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from xattn.attributions import RawAttention
from xattn.evaluation import Judge, Measured, benchmark, load_dataset
from xattn.evaluation._digests import code_hash, model_hash
from xattn.evaluation.metrics import Metric
from xattn.models.image import Preprocess
from xattn.models.model import Model


def module(folder, source, name="theirs"):
    """A module of the caller's with this source."""
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found
    spec.loader.exec_module(found)
    return found


FUNCTION = """
import numpy as np
from xattn.attributions import RawAttention

LIMIT = 0.5
TABLE = {"a": [1, 2], "b": np.ones(3)}
helpers = {"plus": lambda x: x + 1}

def inner(x):
    return x * 2

def judge(chunk, relevance, scale=3):
    return [inner(x) > LIMIT * scale and TABLE["a"] and helpers["plus"](x) for x in relevance]

class Base:
    factor = 2

class Method(Base):
    def __init__(self, model, k=1):
        self.forward_func, self._k = model, k

    def attribute(self, inputs, target=None):
        return inputs * self._k * self.factor

class Raw(RawAttention):
    def _relevance(self, forward, reducer):
        return super()._relevance(forward, reducer) * 2
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * 2", "x * 4"),
        ("x * 2\n", "x + x\n"),
        ("LIMIT = 0.5", "LIMIT = 0.6"),
        ("scale=3", "scale=4"),
        ('"a": [1, 2]', '"a": [1, 3]'),
        ("np.ones(3)", "np.zeros(3)"),
        ("x + 1", "x + 2"),
        ("> LIMIT", "< LIMIT"),
    ],
)
def test_an_edited_function_has_another_digest(tmp_path, old, new):
    assert old in FUNCTION
    before = code_hash(module(tmp_path, FUNCTION).judge)
    assert code_hash(module(tmp_path, FUNCTION.replace(old, new)).judge) != before


@pytest.mark.parametrize(
    ("old", "new"), [("factor = 2", "factor = 3"), ("* self._k", "+ self._k"), ("k=1", "k=2"), ("(Base)", "")]
)
def test_an_edited_class_has_another_digest(tmp_path, old, new):
    assert old in FUNCTION
    before = code_hash(module(tmp_path, FUNCTION).Method(None))
    assert code_hash(module(tmp_path, FUNCTION.replace(old, new)).Method(None)) != before


def test_what_does_nothing_changes_nothing(tmp_path):
    plain, found = module(tmp_path, FUNCTION), module(tmp_path, "# a remark\n" + FUNCTION + "\nUNUSED = 3\n")
    assert code_hash(found.judge) == code_hash(plain.judge)
    assert code_hash(found.Method(nn.Linear(2, 2))) == code_hash(plain.Method(nn.Linear(2, 2)))
    assert code_hash(found.Raw) == code_hash(plain.Raw)


def test_attributes_and_closures_count(tmp_path):
    theirs = module(tmp_path, FUNCTION)

    def judge(k):
        return lambda relevance: relevance > k

    assert code_hash(theirs.Method(None, 1)) != code_hash(theirs.Method(None, 2))
    assert code_hash(judge(1)) == code_hash(judge(1)) != code_hash(judge(2))
    assert code_hash(judge(torch.ones(3))) == code_hash(judge(torch.ones(3))) != code_hash(judge(torch.zeros(3)))
    assert code_hash(judge(np.ones(3))) != code_hash(judge(np.ones(4)))
    assert code_hash(judge({1, 2})) == code_hash(judge({2, 1})) != code_hash(judge({1, 3}))
    loop = []
    loop.append(loop)
    assert code_hash(judge(loop)) != code_hash(judge([]))


def test_what_packages_define_counts_by_its_name():
    assert code_hash(RawAttention) == code_hash(RawAttention)
    assert code_hash(np.mean) == code_hash(np.mean) != code_hash(np.sum)


def test_digests_are_the_same_in_another_process(tmp_path):
    (tmp_path / "theirs.py").write_text(FUNCTION)
    call = "import theirs; from xattn.evaluation._digests import code_hash as h; print(h(theirs.judge, theirs.Raw))"
    runs = [
        subprocess.run(
            [sys.executable, "-c", call],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout != ""


class Scaled(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.linear, self.norm, self.scale = nn.Linear(2, 2), nn.LayerNorm(2), scale
        for parameter in self.parameters():
            nn.init.ones_(parameter)

    def forward(self, x):
        return self.norm(self.linear(x)) * self.scale


def test_settings_of_a_model_count_and_its_mode_does_not():
    def hash_of(module):
        return model_hash(Model("m", module, Preprocess((32, 32))))

    first = hash_of(Scaled())
    assert hash_of(Scaled().train()) == hash_of(Scaled().eval()) == first
    assert hash_of(Scaled(2.0)) != first
    other = Scaled()
    other.norm.eps = 1e-2
    assert hash_of(other) != first
    edited = type("Scaled", (Scaled,), {"__qualname__": "Scaled", "forward": lambda self, x: self.linear(x)})
    assert hash_of(edited()) != first


def test_rows_of_edited_code_are_not_taken_up_again(tmp_path):
    def run(source):
        theirs = module(tmp_path, source)
        about = Metric("mean", None, (-torch.inf, torch.inf), False, False, "mean")
        judge = Judge(
            "mean", lambda chunk, relevance: {"mean": Measured(theirs.inner(relevance).mean((1, 2)))}, (about,)
        )
        data = load_dataset("demo", n=2)
        rows = benchmark("demo", data, {"raw": theirs.Raw}, [judge], tmp_path / "rows").rows
        return rows.column("value").to_pylist()

    first = run(FUNCTION)
    assert run(FUNCTION) == first
    for old in ("return x * 2", "reducer) * 2"):
        assert run(FUNCTION.replace(old, old[:-1] + "4")) == pytest.approx([2 * value for value in first])
