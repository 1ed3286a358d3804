"""Cleaning, teleport, the backward chain, bounces and completed cross-attention."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from test_markov_families import make

from xattn import markov
from xattn.errors import ArgumentError, ArgumentTypeError

ENTRIES = [
    markov.as_chain,
    markov.backward,
    markov.teleport,
    markov.stationary,
    markov.second_eigenvalue,
    markov.diagnose,
    lambda chain: markov.bounce(chain, 0, 1),
    lambda chain: markov.rollout([chain], head_fusion=None),
    lambda chain: markov.fuse_heads(chain.unsqueeze(0)),
    markov.complete_chain,
]


def spoilt(row, value):
    chain = make("iid_soft", 5).float()
    chain[row, 3] = value
    return chain


@pytest.mark.parametrize("entry", ENTRIES)
def test_dirty_chains_raise(entry):
    for value in (torch.nan, torch.inf, -torch.inf):
        with pytest.raises(ArgumentError, match=r"expected finite entries, got NaN or inf in row \((0, )?2,?\)"):
            entry(spoilt(2, value))
    negative = make("iid_soft", 5).float()
    negative[1, 0] = -0.001
    with pytest.raises(ArgumentError, match=r"expected non-negative entries, got a negative one in row \((0, )?1,?\)"):
        entry(negative)
    with pytest.raises(ArgumentError, match="expected numbers, got a tensor on the meta device"):
        entry(torch.eye(5, device="meta"))
    with pytest.raises(ArgumentError, match=r"expected rows that sum to 1 within 0.01 .*\(it sums to 1.03\)"):
        entry(1.03 * torch.eye(5))
    with pytest.raises(ArgumentTypeError, match=r"expected a floating point tensor, got torch.int64"):
        entry(torch.eye(5).long())


@pytest.mark.parametrize("entry", ENTRIES[:7])
def test_wrong_shapes_raise(entry):
    for shape in ((3,), (2, 3), (4, 0, 0)):
        with pytest.raises(ArgumentError, match=r"expected shape \(\.\.\., N, N\), got \("):
            entry(torch.ones(shape))


def test_rows_are_renormalised_in_the_type_of_the_input():
    chain = make("iid_soft", 50)
    for dtype, result in ((torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float64,) * 2):
        cleaned = markov.as_chain(chain.to(dtype)).matrix
        assert cleaned.dtype == result
        assert (cleaned.double().sum(-1) - 1).abs().max() < 1e-6
    assert not markov.as_chain(chain).dead_rows.any()


def test_row_sums_slightly_off_are_repaired():
    chain = make("iid_soft", 20)
    torch.testing.assert_close(markov.as_chain(0.995 * chain).matrix, chain)


def test_long_rows_are_summed_precisely():
    rows = torch.rand(40, 5000, generator=torch.Generator().manual_seed(0)).softmax(-1)
    assert (markov.normalize_rows(1.007 * rows).double().sum(-1) - 1).abs().max() < 1e-6


def test_dead_rows_become_the_personalization():
    chain = make("iid_soft", 4).expand(2, 4, 4).clone()
    chain[0, 1], chain[1, 2] = 0, torch.nan
    p = torch.tensor([3.0, 1.0, 0.0, 0.0])
    cleaned = markov.as_chain(chain, p)
    assert cleaned.dead_rows.nonzero().tolist() == [[0, 1], [1, 2]]
    for row in (cleaned.matrix[0, 1], cleaned.matrix[1, 2]):
        assert row.tolist() == [0.75, 0.25, 0, 0]
    torch.testing.assert_close(markov.as_chain(chain).matrix[0, 1], torch.full((4,), 0.25, dtype=torch.float64))


def test_input_is_left_alone():
    chain = make("causal", 12).float()
    chain[3] = torch.nan
    before = chain.clone()
    markov.stationary(chain, direction="backward")
    markov.second_eigenvalue(chain)
    markov.rollout([chain], head_fusion=None, discard=0.3)
    markov.bounce(chain, 0, 0).fill_(7)
    torch.testing.assert_close(chain, before, equal_nan=True, rtol=0, atol=0)


@settings(max_examples=50, deadline=None)
@given(
    arrays("float64", 12, elements=st.floats(0, 1e6)).filter(lambda p: p.sum() > 0),
    st.floats(0, 1),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_teleport_rows_sum_to_one_for_any_personalization(p, alpha, dtype):
    chain = make("low_rank", 12).to(dtype)
    teleporting = markov.teleport(chain, alpha, torch.from_numpy(p))
    assert (teleporting.sum(-1) - 1).abs().max() < (1e-6 if dtype == torch.float32 else 1e-14)
    expected = alpha * chain.double() + (1 - alpha) * torch.from_numpy(p / p.sum())
    torch.testing.assert_close(teleporting.double(), expected, rtol=0, atol=1e-6)


def test_backward_is_the_normalised_transpose():
    chain = make("spatial_sink", 15)
    torch.testing.assert_close(markov.backward(chain), (chain / chain.sum(0)).T)


def test_backward_keeps_zero_columns_at_zero():
    chain = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert markov.backward(chain)[2].tolist() == [0, 0, 0]
    # Nobody attends to token 2: one backward step from it loses everything.
    assert markov.bounce(chain, 2, 1, "backward").sum() == 0
    assert markov.bounce(chain, 1, 1, "backward").sum() == 1


def test_bounce_equals_matrix_powers():
    chain = make("low_rank", 12)
    start = torch.rand(12, dtype=torch.float64)
    start /= start.sum()
    for n in (0, 1, 4):
        torch.testing.assert_close(markov.bounce(chain, start, n), start @ torch.linalg.matrix_power(chain, n))
        teleporting = torch.linalg.matrix_power(markov.teleport(chain, 0.9), n)
        torch.testing.assert_close(markov.bounce(chain, start, n, alpha=0.9), start @ teleporting)


def test_bounce_film_runs_from_zero_to_n():
    chain = make("low_rank", 12)
    film = markov.bounce(chain, 3, 4, film=True)
    assert film.shape == (5, 12)
    assert film[0].tolist() == [0, 0, 0, 1] + 8 * [0]
    for n in range(5):
        torch.testing.assert_close(film[n], torch.linalg.matrix_power(chain, n)[3])
    assert markov.bounce(chain, 3, 0, film=True).shape == (1, 12)


def test_bounce_broadcasts_starts_and_chains():
    chains = torch.stack([make("low_rank", 9, seed) for seed in range(2)])
    starts = torch.eye(9, dtype=torch.float64)[:4]
    assert markov.bounce(chains, starts[0], 2).shape == (2, 9)
    assert markov.bounce(chains[0], starts, 2).shape == (4, 9)
    both = markov.bounce(chains, starts[:, None], 2, film=True)
    assert both.shape == (4, 2, 3, 9)
    for i in range(4):
        for j in range(2):
            torch.testing.assert_close(both[i, j, 2], torch.linalg.matrix_power(chains[j], 2)[i])
    assert markov.bounce(chains, 2.0 * starts[0], 1).sum(-1).tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.eye(3), 0, -1), ArgumentError, "n: expected zero or more steps, got -1"),
        ((torch.eye(3), 0, 1.5), ArgumentTypeError, "n: expected an integer, got float"),
        ((torch.eye(3), 3, 1), ArgumentError, "start: expected a token index below 3, got 3"),
        ((torch.eye(3), None, 1), ArgumentTypeError, "start: expected a torch.Tensor or a token index"),
        ((torch.eye(3), torch.zeros(3), 1), ArgumentError, "start: expected a positive sum"),
        ((torch.eye(3), torch.ones(2), 1), ArgumentError, r"start: expected shape \(..., 3\), got \(2,\)"),
        ((torch.eye(3), 0, 1, "sideways"), ArgumentError, "direction: expected 'forward' or 'backward'"),
        ((torch.eye(3), 0, 1, "forward", 2.0), ArgumentError, r"alpha: expected a number in \[0, 1\]"),
        ((torch.eye(3).expand(5, 3, 3), torch.ones(2, 3), 1), ArgumentError, r"got chain \(5,\), start \(2,\)"),
    ],
)
def test_bounce_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        markov.bounce(*arguments)


def test_cross_attention_becomes_an_irreducible_chain():
    cross = torch.rand(2, 5, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    chain = markov.complete_chain(cross)
    assert chain.shape == (2, 8, 8)
    torch.testing.assert_close(chain[:, :5, 5:], cross)
    assert (chain[:, :5, :5] == 0).all()
    torch.testing.assert_close(chain[:, 5:], torch.full((2, 3, 8), 1 / 8))
    assert not markov.diagnose(chain).reducible.any()
    assert (markov.second_eigenvalue(chain).modulus < 1).all()
    # The uniform entry into the queries makes the keys rank by their mean column.
    rank = markov.stationary(chain, alpha=1.0).distribution[:, 5:]
    assert torch.equal(rank.argsort(-1), cross.mean(-2).argsort(-1))


def test_cross_attention_dead_rows_and_shape():
    cross = torch.tensor([[torch.nan, torch.nan], [1.0, 0.0]])
    assert markov.complete_chain(cross)[0].tolist() == [0, 0, 0.5, 0.5]
    with pytest.raises(ArgumentError, match=r"cross_attention: expected shape \(..., M, N\), got \(3,\)"):
        markov.complete_chain(torch.ones(3))


def test_a_chain_of_nothing_but_nan_is_refused():
    """Single rows of NaN are what softmax leaves of masked rows; nothing else can be said of a chain without others."""
    chain = torch.full((2, 4, 4), 0.25)
    chain[1] = float("nan")
    for function in (markov.stationary, markov.second_eigenvalue, lambda chain: markov.bounce(chain, 0, 2)):
        with pytest.raises(ArgumentError, match=r"nothing but NaN in row \(1,\)"):
            function(chain)
