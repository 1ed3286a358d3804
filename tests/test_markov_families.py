"""The second eigenvalue on families of chains that are known to mislead iterative solvers."""

import math

import numpy as np
import pytest
import torch

from xattn import markov
from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.markov import _arnoldi, eigen


def softmax_of(logits):
    return logits.double().softmax(-1)


def iid(n, g, temperature=1.0):
    return softmax_of(temperature * torch.randn(n, n, generator=g))


def low_rank(n, g, temperature=2.0):
    queries, keys = torch.randn(2, n, 16, generator=g)
    return softmax_of(temperature * queries @ keys.T / 4)


def grid(n):
    side = math.ceil(math.sqrt(n))
    return torch.cartesian_prod(torch.arange(side), torch.arange(side))[:n].float()


def spatial(n, g, sink=0.0):
    logits = -torch.cdist(grid(n), grid(n)).square() / 4 + 0.3 * torch.randn(n, n, generator=g)
    logits[:, n // 3] += sink
    return softmax_of(logits)


def ring(n, g):
    chain = torch.zeros(n, n, dtype=torch.float64)
    i = torch.arange(n)
    chain[i, i], chain[i, (i + 1) % n], chain[i, (i - 1) % n] = 0.2, 0.7, 0.1
    return chain


def blocks(n, g, leak=1e-3, count=3):
    label = torch.arange(n) % count
    same = (label[:, None] == label).double()
    inside = iid(n, g) * same
    outside = iid(n, g) * (1 - same)
    return markov.normalize_rows(
        (1 - leak) * inside / inside.sum(-1, keepdim=True) + leak * outside / outside.sum(-1, keepdim=True)
    )


def cycle_of_blocks(n, g, leak=0.05, count=3):
    label = torch.arange(n) % count
    following = (label[None, :] == (label[:, None] + 1) % count).double()
    return markov.normalize_rows((1 - leak) * following * iid(n, g) + leak * iid(n, g) / n)


def causal(n, g, temperature=1.0):
    logits = temperature * torch.randn(n, n, generator=g)
    return softmax_of(logits.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf))


def prefix(n, g):
    mask = torch.ones(n, n).triu(1).bool()
    mask[: n // 4, : n // 4] = False
    return softmax_of(torch.randn(n, n, generator=g).masked_fill(mask, -torch.inf))


def banded(n, g):
    i = torch.arange(n)
    return softmax_of(torch.randn(n, n, generator=g).masked_fill((i[:, None] - i).abs() > 5, -torch.inf))


def permutation(n, g):
    return torch.eye(n, dtype=torch.float64)[torch.randperm(n, generator=g)]


def absorbing(n, g):
    chain = iid(n, g)
    chain[n // 2] = torch.nn.functional.one_hot(torch.tensor(n // 2), n)
    return chain


def two_closed(n, g):
    chain = torch.zeros(n, n, dtype=torch.float64)
    half = n // 2
    chain[:half, :half], chain[half:, half:] = iid(half, g), iid(n - half, g)
    return chain


FAMILIES = {
    "iid_soft": iid,
    "iid_sharp": lambda n, g: iid(n, g, 5.0),
    "low_rank": low_rank,
    "spatial": spatial,
    "spatial_sink": lambda n, g: spatial(n, g, 4.0),
    "sink_collapse": lambda n, g: softmax_of(torch.randn(n, n, generator=g) + 14.0 * (torch.arange(n) == n // 3)),
    "ring": ring,
    "metastable": blocks,
    "metastable_tight": lambda n, g: blocks(n, g, 1e-6),
    "cycle_of_blocks": cycle_of_blocks,
    "causal": causal,
    "causal_uniform": lambda n, g: causal(n, g, 0.0),
    "prefix": prefix,
    "banded": banded,
    "permutation": permutation,
    "identity": lambda n, g: torch.eye(n, dtype=torch.float64),
    "absorbing": absorbing,
    "two_closed": two_closed,
    "uniform": lambda n, g: iid(n, g, 0.0),
    "near_uniform": lambda n, g: iid(n, g, 1e-3),
}


def make(family, n, seed=0):
    return FAMILIES[family](n, torch.Generator().manual_seed(seed))


def true_modulus(chain):
    """Second largest modulus by LAPACK through numpy, an independent route."""
    chain = markov.normalize_rows(chain.double()).numpy()
    return float(np.sort(np.abs(np.linalg.eigvals(chain)))[-2])


EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(params=["cpu", "accelerator"])
def orthonormalise(request, monkeypatch):
    """What a CPU and what an accelerator make a Krylov basis orthonormal with."""
    if request.param == "accelerator":
        monkeypatch.setattr(_arnoldi, "_orthonormalise", _arnoldi._cholesky_qr)


def test_a_chain_without_structure_is_told_from_its_rounding_in_float32():
    # 1 / 510 is not exact: products with the deflated chain, which is zero, are roundings of those with the chain.
    found = markov.second_eigenvalue(make("uniform", 510).float())
    assert float(found.modulus) <= min(1e-6, float(found.residual) + 1e-12)


@EVERY_FAMILY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("mode", ["default", "fast"])
def test_never_silently_wrong(family, dtype, mode, orthonormalise):
    for seed in range(2):
        chain = make(family, 130, seed).to(dtype)
        found, expected = markov.second_eigenvalue(chain, mode=mode), true_modulus(chain)
        error = abs(float(found.modulus) - expected)
        assert error <= 1e-3 * expected + 2e-6
        assert float(found.residual) <= 1e-3 * (expected + 1e-3) * 1.01 or error <= float(found.residual)


@EVERY_FAMILY
def test_certified_brackets_contain_the_truth(family):
    chain = make(family, 60)
    found, expected = markov.second_eigenvalue(chain, mode="certified"), true_modulus(chain)
    # Defective and nearly defective spectra leave LAPACK itself with an error of 1e-8.
    assert abs(float(found.modulus) - expected) <= float(found.residual) + 1e-8
    assert found.residual <= 5e-3


@pytest.mark.parametrize("family", ["iid_soft", "spatial_sink", "metastable", "ring"])
def test_matrix_free_deflation_equals_the_copy(family):
    chain = make(family, 510).float()
    found, expected = markov.second_eigenvalue(chain, mode="fast"), true_modulus(chain)
    assert abs(float(found.modulus) - expected) <= 1e-3 * (expected + 1e-3)


def test_squaring_path_of_accelerators(monkeypatch):
    for family in FAMILIES:
        weights = make(family, 60).float().unsqueeze(0)
        found = eigen._Found.empty(weights)
        rows = torch.arange(1)
        eigen._last_resort(weights, eigen._squaring(weights, rows, 1e-3, found), 1e-3, found)
        expected = true_modulus(weights[0])
        assert abs(float(found.modulus) - expected) <= 1e-3 * expected + 2e-6, family


def test_batch_equals_singles():
    chains = torch.stack([make(family, 110) for family in FAMILIES]).float()
    together = markov.second_eigenvalue(chains)
    for i, chain in enumerate(chains):
        alone = markov.second_eigenvalue(chain)
        torch.testing.assert_close(together.modulus[i], alone.modulus, rtol=1e-4, atol=1e-6)
        assert together.exact[i] == alone.exact


def test_chains_of_rank_one_on_which_lapack_gives_up():
    """Every row the same: lambda_2 is 0, and LAPACK fails to converge on a third of these."""
    generator = torch.Generator().manual_seed(0)
    for scale in (1, 8, 30):
        rows = (scale * torch.randn(12, 62, generator=generator, dtype=torch.float64)).softmax(-1)
        chains = torch.cat((rows[:, None].expand(12, 62, 62), make("iid_soft", 62).unsqueeze(0)))
        moduli = markov.second_eigenvalue(chains).modulus
        assert (moduli[:-1] < 1e-13).all()
        assert float(moduli[-1]) == pytest.approx(true_modulus(chains[-1]), abs=1e-12)
        assert (markov.diagnose(chains).mixing_time[:-1] == 1).all()


@pytest.mark.parametrize("mode", ["default", "fast"])
def test_causal_chain_in_another_order(mode):
    """Nearly defective, with the truth on the diagonal of the chain in its own order."""
    for n in (60, 130):
        chain = make("causal", n)
        order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
        found = markov.second_eigenvalue(chain[order][:, order].float(), mode=mode)
        assert float(found.modulus) == pytest.approx(float(chain.diagonal()[1:].max()), rel=1e-3)


def test_reproducible_and_leaves_the_random_state_alone():
    chain = make("iid_soft", 120).float()
    state = torch.get_rng_state()
    first = markov.second_eigenvalue(chain).modulus
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    assert torch.equal(markov.second_eigenvalue(chain).modulus, first)
    torch.set_rng_state(state)


def test_permuting_tokens_changes_nothing():
    chain = make("spatial_sink", 120)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(
        markov.second_eigenvalue(chain[order][:, order]).modulus,
        markov.second_eigenvalue(chain).modulus,
        rtol=1e-3,
        atol=1e-6,
    )


def test_tight_tolerance_is_met_or_refused():
    chain = make("low_rank", 120).float()
    found = markov.second_eigenvalue(chain, rtol=1e-8)
    # The answer itself is rounded to float32.
    assert abs(float(found.modulus) - true_modulus(chain)) < 1e-7


def test_shapes_and_special_sizes():
    assert markov.second_eigenvalue(torch.ones(1, 1)).modulus == 0
    assert markov.second_eigenvalue(torch.ones(1, 1), mode="certified").modulus == 0
    found = markov.second_eigenvalue(torch.eye(3).expand(2, 4, 3, 3))
    assert found.modulus.shape == found.residual.shape == found.exact.shape == (2, 4)
    assert markov.second_eigenvalue(torch.empty(0, 3, 3)).modulus.shape == (0,)


@pytest.mark.parametrize(("p", "q"), [(0.3, 0.2), (0.9, 0.8), (1.0, 1.0), (0.5, 0.5), (0.0, 0.4)])
@pytest.mark.parametrize("mode", ["default", "certified"])
def test_two_states(p, q, mode):
    chain = torch.tensor([[1 - p, p], [q, 1 - q]], dtype=torch.float64)
    assert float(markov.second_eigenvalue(chain, mode=mode).modulus) == pytest.approx(abs(1 - p - q), abs=1e-12)


def test_errors_name_the_argument():
    chain = torch.eye(3)
    with pytest.raises(ArgumentError, match="mode: expected 'default', 'fast' or 'certified', got 'exact'"):
        markov.second_eigenvalue(chain, mode="exact")
    with pytest.raises(ArgumentError, match="rtol: expected a positive number, got 0"):
        markov.second_eigenvalue(chain, rtol=0)
    with pytest.raises(ArgumentTypeError, match=r"chain: expected a torch.Tensor, got list"):
        markov.second_eigenvalue([[1.0]])
