"""Reference values: TokenRank, bounces, lambda_2 and iteration counts, at the tolerances that came with them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from xattn import markov
from xattn.markov import eigen

REFERENCE = Path(__file__).parent / "reference"
ARRAYS = load_file(REFERENCE / "markov.safetensors")
META = json.loads((REFERENCE / "markov_meta.json").read_text())["matrices"]

KINDS = pytest.mark.parametrize("kind", sorted(META))
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
ALPHAS = pytest.mark.parametrize("alpha", [0.99, 0.85])


def chain_of(kind, dtype):
    return ARRAYS[f"{kind}/A"].to(dtype)


def distance(found, expected):
    return float((found.double() - expected).abs().sum())


def personalizations(kind, dtype):
    return {"uniform": None, "personalised": ARRAYS[f"{kind}/p"].to(dtype)}.items()


@KINDS
@DTYPES
@ALPHAS
@pytest.mark.parametrize("method", ["auto", "lu"])
def test_tokenrank_direct(kind, dtype, alpha, method):
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for name, p in personalizations(kind, dtype):
        found = markov.stationary(chain_of(kind, dtype), alpha, p, method=method)
        assert distance(found.distribution, ARRAYS[f"{kind}/tokenrank_a{alpha}_{name}"]) < tolerance
        assert found.converged
        assert found.distribution.dtype == dtype


@KINDS
@DTYPES
@ALPHAS
@pytest.mark.parametrize("method", ["anderson", "power"])
def test_tokenrank_iterated_to_the_floor(kind, dtype, alpha, method):
    tolerance = 1e-12 if dtype == torch.float64 else {0.99: 5e-5, 0.85: 5e-6}[alpha]
    for name, p in personalizations(kind, dtype):
        found = markov.stationary(chain_of(kind, dtype), alpha, p, method=method, tol=1e-15)
        assert distance(found.distribution, ARRAYS[f"{kind}/tokenrank_a{alpha}_{name}"]) < tolerance


@KINDS
@DTYPES
@ALPHAS
def test_tokenrank_stopped_at_a_change(kind, dtype, alpha):
    for name, p in personalizations(kind, dtype):
        found = markov.stationary(chain_of(kind, dtype), alpha, p, method="power", stop="change")
        expected = ARRAYS[f"{kind}/tokenrank_a{alpha}_{name}"]
        assert distance(found.distribution, expected) < {0.99: 1.1e-4, 0.85: 6e-6}[alpha]
        assert distance(found.distribution, expected) <= float(found.error_bound) + 1e-6


@KINDS
@DTYPES
@ALPHAS
@pytest.mark.parametrize("start", ["uniform", "onehot"])
def test_power_iteration_counts(kind, dtype, alpha, start):
    chain = chain_of(kind, dtype)
    onehot = torch.zeros(len(chain)).index_fill(0, torch.tensor(META[kind]["start_token"]), 1)
    found = markov.stationary(chain, alpha, method="power", stop="change", start=onehot if start == "onehot" else None)
    expected = META[kind]["power_iterations"][f"a{alpha}_{start}"]["iterations"]
    assert abs(int(found.iterations) - expected) <= (0 if dtype == torch.float64 else 1)


@KINDS
@DTYPES
@pytest.mark.parametrize(("direction", "name"), [("forward", "row"), ("backward", "col")])
def test_bounces(kind, dtype, direction, name):
    tolerance = 1e-13 if dtype == torch.float64 else 2e-6
    film = markov.bounce(chain_of(kind, dtype), META[kind]["start_token"], 5, direction, film=True)
    for n, expected in zip((1, 2, 3, 5), ARRAYS[f"{kind}/bounce_{name}"], strict=True):
        single = markov.bounce(chain_of(kind, dtype), META[kind]["start_token"], n, direction)
        assert distance(single, expected) < tolerance
        assert distance(film[n], expected) < tolerance


@KINDS
@DTYPES
def test_lambda2_dense_or_diagonal(kind, dtype):
    found = markov.second_eigenvalue(chain_of(kind, dtype))
    assert found.exact
    assert abs(float(found.modulus) - META[kind]["lambda2_A"]) < (1e-12 if dtype == torch.float64 else 1e-5)


@KINDS
@DTYPES
@pytest.mark.parametrize("mode", ["default", "fast", "certified"])
def test_lambda2_iterative(kind, dtype, mode, monkeypatch):
    monkeypatch.setattr(eigen, "DENSE_STATES", 0)
    expected = META[kind]["lambda2_A"]
    found = markov.second_eigenvalue(chain_of(kind, dtype), mode=mode)
    error = abs(float(found.modulus) - expected)
    assert error <= 1e-3 * expected + 1e-6
    assert error <= float(found.residual) + 1e-6 * (dtype == torch.float32)


@KINDS
def test_certified_bracket_contains_the_truth(kind):
    found = markov.second_eigenvalue(chain_of(kind, torch.float64), mode="certified")
    assert abs(float(found.modulus) - META[kind]["lambda2_A"]) <= float(found.residual) <= 2e-3


@KINDS
@ALPHAS
def test_teleport_scales_lambda2(kind, alpha):
    chain = markov.teleport(chain_of(kind, torch.float64), alpha, ARRAYS[f"{kind}/p"])
    expected = META[kind][f"lambda2_G_a{alpha}"]
    assert abs(float(markov.second_eigenvalue(chain).modulus) - expected) < 1e-10
