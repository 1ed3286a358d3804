"""Laws that every registered method obeys on every layout; a new method is tested by being registered."""

import gc
import itertools

import pytest
import torch
from method_cases import CLASS_SPECIFIC, LAYOUTS, LOOKING, PAIRS, REFUSED, WORD_PAIRS, PlantedViT, case
from torch import nn

from xattn.attributions import methods
from xattn.errors import ArgumentError, UnsupportedModelError

# Some rules of relevance propagation warn, rightly, that rounding may decide a map.
pytestmark = pytest.mark.filterwarnings("ignore:.*nearly cancel")

pairs = pytest.mark.parametrize(("method", "layout"), PAIRS)
word_pairs = pytest.mark.parametrize(("method", "layout"), WORD_PAIRS)
every_method = pytest.mark.parametrize("method", methods)
looking_method = pytest.mark.parametrize("method", LOOKING)


def explain(method, layout, **kwargs):
    """The method's map on a case, at token resolution unless told otherwise."""
    this = case(layout)
    kwargs = {"resolution": "token", "additional_forward_args": this.args, **kwargs}
    return methods[method](this.model).attribute(kwargs.pop("inputs", this.inputs), **kwargs)


@pairs
def test_explains_what_its_metadata_promises(method, layout):
    relevance = explain(method, layout)
    assert relevance.isfinite().all()
    assert relevance.abs().sum() > 0


@every_method
def test_only_signed_methods_give_negative_relevance(method):
    negative = any((explain(method, layout) < 0).any() for m, layout in PAIRS if m == method)
    assert negative == methods[method].is_signed


@pytest.mark.parametrize(("method", "layout"), REFUSED)
def test_refuses_what_its_metadata_excludes(method, layout):
    with pytest.raises(UnsupportedModelError):
        explain(method, layout)


@pairs
def test_a_batch_is_its_samples(method, layout):
    batch = explain(method, layout)
    for index in range(len(batch)):
        inputs, args = case(layout).sample(index)
        single = explain(method, layout, inputs=inputs, additional_forward_args=args)
        torch.testing.assert_close(batch[index], single[0], atol=1e-5, rtol=1e-4)


@pairs
def test_no_sample_sees_another(method, layout):
    this = case(layout)
    inputs = this.inputs.clone()
    inputs[1:] = inputs[1:].flip(0)
    args = tuple(torch.cat([a[:1], a[1:].flip(0)]) for a in this.args)
    other = explain(method, layout, inputs=inputs, additional_forward_args=args)
    torch.testing.assert_close(other[0], explain(method, layout)[0], atol=1e-6, rtol=1e-5)


@pairs
def test_shapes_dtype_and_layout_of_the_result(method, layout):
    this = case(layout)
    full = explain(method, layout, resolution="input")
    assert full.shape == this.inputs.shape
    assert full.is_contiguous()
    assert full.dtype == (this.inputs.dtype if this.inputs.is_floating_point() else torch.float32)
    assert not full.requires_grad
    patches = explain(method, layout, resolution="patch")
    tokens = explain(method, layout)
    assert patches.shape[1:] == (this.grid or tokens.shape[1:]) or patches.shape[1] == tokens.shape[1] - 1
    torch.testing.assert_close(tokens[:, -patches[0].numel() :], patches.flatten(1))


@word_pairs
def test_padding_gets_exactly_nothing(method, layout):
    tokens = explain(method, layout)
    (mask,) = case(layout).args
    assert (tokens[mask == 0] == 0).all()
    assert tokens[mask == 1].abs().sum() > 0


@pytest.mark.parametrize(("method", "layout"), [pair for pair in WORD_PAIRS if pair[0] in LOOKING])
def test_the_content_of_padding_changes_nothing(method, layout):
    this = case(layout)
    (mask,) = this.args
    other = torch.where(mask == 1, this.inputs, 7)
    torch.testing.assert_close(explain(method, layout, inputs=other), explain(method, layout), atol=1e-6, rtol=1e-5)


@pairs
def test_no_target_means_the_predicted_class(method, layout):
    this = case(layout)
    with torch.no_grad():
        output = this.model(this.inputs, *this.args)
    predicted = getattr(output, "logits", output).argmax(-1)
    torch.testing.assert_close(explain(method, layout, target=predicted), explain(method, layout))
    torch.testing.assert_close(explain(method, layout, target=predicted.tolist()), explain(method, layout))


class OneOutput(nn.Module):
    """The first class alone, as (B, 1) or (B,)."""

    def __init__(self, flat):
        super().__init__()
        self.model, self.flat = case("cls").model, flat

    def forward(self, images):
        logits = self.model(images)[:, :1]
        return logits.squeeze(1) if self.flat else logits


@every_method
def test_a_single_output_needs_no_target(method):
    images = case("cls").inputs
    flat, column = (methods[method](OneOutput(flat)).attribute(images, resolution="token") for flat in (True, False))
    assert torch.equal(flat, column)
    if method.startswith("prediction"):  # a sigmoid, which differs from a softmax over all classes
        assert flat.abs().sum() > 0
    else:
        torch.testing.assert_close(flat, explain(method, "cls", target=0))


@every_method
def test_class_specific_means_what_it_says(method):
    first, second = (explain(method, "cls", target=target) for target in (0, 1))
    assert torch.equal(first, second) != methods[method].is_class_specific


@pairs
def test_wrong_number_of_targets(method, layout):
    with pytest.raises(ArgumentError, match="target: expected"):
        explain(method, layout, target=[0, 1])
    with pytest.raises(ArgumentError, match="target: expected"):
        explain(method, layout, target=torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("method", CLASS_SPECIFIC)
def test_target_out_of_range(method):
    with pytest.raises(ArgumentError, match=r"0\.\.4"):
        explain(method, "cls", target=5)


@pairs
def test_internal_batch_size_changes_nothing_and_is_kept(method, layout):
    this = case(layout)
    rows = []

    class Spy(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = this.model

        def forward(self, *args):
            rows.append(len(args[0]))
            return self.model(*args)

    spied = methods[method](Spy()).attribute(
        this.inputs, additional_forward_args=this.args, resolution="token", internal_batch_size=2
    )
    assert max(rows) <= 2
    torch.testing.assert_close(spied, explain(method, layout), atol=1e-5, rtol=1e-4)


def mixed_state(model):
    """Give the model a state that careless code would change."""
    for number, module in enumerate(model.modules()):
        module.training = number % 3 == 0
    for number, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(number % 2 == 0)
        parameter.grad = torch.full_like(parameter, number) if number % 2 == 0 else None
    model.register_buffer("seen", torch.arange(3.0))


def snapshot(model):
    return {
        "training": [m.training for m in model.modules()],
        "grad": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "values": [v.clone() for v in model.state_dict().values()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in model.modules()],
        "attributes": [sorted(vars(m)) for m in model.modules()],
        "fused": [getattr(m, "fused_attn", None) for m in model.modules()],
        "random": torch.random.get_rng_state(),
        "global hooks": [
            len(hooks)
            for hooks in (
                nn.modules.module._global_forward_hooks,
                nn.modules.module._global_forward_pre_hooks,
                nn.modules.module._global_backward_hooks,
            )
        ],
        "modes": [torch._C._len_torch_function_stack(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()],
    }


def same(before, after):
    flat = [(key, a, b) for key in before for a, b in itertools.zip_longest(_items(before[key]), _items(after[key]))]
    return [key for key, a, b in flat if not (torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b)]


def _items(value):
    return value if isinstance(value, list) else [value]


class FailsInTheMiddle(nn.Module):
    """Raises when called, after the layers before it ran."""

    def forward(self, *args, **kwargs):
        raise KeyError("on purpose")


@every_method
@pytest.mark.parametrize("ending", ["success", "bad target", "the model raises"])
def test_the_model_is_left_as_it_was(method, ending):
    this = LAYOUTS["registers, 2x8"]()
    mixed_state(this.model)
    block = this.model.blocks[1].mlp
    if ending == "the model raises":
        this.model.blocks[1].mlp = FailsInTheMiddle()
        this.model.blocks[1].mlp.training = False
    before = snapshot(this.model)
    explainer = methods[method](this.model)
    if ending == "success":
        explainer.attribute(this.inputs)
    elif ending == "bad target":
        with pytest.raises(ArgumentError):
            explainer.attribute(this.inputs, target=[0, 1])
    else:
        with pytest.raises(KeyError, match="on purpose"):
            explainer.attribute(this.inputs)
    assert same(before, snapshot(this.model)) == []
    this.model.blocks[1].mlp = block


@every_method
def test_memory_is_constant_over_many_calls(method):
    this = case("cls")
    explainer = methods[method](this.model)

    def tensors():
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    explainer.attribute(this.inputs)
    before = tensors()
    for number in range(50):
        if number % 10 == 9:
            with pytest.raises(ArgumentError):
                explainer.attribute(this.inputs, target=[0, 1])
        else:
            explainer.attribute(this.inputs)
    assert tensors() <= before


@every_method
def test_frozen_models_and_callers_without_gradients(method):
    frozen = LAYOUTS["cls"]()
    frozen.model.requires_grad_(False)
    expected = explain(method, "cls")
    torch.testing.assert_close(methods[method](frozen.model).attribute(frozen.inputs, resolution="token"), expected)
    with torch.no_grad():
        torch.testing.assert_close(explain(method, "cls"), expected)
    with torch.inference_mode():
        born_here = case("cls").inputs.clone()
        torch.testing.assert_close(explain(method, "cls", inputs=born_here), expected)


@every_method
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_finite_at_every_input_scale(method, scale):
    relevance = explain(method, "cls", inputs=scale * case("cls").inputs)
    assert relevance.isfinite().all()


@every_method
def test_two_calls_agree_and_two_models_do_not_mix(method):
    first, second = LAYOUTS["cls"](), LAYOUTS["registers, 2x8"]()
    explainer = methods[method](first.model)
    once = explainer.attribute(first.inputs)
    methods[method](second.model).attribute(second.inputs)
    assert torch.equal(explainer.attribute(first.inputs), once)


def planted(position, grid=(4, 4), patch=4):
    """Dark noise with one bright patch, of class 1's colour."""
    images = 0.05 * torch.rand(2, 3, grid[0] * patch, grid[1] * patch, generator=torch.Generator().manual_seed(3))
    row, column = divmod(position, grid[1])
    images[:, :, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch] += torch.tensor(
        [0.5, 1.5, 0.5]
    )[:, None, None]
    return images


@looking_method
@pytest.mark.parametrize("position", [0, 6, 15])
def test_a_planted_patch_is_found(method, position):
    relevance = methods[method](PlantedViT()).attribute(planted(position), target=1, resolution="patch")
    assert relevance.flatten(1).argmax(1).tolist() == [position, position]


@looking_method
def test_permuting_patches_permutes_the_map(method):
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(4))
    order = torch.randperm(16, generator=torch.Generator().manual_seed(5))
    tiles = images.unfold(2, 4, 4).unfold(3, 4, 4).flatten(2, 3)[:, :, order]
    mixed = tiles.unflatten(2, (4, 4)).permute(0, 1, 2, 4, 3, 5).reshape(2, 3, 16, 16)
    explainer = methods[method](PlantedViT(sharpness=3.0))
    straight = explainer.attribute(images, target=1, resolution="patch").flatten(1)
    permuted = explainer.attribute(mixed, target=1, resolution="patch").flatten(1)
    torch.testing.assert_close(permuted, straight[:, order], atol=1e-5, rtol=1e-4)


@every_method
def test_a_tuple_in_gives_a_tuple_out(method):
    this = case("cls")
    (result,) = methods[method](this.model).attribute((this.inputs,))
    torch.testing.assert_close(result, methods[method](this.model).attribute(this.inputs))


@every_method
def test_metadata_is_complete(method):
    cls = methods[method]
    assert cls.name == method
    assert cls.summary
    assert cls.paper
    assert cls.family
    assert cls.__doc__
    assert cls.attribute.__wrapped__  # captum's NoiseTunnel calls it
