"""The laws of the methods where the model is on a GPU, held against the same model on the CPU."""

import copy
from functools import cache

import pytest
import torch
from method_cases import PAIRS, Case, case

from xattn import AttentionTap, markov
from xattn.attributions import methods
from xattn.errors import ArgumentError

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore::xattn.errors.PrecisionWarning")
pairs = pytest.mark.parametrize(("method", "layout"), PAIRS)
LOW = [torch.float16, torch.bfloat16]


@cache
def on_gpu(layout: str, dtype: torch.dtype = torch.float32) -> Case:
    """The case with a copy of its model; ids and masks keep their types."""
    this = case(layout)
    inputs = this.inputs.to("cuda", dtype if this.inputs.is_floating_point() else None)
    return Case(copy.deepcopy(this.model).to("cuda", dtype), inputs, tuple(a.to("cuda") for a in this.args), this.grid)


def explain(method: str, this: Case, **kwargs: object) -> torch.Tensor:
    options = {"resolution": "token", "additional_forward_args": this.args, **kwargs}
    return methods[method](this.model).attribute(this.inputs, **options)


@pairs
def test_maps_are_those_of_the_cpu(method, layout):
    if method == "random":
        pytest.skip("RandomAttribution: its numbers come from the device's own generator")
    found = explain(method, on_gpu(layout), target=1)
    assert found.is_cuda
    assert found.isfinite().all()
    expected = explain(method, case(layout), target=1)
    scale = expected.abs().amax().clamp(min=1e-12)
    torch.testing.assert_close(found.cpu() / scale, expected / scale, atol=5e-3, rtol=1e-2)


@pairs
@pytest.mark.parametrize("dtype", LOW)
def test_half_types_are_finite(method, layout, dtype):
    relevance = explain(method, on_gpu(layout, dtype))
    assert relevance.isfinite().all()
    assert relevance.abs().sum() > 0


@pairs
def test_autocast_is_respected(method, layout):
    with torch.autocast("cuda", torch.bfloat16):
        relevance = explain(method, on_gpu(layout), target=1)
    assert relevance.isfinite().all()


@pairs
def test_a_batch_is_its_samples(method, layout):
    this = on_gpu(layout)
    batch = explain(method, this, target=1)
    inputs, args = this.sample(2)
    single = explain(method, Case(this.model, inputs, args, this.grid), target=1)
    torch.testing.assert_close(batch[2], single[0], atol=1e-3, rtol=1e-2)


@pairs
def test_shape_and_device_of_the_result(method, layout):
    this = on_gpu(layout)
    relevance = explain(method, this, target=1, resolution="input")
    assert relevance.shape == this.inputs.shape
    assert relevance.device == this.inputs.device
    assert not relevance.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, *LOW])
def test_logits_are_those_of_the_untouched_model(dtype):
    this = on_gpu("cls", dtype)
    with torch.no_grad():
        expected = this.model(this.inputs)
        with AttentionTap() as tap:
            found = this.model(this.inputs)
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    assert all(matrix.dtype == torch.float32 and matrix.is_cuda for matrix in tap.maps)


def test_inputs_on_another_device_are_refused():
    with pytest.raises(ArgumentError, match="move one of them"):
        explain("tokenrank", Case(on_gpu("cls").model, case("cls").inputs))


def test_chains_are_those_of_the_cpu():
    chain = (3 * torch.randn(6, 150, 150, generator=torch.Generator().manual_seed(0))).softmax(-1)
    for function in (
        lambda a: markov.stationary(a).distribution,
        lambda a: markov.stationary(a, method="anderson").distribution,
        lambda a: markov.stationary(a, direction="backward").distribution,
        lambda a: markov.bounce(a, 3, 4),
        lambda a: markov.rollout([a, a]),
    ):
        torch.testing.assert_close(function(chain.cuda()).cpu(), function(chain), atol=2e-5, rtol=1e-3)
    for mode in ("default", "fast", "certified"):
        found = markov.second_eigenvalue(chain.cuda(), mode=mode).modulus.cpu()
        torch.testing.assert_close(found, markov.second_eigenvalue(chain).modulus, atol=1e-3, rtol=2e-3)


@pytest.mark.parametrize("causal", [False, True])
def test_matrix_free_chains_are_those_with_a_matrix(causal):
    query, key = torch.randn(2, 2, 3, 300, 64, generator=torch.Generator().manual_seed(0)).cuda()
    free, dense = (markov.AttentionOperator(query, key, is_causal=causal, materialize=flag) for flag in (False, True))
    x = torch.rand(300, device="cuda")
    torch.testing.assert_close(free.matvec(x), dense.matvec(x), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(free.rmatvec(x), dense.rmatvec(x), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(free.token_rank().distribution, dense.token_rank().distribution, atol=1e-4, rtol=1e-2)
    torch.testing.assert_close(
        free.second_eigenvalue().modulus, dense.second_eigenvalue().modulus, atol=1e-3, rtol=5e-3
    )


def test_peak_memory_of_matrix_free_chains():
    states, width = 16384, 64
    query, key = torch.randn(2, 1, states, width, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    operator = markov.AttentionOperator(query, key, materialize=False)
    operator.rmatvec(torch.ones(states, device="cuda"))
    assert torch.cuda.max_memory_allocated() - before < 100 * 2**20


@pytest.mark.parametrize("method", methods)
def test_a_model_spread_over_devices_is_explained_on_the_inputs_device(method):
    if method == "random":
        pytest.skip("RandomAttribution: its numbers come from the input alone")
    spread = copy.deepcopy(case("cls").model)
    for module in (*spread.blocks[1:], spread.norm, spread.head):
        module.to("cuda")
    spread.blocks[1].register_forward_pre_hook(lambda block, args: tuple(x.to("cuda") for x in args))
    found = methods[method](spread).attribute(case("cls").inputs, target=1, resolution="token")
    assert not found.is_cuda
    expected = explain(method, case("cls"), target=1)
    scale = expected.abs().amax().clamp(min=1e-12)
    torch.testing.assert_close(found / scale, expected / scale, atol=5e-3, rtol=1e-2)
