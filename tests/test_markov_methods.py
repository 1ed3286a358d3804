"""TokenRank, n-bounce, column sum and lambda2 rollout against numpy on the captured matrices."""

import numpy as np
import pytest
import torch
from method_cases import PlantedViT, case
from timm.models.vision_transformer import VisionTransformer

from xattn import AttentionTap
from xattn.attributions import ColumnSum, Lambda2Rollout, NBounceAttention, RawAttention, TokenRank
from xattn.errors import ArgumentError, ArgumentTypeError, UnsupportedModelError


def captured(name, layers="all"):
    """Matrices of a case, (B, layers, heads, N, N) float64."""
    this = case(name)
    with AttentionTap(layers=layers) as tap, torch.no_grad():
        this.model(this.inputs, *this.args)
    selfs = [record.attention for record in tap.records if record.kind == "self"]
    return torch.stack(selfs, 1).double().numpy()


def rows_to_one(matrix):
    return matrix / matrix.sum(-1, keepdims=True)


def ranked(chain, alpha=0.99, start=None):
    """Stationary distribution by solving the linear system."""
    size = len(chain)
    start = np.full(size, 1 / size) if start is None else start
    system = np.vstack([(np.eye(size) - alpha * chain - (1 - alpha) * np.outer(np.ones(size), start)).T, np.ones(size)])
    return np.linalg.lstsq(system, np.append(np.zeros(size), 1), rcond=None)[0]


def backward(chain):
    return rows_to_one(chain.T)


def close(actual, expected, atol=1e-6):
    np.testing.assert_allclose(actual.double().numpy(), expected, atol=atol, rtol=1e-4)


@pytest.mark.parametrize("name", ["cls", "registers, 2x8", "average pooling"])
@pytest.mark.parametrize("tokens", ["patches", "all"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_token_rank(name, tokens, direction):
    this = case(name)
    prefix = {"cls": 1, "registers, 2x8": 5, "average pooling": 0}[name]
    matrix = captured(name)[:, -1].mean(1)
    skip = prefix if tokens == "patches" else 0
    chains = rows_to_one(matrix[:, skip:, skip:])
    expected = np.zeros(matrix.shape[:2])
    for sample, chain in enumerate(chains):
        expected[sample, skip:] = ranked(chain if direction == "forward" else backward(chain))
    actual = TokenRank(this.model, tokens=tokens, direction=direction).attribute(this.inputs, resolution="token")
    close(actual, expected)
    close(actual.sum(-1), np.ones(len(expected)))


def test_token_rank_averages_layers_and_can_rank_the_rollout():
    this = case("cls")
    matrices = captured("cls").mean(2)
    mean = [ranked(rows_to_one(m[1:, 1:])) for m in matrices[:, 1:].mean(1)]
    actual = TokenRank(this.model, layers=[1, 2]).attribute(this.inputs, resolution="patch").flatten(1)
    close(actual, mean)
    product = [np.linalg.multi_dot([0.5 * (np.eye(17) + m) for m in layers[::-1]]) for layers in matrices]
    expected = [ranked(rows_to_one(m[1:, 1:])) for m in product]
    actual = TokenRank(this.model, layers="all", on="rollout").attribute(this.inputs, resolution="patch").flatten(1)
    close(actual, expected)


def test_padding_is_outside_the_walk():
    this = case("words, padded")
    matrix = captured("words, padded")[:, -1].mean(1)
    lengths = this.args[0].sum(1).tolist()
    actual = TokenRank(this.model).attribute(this.inputs, additional_forward_args=this.args, resolution="token")
    behind = TokenRank(this.model, direction="backward").attribute(
        this.inputs, additional_forward_args=this.args, resolution="token"
    )
    for sample, length in enumerate(lengths):
        chain = rows_to_one(matrix[sample, 1:length, 1:length])
        close(actual[sample, 1:length], ranked(chain))
        close(behind[sample, 1:length], ranked(backward(chain)))


def test_one_step_from_uniform_is_the_column_sum():
    this = case("cls")
    chain = rows_to_one(captured("cls")[:, -1].mean(1)[:, 1:, 1:])
    actual = ColumnSum(this.model).attribute(this.inputs, resolution="patch").flatten(1)
    close(actual, chain.mean(1))


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_alpha_zero_is_the_restart_alone(alpha):
    this = case("cls")
    seed = torch.rand(17, generator=torch.Generator().manual_seed(0))
    actual = TokenRank(this.model, alpha=alpha, personalization=seed).attribute(this.inputs, resolution="patch")
    start = (seed[1:] / seed[1:].sum()).double().numpy()
    chains = rows_to_one(captured("cls")[:, -1].mean(1)[:, 1:, 1:])
    close(actual.flatten(1), [ranked(chain, alpha, start) for chain in chains])


def test_token_rank_seeded_by_another_attribution():
    this = case("cls")
    seeds = RawAttention(this.model).attribute(this.inputs, resolution="patch").flatten(1).double().numpy()
    chains = rows_to_one(captured("cls")[:, -1].mean(1)[:, 1:, 1:])
    expected = [ranked(c, 0.7, s / s.sum()) for c, s in zip(chains, seeds, strict=True)]
    seeded = TokenRank(this.model, alpha=0.7, personalization=RawAttention(this.model))
    close(seeded.attribute(this.inputs, resolution="patch").flatten(1), expected)
    assert not seeded.is_class_specific


@pytest.mark.parametrize(
    "seed", [torch.ones(5), torch.ones(2, 17), -torch.ones(17), torch.zeros(17), torch.full((17,), torch.nan)]
)
def test_unusable_personalization(seed):
    with pytest.raises(ArgumentError, match="personalization: expected"):
        TokenRank(case("cls").model, personalization=seed).attribute(case("cls").inputs)


def walk(matrix, n, prefix=1):
    """n bounces from the class token on patches, for one (N, N) matrix."""
    first = matrix[0, prefix:] / matrix[0, prefix:].sum()
    chain = rows_to_one(matrix[prefix:, prefix:])
    return first @ np.linalg.matrix_power(chain, n - 1)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_bounces_from_the_class_token(n):
    this = case("cls")
    expected = [walk(m, n) for m in captured("cls")[:, -1].mean(1)]
    actual = NBounceAttention(this.model, n=n).attribute(this.inputs, resolution="patch").flatten(1)
    close(actual, expected)
    as_asked = NBounceAttention(this.model, n=n, start="cls").attribute(this.inputs, resolution="patch").flatten(1)
    assert torch.equal(as_asked, actual)


def test_bounces_on_all_tokens_need_no_restriction():
    this = case("cls")
    expected = [np.linalg.matrix_power(m, 3)[0] for m in captured("cls")[:, -1].mean(1)]
    actual = NBounceAttention(this.model, n=3, tokens="all").attribute(this.inputs, resolution="token")
    close(actual, expected)


def test_backward_bounces_ask_who_looks_at_the_start():
    this = case("cls")
    matrices = captured("cls")[:, -1].mean(1)
    columns = [m[1:, 0] / m[1:, 0].sum() for m in matrices]
    one = NBounceAttention(this.model, n=1, direction="backward").attribute(this.inputs, resolution="patch")
    close(one.flatten(1), columns)
    chains = [backward(rows_to_one(m[1:, 1:])) for m in matrices]
    two = NBounceAttention(this.model, n=2, direction="backward").attribute(this.inputs, resolution="patch")
    close(two.flatten(1), [v @ c for v, c in zip(columns, chains, strict=True)])


STARTS = {
    "token": (8, 7),
    "negative token": (-1, 15),
    "pixel": ((9, 31), 7),
    "patch mask": (torch.arange(16).view(4, 4) == 7, 7),
    "token weights": (2.0 * (torch.arange(17) == 8), 7),
    "a mask per sample": ((torch.arange(16).view(4, 4) == 7).expand(5, 4, 4), 7),
}


@pytest.mark.parametrize("start", STARTS)
def test_every_kind_of_start(start):
    this = case("cls")
    given, patch = STARTS[start]
    chains = rows_to_one(captured("cls")[:, -1].mean(1)[:, 1:, 1:])
    expected = [np.linalg.matrix_power(chain, 2)[patch] for chain in chains]
    actual = NBounceAttention(this.model, n=2, start=given).attribute(this.inputs, resolution="patch")
    close(actual.flatten(1), expected)


def test_without_a_class_token_the_walk_starts_where_the_answer_is_read():
    chains = rows_to_one(captured("average pooling")[:, -1].mean(1))
    actual = NBounceAttention(case("average pooling").model).attribute(
        case("average pooling").inputs, resolution="token"
    )
    close(actual, [np.full(16, 1 / 16) @ chain @ chain for chain in chains])
    this = case("attention pooling")
    with AttentionTap() as tap, torch.no_grad():
        this.model(this.inputs)
    weights = tap.maps[-1].mean((1, 2)).double().numpy()
    chains = rows_to_one(captured("attention pooling")[:, -1].mean(1))
    close(
        NBounceAttention(this.model, n=1).attribute(this.inputs, resolution="token"),
        [w @ c for w, c in zip(weights, chains, strict=True)],
    )


def test_a_class_token_that_the_model_does_not_read_is_no_start():
    torch.manual_seed(0)
    model = VisionTransformer(
        img_size=16,
        patch_size=4,
        embed_dim=24,
        depth=2,
        num_heads=3,
        num_classes=4,
        class_token=True,
        global_pool="avg",
    ).eval()
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with AttentionTap(layers=-1) as tap, torch.no_grad():
        model(images)
    chains = rows_to_one(tap.maps[0].double().numpy().mean(1)[:, 1:, 1:])
    actual = NBounceAttention(model, n=1).attribute(images, resolution="patch").flatten(1)
    close(actual, chains.mean(1))


def test_start_at_a_word():
    this = case("words, padded")
    matrix = captured("words, padded")[:, -1].mean(1)
    actual = NBounceAttention(this.model, n=1, start=2).attribute(
        this.inputs, additional_forward_args=this.args, resolution="token"
    )
    close(actual[0, 1:], matrix[0, 2, 1:] / matrix[0, 2, 1:].sum())


@pytest.mark.parametrize(
    ("start", "error", "message"),
    [
        ("middle", ArgumentError, 'start: expected "auto" or "cls"'),
        (17, ArgumentError, "start: expected a token index below 17, got 17"),
        ((32, 0), ArgumentError, r"pixel \(y=32, x=0\) lies outside"),
        (0.5, ArgumentTypeError, "start: expected a word, a token index, a pixel"),
        (torch.zeros(4, 4), ArgumentError, "not all zero"),
        (torch.ones(3, 3), ArgumentError, r"start: expected weights .* got shape \(3, 3\)"),
        (-torch.ones(17), ArgumentError, "non-negative"),
    ],
)
def test_unusable_starts(start, error, message):
    with pytest.raises(error, match=message):
        NBounceAttention(case("cls").model, start=start).attribute(case("cls").inputs)


def test_cls_start_without_a_class_token():
    with pytest.raises(UnsupportedModelError, match='"cls" needs a class token'):
        NBounceAttention(case("average pooling").model, start="cls").attribute(case("average pooling").inputs)


def test_film_shows_every_bounce():
    this = case("cls")
    film = NBounceAttention(this.model, n=4).film(this.inputs)
    assert film.shape == (5, 5, 4, 4)
    assert (film[:, 0] == 0).all()  # it starts at the class token, which is no patch
    for n in range(1, 5):
        one = NBounceAttention(this.model, n=n).attribute(this.inputs, resolution="patch")
        torch.testing.assert_close(film[:, n], one)
    tokens = NBounceAttention(this.model, n=1, start=3).film(this.inputs, resolution="token")
    assert tokens[:, 0].argmax(-1).tolist() == [3] * 5


def test_many_bounces_end_at_token_rank():
    this = case("cls")
    limit = TokenRank(this.model, alpha=1.0).attribute(this.inputs)
    torch.testing.assert_close(NBounceAttention(this.model, n=300).attribute(this.inputs), limit, atol=1e-5, rtol=1e-3)


def test_maps_are_the_walks_of_single_heads():
    this = case("registers, 2x8")
    maps = TokenRank(this.model).maps(this.inputs[:2], resolution="patch")
    assert maps.shape == (2, 1, 3, 2, 8)
    chains = rows_to_one(captured("registers, 2x8")[:2, -1, :, 5:, 5:])
    expected = [[ranked(chain) for chain in heads] for heads in chains]
    close(maps[:, 0].flatten(2), expected)
    all_layers = NBounceAttention(this.model, layers="all", n=1).maps(this.inputs[:2], resolution="token")
    assert all_layers.shape == (2, 3, 3, 21)
    with pytest.raises(ArgumentError, match='"patch" or "token"'):
        TokenRank(this.model).maps(this.inputs, resolution="input")


def lambda2(chain):
    return np.sort(np.abs(np.linalg.eigvals(chain)))[-2]


def test_lambda2_rollout():
    this = case("cls")
    expected = []
    for layers in captured("cls"):
        product = np.eye(17)
        for heads in layers:
            weights = np.array([lambda2(head) for head in heads])
            fused = np.tensordot(weights / weights.sum(), heads, 1)
            product = 0.5 * (np.eye(17) + fused) @ product
        expected.append(product[0])
    actual = Lambda2Rollout(this.model).attribute(this.inputs, resolution="token")
    close(actual, expected, atol=1e-5)


def test_lambda2_head_fusion_weighs_the_chain_of_patches():
    this = case("cls")
    expected = []
    for heads in captured("cls")[:, -1]:
        weights = np.array([lambda2(rows_to_one(head[1:, 1:])) for head in heads])
        fused = np.tensordot(weights / weights.sum(), heads, 1)
        expected.append(rows_to_one(fused[1:, 1:]).mean(0))
    actual = ColumnSum(this.model, head_fusion="lambda2").attribute(this.inputs, resolution="patch")
    close(actual.flatten(1), expected, atol=1e-5)


def test_attention_ij_is_paid_by_i_to_j():
    """An asymmetric toy: every token looks at one patch, nobody is looked at in return."""
    image = torch.zeros(1, 3, 8, 8)
    image[:, :, :4, 4:] = 1.0
    rank = TokenRank(PlantedViT()).attribute(image, resolution="patch")[0]
    assert rank.flatten().argmax() == 1
    assert rank.flatten()[1] > 0.9


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"alpha": 1.5}, ArgumentError, "alpha"),
        ({"tokens": "cls"}, ArgumentError, 'tokens: expected "patches" or "all"'),
        ({"head_fusion": "median"}, ArgumentError, "head_fusion: expected"),
        ({"direction": "incoming"}, ArgumentError, "direction: expected"),
        ({"on": "graph"}, ArgumentError, 'on: expected "chain" or "rollout"'),
        ({"personalization": "center"}, ArgumentTypeError, "personalization: expected"),
    ],
)
def test_bad_arguments_of_token_rank(arguments, error, message):
    with pytest.raises(error, match=message):
        TokenRank(case("cls").model, **arguments)


@pytest.mark.parametrize(("n", "error"), [(-1, ArgumentError), (1.5, ArgumentTypeError), (True, ArgumentTypeError)])
def test_bad_number_of_bounces(n, error):
    with pytest.raises(error, match="n: expected"):
        NBounceAttention(case("cls").model, n=n)


def test_head_out_of_range():
    with pytest.raises(ArgumentError, match="head"):
        ColumnSum(case("cls").model, head_fusion=3).attribute(case("cls").inputs)
