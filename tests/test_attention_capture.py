"""The tap as a tool: choosing layers, consuming, wrapped callables, and what cannot be captured."""

import functools
import sys
from dataclasses import replace

import pytest
import torch
from tiny_models import (
    CLASSES,
    HEADS,
    SIZE,
    WIDTH,
    ToyAttention,
    ToyBlock,
    hf_clip,
    hf_vit,
    images,
    seeded,
    timm_swin,
    timm_vit,
    torch_encoder,
    torchvision_vit,
    words,
)
from torch import Tensor, nn
from torch.nn import functional as F

from xattn import AttentionTap
from xattn.attention import AttentionRecord
from xattn.attributions._forward import run_forward
from xattn.errors import ArgumentError, ArgumentTypeError, CaptureError


@pytest.fixture(scope="module")
def deep() -> nn.Module:
    return timm_vit(depth=5)


@pytest.fixture(scope="module")
def all_maps(deep) -> list[Tensor]:
    with torch.no_grad(), AttentionTap() as tap:
        deep(images())
    return tap.maps


def captured(model, layers, **kwargs) -> AttentionTap:
    with torch.no_grad(), AttentionTap(layers=layers, **kwargs) as tap:
        model(images())
    return tap


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("all", [0, 1, 2, 3, 4]),
        (0, [0]),
        (3, [3]),
        (-1, [4]),
        (-5, [0]),
        ([1, 3], [1, 3]),
        ([3, 1], [1, 3]),  # in the order of execution
        ([0, -1], [0, 4]),
        ([4, -1], [4]),  # one layer, asked for twice
        ((-2, -1), [3, 4]),
        (range(1, 4), [1, 2, 3]),
    ],
)
def test_layers(deep, all_maps, layers, expected):
    tap = captured(deep, layers)
    assert [record.layer for record in tap.records] == expected
    assert [record.path for record in tap.records] == [f"blocks.{i}.attn" for i in expected]
    for got, index in zip(tap.maps, expected, strict=True):
        assert torch.equal(got, all_maps[index])


@pytest.mark.parametrize("layers", ["all", 0, -1, [0, -2]])
def test_maps_can_be_read_inside_the_block(deep, layers):
    with AttentionTap(layers=layers) as tap:
        assert tap.maps == []
        deep(images())
        inside = tap.maps
    assert len(inside) == len(tap.maps) > 0
    assert all(one is other for one, other in zip(inside, tap.maps, strict=True))


def test_a_consumer_takes_each_layer_once_also_if_the_maps_are_read_inside(deep):
    taken = []
    with AttentionTap(layers=[0, -1], consumer=lambda record: taken.append(record.layer) or record) as tap:
        deep(images())
        assert [record.layer for record in tap.records] == taken == [0]
    assert [record.layer for record in tap.records] == taken == [0, 4]


@pytest.mark.parametrize("layers", [5, -6, [0, 5], 99])
def test_layer_out_of_range(deep, layers):
    with pytest.raises(ArgumentError, match=r"layers: no self-attention layer (5|-6|99); blocks has 5"):
        captured(deep, layers)


@pytest.mark.parametrize(
    ("layers", "error"),
    [("last", ArgumentError), ([], ArgumentError), *((bad, ArgumentTypeError) for bad in (1.0, [0.5], True, None))],
)
def test_layers_of_a_wrong_form_are_refused_before_the_forward(layers, error):
    with pytest.raises(error, match="layers: expected"):
        AttentionTap(layers=layers)


def test_layers_count_each_stream_on_its_own():
    model = hf_clip()
    with AttentionTap(layers=-1) as tap:
        model(words(), images())
    assert [record.path for record in tap.records] == [
        "vision_model.encoder.layers.1.self_attn",
        "text_model.encoder.layers.1.self_attn",
    ]


class Alive:
    """Counts the (…, N, N) matrices that are alive, and the most that ever were."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def watch(self, matrix: Tensor) -> None:
        import weakref

        self.now += 1
        self.peak = max(self.peak, self.now)
        weakref.finalize(matrix, self.forget)

    def forget(self) -> None:
        self.now -= 1


@pytest.mark.parametrize(("layers", "bound"), [(-1, 3), (0, 3), ([-2, -1], 4), ("all", 20)])
@pytest.mark.parametrize("depth", [4, 16])
def test_memory_is_bounded_by_the_layers_asked_for(monkeypatch, layers, depth, bound):
    alive, original = Alive(), AttentionTap._take

    def spy(self, attention, *args):
        alive.watch(attention)
        return original(self, attention, *args)

    monkeypatch.setattr(AttentionTap, "_take", spy)
    torch.manual_seed(0)
    model = nn.Sequential(*(ToyBlock() for _ in range(depth)))
    with torch.no_grad(), AttentionTap(layers=layers) as tap:
        model(torch.randn(1, 6, WIDTH))
    assert alive.peak <= bound
    if layers == "all":
        assert alive.peak >= depth
    assert tap.maps


def test_consumer_sees_records_while_the_forward_runs():
    events = []
    model = timm_vit()
    for index, block in enumerate(model.blocks):
        block.register_forward_hook(lambda module, args, output, index=index: events.append(("block", index)))
    with AttentionTap(consumer=lambda record: events.append(("map", record.layer))) as tap:
        model(images())
    assert events == [("map", 0), ("block", 0), ("map", 1), ("block", 1)]
    assert tap.records == tap.maps == []


def test_consumer_may_replace_what_is_kept_and_changes_nothing_else():
    model = timm_vit()
    expected = model(images())

    def on_averages(record: AttentionRecord) -> AttentionRecord | None:
        return None if record.layer == 0 else replace(record, attention=record.attention.mean(1, keepdim=True).double())

    with AttentionTap(consumer=on_averages) as tap:
        output = model(images())
    assert torch.allclose(output, expected, atol=1e-5)
    (kept,) = tap.maps
    assert kept.dtype == torch.float64
    assert kept.shape == (2, 1, 17, 17)


def test_consumer_gets_only_the_layers_asked_for(deep):
    seen = []
    captured(deep, [1, -1], consumer=lambda record: seen.append(record.layer))
    assert seen == [1, 4]


def test_streaming_consumer_computes_a_rollout(deep, all_maps):
    product = torch.eye(17).expand(2, -1, -1)

    def multiply(record: AttentionRecord) -> None:
        nonlocal product
        product = record.attention.mean(1) @ product

    captured(deep, "all", consumer=multiply)
    expected = functools.reduce(lambda done, matrix: matrix.mean(1) @ done, all_maps, torch.eye(17))
    assert torch.allclose(product, expected, atol=1e-6)


def test_error_of_a_consumer_is_not_swallowed():
    with pytest.raises(ZeroDivisionError), AttentionTap(consumer=lambda record: 1 // 0):
        timm_vit()(images())


# --- callables -------------------------------------------------------------------------------------------------------

VIT = timm_vit()  # a global, as in a notebook


def through_global(x: Tensor) -> Tensor:
    return VIT(x)


class Wrapper:
    """An object with the model as an attribute."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def predict(self, x: Tensor) -> Tensor:
        return self.model(x)

    def __call__(self, x: Tensor) -> Tensor:
        return self.model(x)


def in_pieces(x: Tensor) -> Tensor:
    x = VIT._pos_embed(VIT.patch_embed(x))
    for block in VIT.blocks:
        x = block(x)
    return VIT.forward_head(VIT.norm(x))


CALLABLES = {
    "module": VIT,
    "lambda": lambda x: VIT(x),
    "partial": functools.partial(VIT),
    "closure": (lambda model: lambda x: model(x))(VIT),
    "global": through_global,
    "bound method": Wrapper(VIT).predict,
    "bound forward": VIT.forward,
    "object": Wrapper(VIT),
    "wrapped twice": lambda x: Wrapper(VIT).predict(through_global.__globals__["torch"].clone(x)),
    "comprehension": lambda x: torch.cat([VIT(part) for part in [x]]),
    "sequential": nn.Sequential(nn.Identity(), VIT),
    "data parallel": nn.DataParallel(VIT),
    "in pieces": in_pieces,
}


@pytest.mark.parametrize("name", CALLABLES)
def test_any_callable(name):
    forward = CALLABLES[name]
    expected = VIT(images())
    with AttentionTap() as reference:
        VIT(images())
    with torch.no_grad(), AttentionTap() as tap:
        output = forward(images())
    assert torch.allclose(output, expected, atol=1e-5)
    found = run_forward(forward, images(), layers=-1)
    assert found.layout.prefix == ("cls",)
    assert found.layout.grid == (4, 4)
    for maps in (tap.maps, [*tap.maps[:1], found.records[0].attention]):
        for got, want in zip(maps, reference.maps, strict=True):
            assert torch.allclose(got, want, atol=1e-6)


def test_module_paths_of_wrapped_models():
    with AttentionTap() as tap:
        nn.Sequential(nn.Identity(), VIT)(images())
    assert tap.records[0].path == "1.blocks.0.attn"


@pytest.mark.parametrize("training", [False, True])
def test_data_parallel_replicas_are_taken_off_for_the_call(training):
    """Replicas would run in threads, where no function mode is active; without a GPU their list is set by hand."""
    wrapped = nn.DataParallel(timm_vit()).train(training)
    wrapped.device_ids = [0, 1]
    seen = []
    wrapped.module.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    found = run_forward(wrapped, images(5))
    assert found.records[0].attention.shape[0] == 5
    assert seen == [5]
    assert wrapped.device_ids == [0, 1]
    assert wrapped.training is training


@pytest.fixture
def dynamo():
    """Compiled code of earlier tests is forgotten."""
    import torch._dynamo

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize(
    ("build", "ran_before"), [(timm_vit, True), (timm_vit, False), (hf_vit, True), (torchvision_vit, True)]
)
def test_compiled_models(build, ran_before):
    model, x = build(), images()
    with torch.no_grad():
        with AttentionTap() as reference:
            expected = model(x)
        compiled = torch.compile(model, backend="eager")
        if ran_before:
            compiled(x)
        with AttentionTap() as tap:
            output = compiled(x)
        after = compiled(x)
    for result in (output, after):
        assert torch.allclose(getattr(result, "logits", result), getattr(expected, "logits", expected), atol=1e-5)
    assert len(tap.maps) == len(reference.maps)
    for got, want in zip(tap.maps, reference.maps, strict=True):
        assert torch.allclose(got, want, atol=1e-6)
    found = run_forward(compiled, x, layers=-1)
    assert torch.allclose(found.records[0].attention, reference.maps[-1], atol=1e-6)
    assert found.layout.grid == (4, 4)


@pytest.mark.usefixtures("dynamo")
def test_model_compiled_in_place():
    model, x = timm_vit(), images()
    expected = captured(model, "all").maps
    model.compile(backend="eager")
    model(x)
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(captured(model, "all").maps, expected, strict=True))


@pytest.mark.usefixtures("dynamo")
def test_compiled_code_serves_again_after_the_tap():
    calls = []

    def backend(graph, example_inputs):
        calls.append(graph)
        return graph.forward

    model = torch.compile(ToyBlock().eval(), backend=backend)
    x = torch.randn(1, 6, WIDTH)
    model(x)
    compiled = len(calls)
    with AttentionTap():
        model(x)
    model(x)
    assert len(calls) == compiled  # neither inside the tap, nor again after it


# --- what cannot be captured -----------------------------------------------------------------------------------------


@torch.library.custom_op("xattn_tests::kernel", mutates_args=())
def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A kernel of its own, as xformers and flash-attn have."""
    return (query @ key.mT).softmax(-1) @ value


class FlashAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return kernel(*self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)).transpose(1, 2).flatten(2)


class FlashBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = FlashAttention()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attn(x)


@pytest.mark.parametrize("visible", [0, 1])
def test_opaque_kernels_are_named_with_their_path_and_advice(visible):
    """Also where other layers were captured: a part is never passed off as the whole."""
    model = nn.Sequential(*(ToyBlock() for _ in range(visible)), FlashBlock())
    with torch.no_grad(), pytest.raises(CaptureError) as error, AttentionTap():
        model(torch.randn(1, 6, WIDTH))
    message = str(error.value)
    assert f"'{visible}.attn'" in message
    assert "FlashAttention" in message
    assert 'attn_implementation="sdpa"' in message


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.net(x)).softmax(-1)


@pytest.mark.parametrize("call", [lambda net: run_forward(net, images()), lambda net: captured(net, "all")])
def test_a_model_without_attention(call):
    with pytest.raises(CaptureError, match=r"no attention was seen.*Expected a transformer"):
        call(ConvNet().eval())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_traced_model():
    with torch.no_grad():
        traced = torch.jit.trace(seeded(ToyBlock), torch.randn(1, 6, WIDTH), check_trace=False)
        with pytest.raises(CaptureError, match=r"traced or scripted|unseen"), AttentionTap():
            traced(torch.randn(1, 6, WIDTH))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_scripted_model():
    scripted = torch.jit.script(torch_encoder())
    with torch.no_grad(), pytest.raises(CaptureError, match=r"traced or scripted|unseen"), AttentionTap():
        scripted(torch.randn(1, 6, WIDTH))


def test_a_function_without_modules():
    query = torch.randn(2, 2, 6, 8)
    with AttentionTap(batch_size=2) as tap:
        F.scaled_dot_product_attention(query, query, query)
    assert tap.records[0].path == "the forward function"


def test_softmax_outside_of_attention_is_left_alone():
    class Router(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x[:, None] @ x[:, None].mT).softmax(-1).sum((1, 2))[..., None] * x

    torch.manual_seed(0)
    with AttentionTap() as tap:
        nn.Sequential(Router(), ToyBlock(), Router())(torch.randn(2, 6, WIDTH))
    assert [record.path for record in tap.records] == ["1.attn"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MaskedSelfAttention", True),
        ("ScaledDotProductAttention", True),
        ("MaskUnitAttention", True),
        ("ViTSdpaAttention", True),
        ("WindowMSA", True),
        ("AttnBlock", True),
        ("AttentionDropout", False),
        ("AttentionMask", False),
        ("BertSelfAttentionOutput", False),
        ("AttentionNorm2d", False),
        ("Linear", False),
    ],
)
def test_names_of_attention_modules(name, expected):
    from xattn._trace import is_attention_module

    assert is_attention_module(type(name, (nn.Module,), {})()) is expected


def test_eager_softmax_of_a_masked_attention_class_is_seen():
    attention = type("MaskedAttention", (ToyAttention,), {})
    torch.manual_seed(0)
    with AttentionTap() as tap:
        nn.Sequential(attention(fused=False))(torch.randn(2, 6, WIDTH))
    assert tap.records[0].kind == "self"


def test_swin_stays_usable_with_layers():
    with AttentionTap(layers=-1) as tap:
        timm_swin()(images(size=(SIZE, SIZE)))
    assert [record.kind for record in tap.records] == ["window", "self"]


def test_modules_of_dynamo_are_not_imported_by_the_tap():
    """Importing dynamo takes longer than most forwards."""
    import subprocess

    code = (
        "import sys, torch; from torch import nn; from xattn import AttentionTap\n"
        "layer = nn.MultiheadAttention(4, 1, batch_first=True); x = torch.ones(1, 2, 4)\n"
        "with AttentionTap() as tap: layer(x, x, x)\n"
        "assert len(tap.maps) == 1; print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
