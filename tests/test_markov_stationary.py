"""TokenRank against closed forms, independent solvers and its own promise, the error bound."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_markov_families import FAMILIES, make

from xattn import markov
from xattn.errors import ArgumentError, ArgumentTypeError

METHODS = ["lu", "anderson", "power"]


def exact(chain, alpha, p=None):
    """Left eigenvector of the dense G in float64, by numpy alone."""
    a = chain.double().numpy()
    a = a / a.sum(1, keepdims=True)
    n = len(a)
    p = np.full(n, 1 / n) if p is None else p.double().numpy() / p.double().numpy().sum()
    solution = np.linalg.solve(np.eye(n) - alpha * a.T, (1 - alpha) * p)
    return torch.from_numpy(solution / solution.sum())


@pytest.mark.parametrize(("p", "q"), [(0.3, 0.2), (0.9, 0.8), (1.0, 1.0), (1e-6, 3e-6)])
def test_two_states_closed_form(p, q):
    chain = torch.tensor([[1 - p, p], [q, 1 - q]], dtype=torch.float64)
    found = markov.stationary(chain, alpha=1.0)
    expected = torch.tensor([q, p], dtype=torch.float64) / (p + q)
    torch.testing.assert_close(found.distribution, expected, rtol=0, atol=1e-9)
    assert found.converged


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("alpha", [0.99, 0.5])
def test_equals_the_scipy_eigenvector(family, alpha):
    chain = make(family, 40)
    p = torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    teleporting = markov.teleport(chain, alpha, p).numpy()
    values, left = scipy.linalg.eig(teleporting, left=True, right=False)
    vector = np.real(left[:, np.argmax(np.real(values))])
    found = markov.stationary(chain, alpha, p).distribution
    torch.testing.assert_close(found, torch.from_numpy(vector / vector.sum()), rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_is_stationary(family, method, direction):
    chain = make(family, 30)
    found = markov.stationary(chain, direction=direction, method=method, tol=1e-9).distribution
    walked = markov.as_chain(chain).matrix if direction == "forward" else markov.backward(chain)
    walked = torch.where(walked.sum(-1, keepdim=True) > 0, walked, 1 / 30)
    residual = found @ markov.teleport(walked) - found
    assert residual.abs().sum() < 1e-8
    assert (found >= 0).all()
    assert abs(float(found.sum()) - 1) < 1e-12


@settings(max_examples=60, deadline=None)
@given(
    family=st.sampled_from(sorted(FAMILIES)),
    method=st.sampled_from(METHODS),
    alpha=st.sampled_from([0.2, 0.85, 0.99, 0.999]),
    tol=st.sampled_from([1e-2, 1e-4, 1e-9]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    stop=st.sampled_from(["bound", "change"]),
    seed=st.integers(0, 5),
    size=st.integers(6, 40),
)
def test_the_bound_bounds(family, method, alpha, tol, dtype, stop, seed, size):
    chain = make(family, size, seed).to(dtype)
    p = torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    found = markov.stationary(chain, alpha, p, tol=tol, method=method, stop=stop if method == "power" else "bound")
    error = float((found.distribution.double() - exact(chain, alpha, p)).abs().sum())
    assert error <= float(found.error_bound) + 1e-13
    if bool(found.converged) and dtype == torch.float64 and (method != "power" or stop == "bound"):
        assert found.error_bound <= max(tol, 1e-12 / (1 - alpha))


@pytest.mark.parametrize("method", METHODS)
def test_more_iterations_than_needed_change_nothing(method):
    chain = make("spatial_sink", 30)
    few = markov.stationary(chain, method=method, max_iterations=2000)
    many = markov.stationary(chain, method=method, max_iterations=9000)
    assert torch.equal(few.distribution, many.distribution)


def test_too_few_iterations_are_reported():
    found = markov.stationary(make("banded", 60), method="power", max_iterations=5)
    assert not found.converged
    assert found.iterations == 5
    assert found.error_bound > 1e-3


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batch_equals_singles(method, dtype):
    chains = torch.stack([make(family, 24) for family in FAMILIES]).to(dtype).reshape(2, -1, 24, 24)
    together = markov.stationary(chains, method=method)
    for index in np.ndindex(*chains.shape[:2]):
        alone = markov.stationary(chains[index], method=method)
        gap = (together.distribution[index] - alone.distribution).abs().sum()
        assert gap <= (1e-12 if dtype == torch.float64 else 1e-6)
        assert together.converged[index] == alone.converged


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_permuting_tokens_permutes_the_ranks(direction):
    chain, order = make("low_rank", 30), torch.randperm(30, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        markov.stationary(chain[order][:, order], direction=direction).distribution,
        markov.stationary(chain, direction=direction).distribution[order],
    )


def test_causal_equals_the_general_solver():
    chain = make("causal", 40)
    for direction in ("forward", "backward"):
        torch.testing.assert_close(
            markov.stationary(chain, direction=direction).distribution,
            markov.stationary(chain, direction=direction, method="anderson", tol=1e-13).distribution,
            rtol=0,
            atol=1e-12,
        )


def test_auto_iterates_on_long_sequences():
    chain = make("iid_soft", 520).float()
    found = markov.stationary(chain, tol=1e-4)
    assert found.iterations > 0
    assert found.converged
    assert (found.distribution.double() - exact(chain, 0.99)).abs().sum() < 1e-4
    assert markov.stationary(make("causal", 520)).iterations == 0


@pytest.mark.parametrize("family", ["uniform", "sink_collapse", "metastable", "low_rank"])
def test_the_bound_holds_in_float32_on_long_sequences(family):
    chain = make(family, 520).float()
    p = torch.rand(520, generator=torch.Generator().manual_seed(0))
    found = markov.stationary(chain, personalization=p, method="anderson")
    error = float((found.distribution.double() - exact(chain, 0.99, p)).abs().sum())
    assert error <= float(found.error_bound) < 1e-4


def test_personalization_broadcasts():
    chains = torch.stack([make("iid_soft", 10), make("causal", 10)])
    p = torch.eye(10, dtype=torch.float64)[:3]
    found = markov.stationary(chains, personalization=p[:, None])
    assert found.distribution.shape == (3, 2, 10)
    assert found.iterations.shape == found.error_bound.shape == found.converged.shape == (3, 2)
    for i in range(3):
        for j in range(2):
            gap = found.distribution[i, j] - exact(chains[j], 0.99, p[i])
            assert gap.abs().sum() < 1e-11


def test_without_teleport_periodic_and_reducible_chains_have_their_limit():
    cycle = markov.stationary(torch.eye(3).roll(1, 1), alpha=1.0)
    torch.testing.assert_close(cycle.distribution, torch.full((3,), 1 / 3))
    assert cycle.converged
    p = torch.tensor([0.2, 0.8])
    reducible = markov.stationary(torch.eye(2), alpha=1.0, personalization=p)
    torch.testing.assert_close(reducible.distribution, p)
    assert reducible.error_bound == 2
    assert not reducible.converged


def test_dead_rows_restart_and_are_flagged():
    chain = make("iid_soft", 8)
    p = torch.arange(8, dtype=torch.float64)
    filled = chain.clone()
    filled[2] = p / p.sum()
    for mark in (0.0, torch.nan):
        dirty = chain.clone()
        dirty[2] = mark
        for method in METHODS:
            found = markov.stationary(dirty, personalization=p, method=method, tol=1e-12)
            assert (found.distribution - exact(filled, 0.99, p)).abs().sum() < 1e-11
            assert found.dead_rows.tolist() == [False, False, True] + 5 * [False]
            assert found.lost_mass == 0


def test_mass_lost_backward_is_reported():
    chain = make("iid_soft", 6)
    chain[:, 4] = 0
    chain = markov.normalize_rows(chain)
    walked = markov.backward(chain)
    assert (walked[4] == 0).all()
    for alpha in (0.9, 0.99):
        # Sum of (1 - alpha) alpha^k p B^k: what is missing from one has died at token 4.
        alive = 0.1 if alpha == 0.9 else 0.01
        alive = alive * torch.linalg.solve(
            torch.eye(6, dtype=torch.float64) - alpha * walked.T, torch.full((6,), 1 / 6, dtype=torch.float64)
        )
        for method in METHODS:
            found = markov.stationary(chain, alpha, direction="backward", method=method, tol=1e-12)
            torch.testing.assert_close(found.lost_mass, 1 - alive.sum(), rtol=0, atol=1e-9)
            torch.testing.assert_close(found.distribution, alive / alive.sum(), rtol=0, atol=1e-9)


def test_backward_causal_chain_with_a_dead_row():
    chain = make("causal", 9)
    chain[3] = 0
    filled = chain.clone()
    filled[3] = 1 / 9
    torch.testing.assert_close(
        markov.stationary(chain, direction="backward").distribution,
        markov.stationary(filled, direction="backward").distribution,
    )


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_no_graph_is_built(context):
    with context():
        chain = make("iid_soft", 12).float()
        if context is torch.enable_grad:
            chain.requires_grad_()
        assert not markov.stationary(chain).distribution.requires_grad
        assert not markov.bounce(chain, 0, 2).requires_grad
        assert not markov.second_eigenvalue(chain).modulus.requires_grad
        assert not markov.rollout([chain], head_fusion=None).requires_grad


def test_autocast_does_not_reach_in():
    chain = make("iid_soft", 30).float()
    expected = markov.stationary(chain, method="power").distribution
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(markov.stationary(chain, method="power").distribution, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_inputs_become_float32(dtype):
    chain = make("spatial_sink", 30)
    found = markov.stationary(chain.to(dtype))
    assert found.distribution.dtype == torch.float32
    assert (found.distribution.double() - exact(chain, 0.99)).abs().sum() < 5e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.5}, r"alpha: expected a number in \[0, 1\], got 1.5"),
        ({"alpha": float("nan")}, "alpha: expected a number"),
        ({"direction": "incoming"}, "direction: expected 'forward' or 'backward', got 'incoming'"),
        ({"method": "qr"}, "method: expected 'auto', 'lu', 'anderson' or 'power', got 'qr'"),
        ({"stop": "never"}, "stop: expected 'bound' or 'change', got 'never'"),
        ({"stop": "change"}, "stop: 'change' is a rule of method='power', got method='auto'"),
        ({"tol": 0}, "tol: expected a positive number, got 0"),
        ({"max_iterations": 0}, "max_iterations: expected a positive integer, got 0"),
        ({"personalization": torch.zeros(3)}, "personalization: expected a positive sum"),
        ({"personalization": torch.tensor([1.0, -1.0, 1.0])}, "personalization: expected finite, non-negative"),
        ({"personalization": torch.ones(4)}, r"personalization: expected shape \(..., 3\), got \(4,\)"),
        ({"start": torch.zeros(3)}, "start: expected a positive sum"),
        ({"personalization": torch.ones(2, 3)}, r"broadcast, got chain \(5,\), personalization \(2,\)"),
    ],
)
def test_errors_name_the_argument(options, message):
    with pytest.raises(ArgumentError, match=message):
        markov.stationary(torch.eye(3).expand(5, 3, 3), **options)


def test_wrong_types():
    with pytest.raises(ArgumentTypeError, match=r"personalization: expected a torch.Tensor or None, got list"):
        markov.stationary(torch.eye(3), personalization=[1, 0, 0])
    with pytest.raises(ArgumentTypeError, match="alpha: expected a number, got str"):
        markov.stationary(torch.eye(3), alpha="0.9")


def test_the_number_of_threads_may_be_set():
    """In a process of its own: torch 2.14.1 does not come back from a batched LU factorisation after it was set."""
    code = (
        "import torch; from xattn.markov import stationary; "
        "chain = torch.rand(2, 257, 257, generator=torch.Generator().manual_seed(0)); chain /= chain.sum(-1, True); "
        "before = stationary(chain).distribution; torch.set_num_threads(2); "
        "assert torch.allclose(before, stationary(chain).distribution, atol=1e-7)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
