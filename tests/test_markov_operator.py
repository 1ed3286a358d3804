"""Matrix-free chains against the same chains as matrices."""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from xattn import markov
from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.markov import AttentionOperator, rollout_row

BATCH, HEADS, STATES, WIDTH = 2, 4, 37, 12
LENGTHS = torch.tensor([[37], [20]])
PADDING = torch.arange(STATES) >= LENGTHS  # on the right
LEFT = PADDING.flip(-1)


def tensors(heads=HEADS, states=STATES, sharpness=1.5, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    query, key = (
        sharpness * torch.randn(BATCH, h, states, WIDTH, generator=generator, dtype=torch.float64)
        for h in (HEADS, heads)
    )
    return query.to(dtype), key.to(dtype)


def dense(query, key, padding=None, causal=False, scale=None, bias=None):
    """The chain by its definition, in float64; rows and columns of padding are zero."""
    query, key = query.double(), key.double()
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias.double()
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    if padding is None:
        return scores.softmax(-1)
    hidden = padding[:, None, None, :]
    matrix = scores.masked_fill(hidden, -1e9).softmax(-1)
    return matrix * ~hidden * ~hidden.mT


CASES = {
    "plain": {},
    "scaled": {"scale": 0.1},
    "sharp": {"scale": 1.0},
    "padded": {"padding": PADDING},
    "causal": {"causal": True},
    "causal, padded right": {"causal": True, "padding": PADDING},
    "causal, padded left": {"causal": True, "padding": LEFT},
    "grouped": {"heads": 2},
    "grouped, causal, padded": {"heads": 1, "causal": True, "padding": LEFT},
    "biased": {"bias": torch.linspace(-2, 2, STATES).expand(BATCH, 1, 1, STATES)},
}
every_case = pytest.mark.parametrize("case", CASES)
both = pytest.mark.parametrize("materialize", [True, False])


def build(case, dtype=torch.float32, materialize=False):
    """The operator, its matrix in float64, and the padding."""
    options = dict(CASES[case])
    query, key = tensors(options.pop("heads", HEADS), dtype=dtype)
    operator = AttentionOperator(
        query,
        key,
        attn_mask=options.get("bias"),
        key_padding=options.get("padding"),
        is_causal=options.get("causal", False),
        scale=options.get("scale"),
        enable_gqa=key.shape != query.shape,
        materialize=materialize,
    )
    return operator, dense(query, key, **options), options.get("padding")


def closed(matrix, padding):
    """Padding leads to itself, so that no walk enters or leaves it."""
    return matrix if padding is None else matrix + torch.diag_embed(padding[:, None].expand(matrix.shape[:-1]).double())


def weights(padding):
    """A distribution over the tokens that are not padding."""
    p = torch.rand(BATCH, HEADS, STATES, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    p = p if padding is None else p * ~padding[:, None]
    return p / p.sum(-1, keepdim=True)


def close(found, expected, atol=1e-5):
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=atol)


@both
@every_case
def test_products(case, materialize):
    operator, matrix, _ = build(case, materialize=materialize)
    x = torch.randn(BATCH, HEADS, 3, STATES, generator=torch.Generator().manual_seed(1))
    assert operator.is_materialized is materialize
    assert operator.shape == matrix.shape
    close(operator.matvec(x), x.double() @ matrix.mT)
    close(operator.rmatvec(x), x.double() @ matrix)
    close(operator.matvec(x[..., 0, :]), (matrix @ x[..., 0, :, None].double()).squeeze(-1))
    one = torch.ones(STATES)
    close(operator.rmatvec(one), matrix.sum(-2))


def test_normalisers_far_below_what_float32_can_hold():
    """Scores around 160: their sums of exponentials overflow, and a sum read off a dummy column would underflow."""
    query, key = tensors(sharpness=4.0)
    operator, matrix = AttentionOperator(query, key, scale=1.0, materialize=False), dense(query, key, scale=1.0)
    assert operator._products.normalisers.amax() > 150
    x = torch.rand(BATCH, HEADS, STATES, generator=torch.Generator().manual_seed(1))
    close(operator.rmatvec(x), (x.double().unsqueeze(-2) @ matrix).squeeze(-2), 5e-5)


@every_case
def test_products_in_float64(case):
    operator, matrix, _ = build(case, torch.float64)
    x = torch.randn(BATCH, HEADS, STATES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    close(operator.matvec(x), (matrix @ x.unsqueeze(-1)).squeeze(-1), 1e-12)
    close(operator.rmatvec(x), (x.unsqueeze(-2) @ matrix).squeeze(-2), 1e-12)


@both
@every_case
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_token_rank(case, direction, materialize):
    operator, matrix, padding = build(case, materialize=materialize)
    p = weights(padding)
    expected = markov.stationary(closed(matrix, padding), 0.9, p, direction)
    found = operator.token_rank(0.9, p, direction)
    close(found.distribution, expected.distribution)
    close(found.lost_mass, expected.lost_mass)
    assert ((found.distribution.double() - expected.distribution).abs().sum(-1) <= found.error_bound + 1e-5).all()
    assert (found.iterations > 0).all() or materialize


@every_case
def test_token_rank_at_the_usual_alpha(case):
    operator, matrix, padding = build(case)
    p = weights(padding)
    expected = markov.stationary(closed(matrix, padding), 0.99, p).distribution
    close(operator.token_rank(personalization=p).distribution, expected)


@both
@every_case
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_bounce(case, direction, materialize):
    operator, matrix, padding = build(case, materialize=materialize)
    start = weights(padding)
    expected = markov.bounce(closed(matrix, padding), start, 3, direction, film=True)
    close(operator.bounce(start, 3, direction, film=True), expected)
    close(operator.bounce(start, 3, direction), expected[..., -1, :])


def test_bounce_from_a_token_and_with_teleport():
    operator, matrix, _ = build("plain")
    close(operator.bounce(5, 2, alpha=0.7), markov.bounce(matrix, 5, 2, alpha=0.7))


def test_teleport_avoids_padding():
    operator, _, padding = build("padded")
    assert (operator.bounce(0, 2, alpha=0.5)[1, :, padding[1]] == 0).all()
    assert (operator.token_rank().distribution[1, :, padding[1]] == 0).all()


@both
@every_case
def test_second_eigenvalue(case, materialize):
    operator, matrix, padding = build(case, materialize=materialize)
    found = operator.second_eigenvalue()
    assert found.modulus.shape == (BATCH, HEADS)
    for sample in range(BATCH):
        kept = slice(None) if padding is None else ~padding[sample]
        chain = matrix[sample][:, kept][:, :, kept]
        expected = torch.linalg.eigvals(chain).abs().topk(2).values[:, 1]
        torch.testing.assert_close(found.modulus[sample].double(), expected, rtol=1e-3, atol=1e-5)
    if "causal" in case:
        assert found.exact.all()


@pytest.mark.parametrize("states", [150])
def test_second_eigenvalue_of_more_tokens_than_arnoldi_needs_steps(states):
    query, key = tensors(states=states)
    found = AttentionOperator(query, key, materialize=False).second_eigenvalue(1e-5)
    expected = torch.linalg.eigvals(dense(query, key)).abs().topk(2).values[..., 1]
    close(found.modulus, expected)
    assert not found.exact.any()
    assert (found.residual < 1e-3).all()


@both
@pytest.mark.parametrize("case", ["plain", "padded", "causal", "grouped"])
@pytest.mark.parametrize("weighted", [False, True])
def test_rollout_row(case, materialize, weighted):
    layers = []
    for seed in range(3):
        options = dict(CASES[case])
        query, key = tensors(options.pop("heads", HEADS), seed=seed)
        operator = AttentionOperator(
            query,
            key,
            key_padding=options.get("padding"),
            is_causal=options.get("causal", False),
            enable_gqa=True,
            materialize=materialize,
        )
        layers.append((operator, closed(dense(query, key, **options), options.get("padding"))))
    heads = [torch.rand(BATCH, HEADS, dtype=torch.float64) for _ in layers] if weighted else None
    state = markov.Rollout()
    for layer, (_, matrix) in enumerate(layers):
        state = state if heads is None else _with(state, heads[layer])
        state.update(matrix)
    close(rollout_row([operator for operator, _ in layers], 3, weights=heads), state.row(3))


def _with(state, fusion):
    state.head_fusion = fusion
    return state


def test_leading_dimensions():
    query, key = tensors()
    single = AttentionOperator(query[1, 2], key[1, 2], materialize=False)
    batch = AttentionOperator(query, key, materialize=False)
    x = torch.rand(STATES)
    torch.testing.assert_close(single.rmatvec(x), batch.rmatvec(x)[1, 2])
    assert single.token_rank().distribution.shape == (STATES,)
    assert single.second_eigenvalue().modulus.shape == ()
    padded = AttentionOperator(query[1, 2], key[1, 2], key_padding=PADDING[1], materialize=False)
    assert (padded.rmatvec(x)[PADDING[1]] == 0).all()


def test_more_vectors_than_the_head_is_wide():
    operator, matrix, _ = build("plain")
    x = torch.rand(BATCH, HEADS, 50, STATES)
    close(operator.rmatvec(x), x.double() @ matrix)
    close(operator.matvec(x), x.double() @ matrix.mT)


@pytest.mark.parametrize("causal", [False, True])
def test_products_run_on_a_fused_kernel(causal):
    """The flash kernel never holds the matrix; were it not applicable, torch would raise."""
    query, key = tensors()
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        operator = AttentionOperator(query, key, key_padding=PADDING, is_causal=causal, materialize=False)
        operator.matvec(torch.ones(STATES))
        operator.rmatvec(torch.ones(STATES))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_computed_in_float32(dtype):
    query, key = tensors(dtype=dtype)
    found = AttentionOperator(query, key, materialize=False).token_rank().distribution
    assert found.dtype == torch.float32
    close(found, markov.stationary(dense(query, key)).distribution)


def test_dense_masks_are_materialized():
    query, key = tensors()
    mask = torch.rand(STATES, STATES, generator=torch.Generator().manual_seed(2)) > 0.3
    mask.fill_diagonal_(True)
    operator = AttentionOperator(query, key, attn_mask=mask)
    expected = dense(query, key, bias=torch.zeros(STATES, STATES).masked_fill(~mask, -torch.inf))
    close(operator.matvec(torch.arange(STATES).float() / STATES), expected @ (torch.arange(STATES) / STATES).double())
    with pytest.raises(ArgumentError, match=r"attn_mask: .* as large as the matrix"):
        AttentionOperator(query, key, attn_mask=mask, materialize=False)


def test_chosen_by_size(monkeypatch):
    query, key = tensors()
    assert AttentionOperator(query, key).is_materialized
    monkeypatch.setattr(markov.operator, "MATERIALIZED_ENTRIES", 8 * STATES**2 - 1)
    assert not AttentionOperator(query, key).is_materialized


def test_autocast_and_gradients_stay_outside():
    query, key = tensors()
    expected = AttentionOperator(query, key, materialize=False).token_rank().distribution
    with torch.autocast("cpu", torch.bfloat16):
        found = AttentionOperator(query.requires_grad_(), key, materialize=False).token_rank().distribution
    assert not found.requires_grad
    assert torch.equal(found, expected)
    with torch.inference_mode():
        assert torch.equal(AttentionOperator(query, key, materialize=False).token_rank().distribution, expected)


def test_agrees_with_torch():
    query, key = tensors()
    value = torch.randn(BATCH, HEADS, STATES, 1)
    expected = F.scaled_dot_product_attention(query, key, value).squeeze(-1)
    torch.testing.assert_close(AttentionOperator(query, key).matvec(value.squeeze(-1)), expected, atol=1e-5, rtol=0)


WRONG = {
    "query, key: expected two tensors": ({"key": torch.zeros(BATCH, HEADS, 5, WIDTH)}, None),
    "materialize: expected": ({"materialize": "maybe"}, None),
    "attn_mask: expected a shape": ({"attn_mask": torch.zeros(3, 1, 1, STATES)}, None),
    "key_padding: expected": ({"key_padding": torch.zeros(3, 5, dtype=torch.bool)}, None),
    "a token that is not padding": ({"key_padding": torch.ones(STATES, dtype=torch.bool)}, None),
    "v: expected a vector": ({}, lambda op: op.rmatvec(torch.zeros(5))),
    "personalization: expected shape": ({}, lambda op: op.token_rank(personalization=torch.ones(3))),
    "personalization: expected a shape": ({}, lambda op: op.token_rank(personalization=torch.ones(9, STATES))),
    "mode: 'certified'": ({}, lambda op: op.second_eigenvalue(mode="certified")),
    "rtol: expected": ({}, lambda op: op.second_eigenvalue(rtol=0)),
    "operators: expected at least": ({}, lambda op: rollout_row([])),
    "start: expected a token index": ({}, lambda op: rollout_row([op], STATES)),
    "n: expected zero or more": ({}, lambda op: op.bounce(0, -1)),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments(message):
    options, call = WRONG[message]
    query, key = tensors()
    with pytest.raises(ArgumentError, match=message):
        call(AttentionOperator(query, **{"key": key, "materialize": False, **options}))


def test_layers_of_another_shape():
    query, key = tensors()
    one = AttentionOperator(query, key)
    two = AttentionOperator(query[..., :9, :], key[..., :9, :])
    with pytest.raises(ArgumentError, match=r"operators: expected \(..., H, N, N\)"):
        rollout_row([one, two])
    with pytest.raises(ArgumentTypeError, match="query: expected a floating point"):
        AttentionOperator(query.long(), key.long())
