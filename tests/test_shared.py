"""Several methods on one batch share their passes through the model, and give what each gives alone."""

import pytest
import torch
from method_cases import LAYOUTS, PAIRS, case
from tiny_models import images, timm_swin, timm_vit

from xattn._cost import measure
from xattn.attributions import AttentionRollout, GradientRollout, RawAttention, TokenGradCAM, TokenRank, methods
from xattn.attributions._shared import SharedPasses
from xattn.errors import ArgumentError, UnsupportedModelError

SHARING = [name for name, method in methods.items() if method.shares_forward]
PLAIN = [name for name in SHARING if not methods[name].needs_gradient]


def together(built, this, target=2, resolution="token"):
    passes = SharedPasses(built, this.inputs, this.args)
    return {name: passes.attribute(name, method, target, resolution) for name, method in built.items()}


def build(names, this):
    return {name: methods[name](this.model) for name in names}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_method_gives_what_it_gives_alone(layout):
    this = case(layout)
    built = build([name for name in SHARING if (name, layout) in PAIRS], this)
    for name, relevance in together(built, this).items():
        alone = built[name].attribute(this.inputs, 2, this.args, resolution="token")
        torch.testing.assert_close(
            relevance, alone, rtol=1e-5, atol=1e-8, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize(("names", "forwards", "backwards"), [(PLAIN, 1, 0), (SHARING, 2, 1)])
def test_one_forward_without_gradient_one_with_it_and_one_backward(names, forwards, backwards):
    this = case("cls")
    assert len(names) >= 10
    cost = measure(lambda: together(build(names, this), this), this.model)
    assert (cost.forwards, cost.backwards) == (forwards, backwards)


def test_the_models_answer_comes_from_the_shared_call():
    this = case("cls")
    built = build(PLAIN, this)

    def explain_the_predicted_class():
        passes = SharedPasses(built, this.inputs)
        torch.testing.assert_close(passes.logits(), this.model(this.inputs).detach())

    assert measure(explain_the_predicted_class, this.model).forwards == 2  # one of them is the test's own
    assert SharedPasses(build(["lrp"], this), this.inputs).logits() is None


def test_what_is_wrong_with_one_method_is_not_the_others_matter():
    this = case("average pooling")
    built = {
        "deep": RawAttention(this.model, layers=9),
        "dino": methods["dino_attention"](this.model),
        "late": AttentionRollout(this.model, start_layer=9),
        "good": TokenRank(this.model),
        "other": GradientRollout(this.model),
    }
    passes = SharedPasses(built, this.inputs)
    for name, error in {"deep": ArgumentError, "dino": UnsupportedModelError, "late": ArgumentError}.items():
        with pytest.raises(error):
            passes.attribute(name, built[name], 0, "token")
    for name in ("good", "other"):
        alone = built[name].attribute(this.inputs, 0, resolution="token")
        torch.testing.assert_close(passes.attribute(name, built[name], 0, "token"), alone)


def test_a_model_without_a_chain_is_explained_by_what_does_without_one():
    model, x = timm_swin(), images(1)
    built = {"rank": TokenRank(model), "rollout": GradientRollout(model), "cam": TokenGradCAM(model)}
    passes = SharedPasses(built, x)
    for name in ("rank", "rollout"):
        with pytest.raises(UnsupportedModelError, match="windows"):
            passes.attribute(name, built[name], 0, "patch")
    alone = built["cam"].attribute(x, 0, resolution="patch")
    torch.testing.assert_close(passes.attribute("cam", built["cam"], 0, "patch"), alone)


def test_other_models_are_not_mixed():
    first, second = timm_vit(), timm_vit(num_heads=1)
    built = {"one": TokenRank(first), "two": TokenRank(second), "three": RawAttention(first)}
    passes = SharedPasses(built, images())
    for name, method in built.items():
        alone = method.attribute(images(), resolution="patch")
        torch.testing.assert_close(passes.attribute(name, method, None, "patch"), alone)


def test_streaming_methods_together_need_no_more_memory_in_a_deep_model():
    def peak(depth):
        model = timm_vit(depth=depth).requires_grad_(False)
        x = images(4)
        built = {name: methods[name](model) for name in ("tokenrank", "attention_rollout", "lambda2_rollout", "center")}

        def work():
            passes = SharedPasses(built, x)
            for name, method in built.items():
                passes.attribute(name, method, 0, "token")

        return measure(work, model).peak_bytes

    assert peak(12) <= 1.02 * peak(4)


def test_time_of_shared_passes_is_divided():
    this = case("cls")
    built = build(SHARING, this)
    passes = SharedPasses(built, this.inputs)
    for name, method in built.items():
        passes.attribute(name, method, 0, "token")
    assert passes.seconds > 0
    assert sum(map(passes.share, built)) == pytest.approx(passes.seconds)
