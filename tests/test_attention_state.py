"""Nothing is left behind: hooks, modes, flags, gradients, buffers, random state, memory; also after errors."""

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import CLASSES, WIDTH, ToyBlock, hf_vit, images, timm_vit, torch_encoder
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module
from torch.overrides import _get_current_function_mode_stack

from xattn import AttentionTap
from xattn._state import find_modules, first_tensor_device, undisturbed
from xattn.attributions._forward import run_forward
from xattn.errors import CaptureError


class BrokenError(Exception):
    """Raised in the middle of a forward."""


class Breaks(nn.Module):
    """A block that raises after the first attention ran."""

    def forward(self, x: Tensor) -> Tensor:
        raise BrokenError


class Stateful(nn.Module):
    """Everything that a careless tool disturbs: batch statistics, dropout, random draws, frozen parts."""

    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 8, 8)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.blocks = nn.Sequential(ToyBlock(), *([Breaks()] if breaks else []), ToyBlock())
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.patch.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.patch(x).flatten(2)).mT
        x = self.drop(self.blocks(x) + torch.randn(1) * 0)
        return self.head(x.mean(1))


def global_hooks() -> dict[str, int]:
    names = [name for name in vars(torch_module) if name.startswith("_global") and "hooks" in name]
    assert "_global_forward_pre_hooks" in names
    return {name: len(getattr(torch_module, name)) for name in names}


def functions() -> dict[str, int]:
    return {
        f"{owner.__name__}.{name}": id(value)
        for owner in (F, nn, torch, torch.Tensor)
        for name, value in vars(owner).items()
        if callable(value)
    }


def snapshot(model: nn.Module) -> dict[str, Any]:
    return {
        "training": {name: module.training for name, module in model.named_modules()},
        "requires_grad": {name: p.requires_grad for name, p in model.named_parameters()},
        "grad": {
            name: None if p.grad is None else (id(p.grad), p.grad.clone()) for name, p in model.named_parameters()
        },
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "identity": {name: id(value) for name, value in [*model.named_parameters(), *model.named_buffers()]},
        "attributes": {name: set(vars(module)) for name, module in model.named_modules()},
        "hooks": {
            name: [len(value) for key, value in vars(module).items() if key.endswith("_hooks")]
            for name, module in model.named_modules()
        },
        "global_hooks": global_hooks(),
        "modes": len(_get_current_function_mode_stack()),
        "random": torch.get_rng_state(),
        "grad_enabled": torch.is_grad_enabled(),
        "functions": functions(),
    }


def assert_same(one: Any, two: Any, where: str = "") -> None:
    if isinstance(one, dict):
        assert one.keys() == two.keys(), where
        for key in one:
            assert_same(one[key], two[key], f"{where}.{key}")
    elif isinstance(one, tuple):
        for i, (a, b) in enumerate(zip(one, two, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    elif isinstance(one, Tensor):
        assert torch.equal(one, two), where
    else:
        assert one == two, where


def mixed(model: nn.Module) -> nn.Module:
    """Training flags in a pattern that no call of train() or eval() makes, and preset gradients."""
    for index, module in enumerate(model.modules()):
        module.training = index % 3 != 1
    for index, parameter in enumerate(model.parameters()):
        if index % 2:
            parameter.grad = torch.full_like(parameter, 0.5)
    return model


def forwarded(model: nn.Module) -> None:
    run_forward(model, images())


def differentiated(model: nn.Module) -> None:
    found = run_forward(model, images(), target=0, needs_gradient=True)
    with torch.inference_mode(False), torch.enable_grad():
        torch.autograd.grad(found.score().sum(), [record.attention for record in found.records])


@pytest.mark.parametrize("around", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("call", [forwarded, differentiated])
@pytest.mark.parametrize("breaks", [False, True])
def test_model_and_process_are_as_before(call, breaks, around):
    torch.manual_seed(0)
    model = mixed(Stateful(breaks))
    before = snapshot(model)
    with around():
        inside = torch.is_grad_enabled()
        if breaks:
            with pytest.raises(BrokenError):
                call(model)
        else:
            call(model)
        assert torch.is_grad_enabled() is inside
    assert_same(before, snapshot(model))


@pytest.mark.parametrize("build", [timm_vit, hf_vit, lambda: torch_encoder()])
def test_families_are_as_before(build):
    model = mixed(build())
    x = images() if hasattr(model, "config") or hasattr(model, "blocks") else torch.randn(2, 6, WIDTH)
    run_forward(model, x)
    before = snapshot(model)
    run_forward(model, x)
    assert_same(before, snapshot(model))


def test_evaluation_mode_holds_during_the_call():
    torch.manual_seed(0)
    model, seen = mixed(Stateful()), []
    model.drop.register_forward_hook(lambda module, args, output: seen.append(torch.equal(args[0], output)))
    statistics = model.norm.running_mean.clone()
    first, second = (run_forward(model, images()).logits for _ in range(2))
    assert torch.equal(first, second)
    assert seen == [True, True]
    assert torch.equal(model.norm.running_mean, statistics)


def test_the_tap_alone_leaves_the_training_mode_to_the_caller():
    torch.manual_seed(0)
    model = torch_encoder()
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.5
    model.train()
    with AttentionTap() as first:
        one = model(torch.ones(2, 6, WIDTH))
    with AttentionTap() as second:
        two = model(torch.ones(2, 6, WIDTH))
    assert model.training
    assert not torch.allclose(one, two)  # dropout is at work
    assert torch.equal(first.maps[0], second.maps[0])  # on a copy of the recorded matrix


@pytest.mark.parametrize("moment", ["in the model", "in the consumer", "at the check"])
def test_no_hook_and_no_mode_remain_after_an_error(moment):
    torch.manual_seed(0)
    before = global_hooks(), functions()

    def consumer(record):
        raise BrokenError

    expected = CaptureError if moment == "at the check" else BrokenError
    model = nn.ReLU() if moment == "at the check" else Stateful(breaks=moment == "in the model")
    with pytest.raises(expected), AttentionTap(consumer=consumer if moment == "in the consumer" else None):
        model(images())
    assert (global_hooks(), functions()) == before
    assert _get_current_function_mode_stack() == []
    assert torch.compiler.is_compiling() is False


def test_a_failing_entrance_leaves_nothing(monkeypatch):
    def refuse(self):
        raise BrokenError

    before = global_hooks()
    monkeypatch.setattr("xattn.attention.AttentionMode.__enter__", refuse)
    with pytest.raises(BrokenError), AttentionTap():
        pass
    assert global_hooks() == before


def test_two_models_alive_at_once_are_undisturbed():
    one, two = timm_vit(), hf_vit()
    with torch.no_grad():
        before = one(images()), two(images()).logits
        with AttentionTap() as tap:
            one(images())
        during = [record.path for record in tap.records]
        after = one(images()), two(images()).logits
    assert all(path.startswith("blocks") for path in during)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])


def test_another_thread_is_not_recorded():
    from concurrent.futures import ThreadPoolExecutor

    model, other = timm_vit(), timm_vit(depth=3)
    with ThreadPoolExecutor(1) as pool, torch.no_grad():
        expected = other(images())
        with AttentionTap() as tap:
            elsewhere = pool.submit(other, images()).result()
            model(images())
    assert torch.equal(elsewhere, expected)
    assert [(record.path, record.grid) for record in tap.records] == [(f"blocks.{i}.attn", (4, 4)) for i in range(2)]


@pytest.mark.parametrize("breaks", [False, True])
def test_nothing_is_kept_alive(breaks):
    torch.manual_seed(0)
    model = Stateful(breaks)

    def call() -> None:
        if breaks:
            with pytest.raises(BrokenError):
                differentiated(model)
        else:
            differentiated(model)

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    call()
    before = tensors()
    for _ in range(50):
        call()
    assert tensors() <= before


def test_a_model_dies_with_its_last_reference():
    model = Stateful()
    gone = weakref.ref(model)
    found = run_forward(lambda x, model=model: model(x), images(), layers=-1)
    layout = found.layout
    del model, found
    gc.collect()
    assert gone() is None
    assert layout.grid == (4, 4)


# --- find_modules ----------------------------------------------------------------------------------------------------

NET = nn.Linear(2, 2)
HELD = {"nets": [nn.Linear(2, 2)]}


def uses_global(x: Tensor) -> Tensor:
    return NET(x)


def uses_helper(x: Tensor) -> Tensor:
    return uses_global(x)


def in_comprehension(x: Tensor) -> list[Tensor]:
    return [NET(x) for _ in range(2)]


def in_generator(x: Tensor) -> Tensor:
    return torch.stack(list(NET(x) for _ in range(2)))  # noqa: C400 - a code object of its own


def in_inner_lambda(x: Tensor) -> Tensor:
    return (lambda y: NET(y))(x)


def with_default(x: Tensor, net: nn.Module = NET) -> Tensor:
    return net(x)


def with_keyword_default(x: Tensor, *, net: nn.Module = NET) -> Tensor:
    return net(x)


def ensemble(x: Tensor) -> Tensor:
    return HELD["nets"][0](x)


def cyclic() -> Callable[..., Any]:
    holder: dict[str, Any] = {"net": NET}
    holder["self"] = holder
    return lambda x: holder["net"](x)


def deep_chain() -> Callable[..., Any]:
    thing: Any = NET
    for _ in range(5000):
        thing = [thing]
    return functools.partial(lambda held, x: held, thing)


def undefined_yet() -> Callable[..., Any]:
    def call(x: Tensor) -> Tensor:
        return later(NET(x))

    if False:
        later = None
    return call


class Holder:
    def __init__(self) -> None:
        self.net = NET

    def predict(self, x: Tensor) -> Tensor:
        return self.net(x)


class Slots:
    __slots__ = ("net",)

    def __init__(self) -> None:
        self.net = NET

    def __call__(self, x: Tensor) -> Tensor:
        return self.net(x)


class CallsGlobal:
    def __call__(self, x: Tensor) -> Tensor:
        return NET(x)


@pytest.mark.parametrize(
    "forward",
    [
        NET,
        lambda x: NET(x),
        NET.forward,
        functools.partial(uses_global),
        functools.partial(lambda net, x: net(x), NET),
        functools.partial(lambda x, net: net(x), net=NET),
        uses_global,
        uses_helper,
        in_comprehension,
        in_generator,
        in_inner_lambda,
        with_default,
        with_keyword_default,
        cyclic(),
        deep_chain(),
        undefined_yet(),
        Holder().predict,
        Slots(),
        CallsGlobal(),
        functools.wraps(uses_global)(lambda x: None),
        torch.no_grad()(uses_global),
        (lambda outer: lambda x: outer(x))(lambda x: NET(x)),
    ],
    ids=lambda forward: getattr(forward, "__name__", type(forward).__name__),
)
def test_modules_are_found(forward):
    assert find_modules(forward) == [NET]


def test_modules_in_containers_of_globals_are_found():
    assert find_modules(ensemble) == HELD["nets"]


def test_only_the_outermost_modules_are_listed():
    model = nn.Sequential(NET)
    assert find_modules(lambda x: NET(model(x))) == [model]


def test_without_modules_nothing_is_found():
    assert find_modules(torch.relu) == []
    assert find_modules(lambda x: x) == []
    assert first_tensor_device(lambda x: x) is None


def test_undisturbed_restores_after_an_exception():
    torch.manual_seed(0)
    model = mixed(Stateful())
    before = snapshot(model)

    def fail() -> None:
        torch.rand(3)
        assert not any(module.training for module in model.modules())
        raise BrokenError

    with pytest.raises(BrokenError), undisturbed(model):
        fail()
    assert_same(before, snapshot(model))


def test_draws_inside_do_not_move_the_callers_random_numbers():
    torch.manual_seed(7)
    expected = torch.rand(4)
    torch.manual_seed(7)
    run_forward(Stateful(), images())
    torch.manual_seed(7)
    model = Stateful()
    torch.manual_seed(7)
    run_forward(model, images())
    assert torch.equal(torch.rand(4), expected)
