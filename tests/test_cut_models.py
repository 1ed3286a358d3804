"""Models in which something is cut or broken: refused by name, never a plausible map."""

import pytest
import torch
from tiny_models import images, timm_vit

from xattn.attributions import methods
from xattn.errors import ArgumentError, UnsupportedModelError

NEEDS_GRADIENT = [name for name, method in methods.items() if method.needs_gradient]


@pytest.mark.parametrize("method", methods)
def test_output_of_nan(method):
    model = timm_vit()
    with torch.no_grad():
        model.blocks[-1].attn.qkv.weight[0, 0] = torch.nan
    with pytest.raises(ArgumentError, match=r"got NaN|nothing but NaN"):
        methods[method](model).attribute(images(), 0)


@pytest.mark.parametrize("method", NEEDS_GRADIENT)
@pytest.mark.parametrize("cut", [lambda model, x: model(x).detach(), torch.no_grad()(lambda model, x: model(x))])
def test_output_without_a_gradient(method, cut):
    model = timm_vit()
    try:
        found = methods[method](lambda x: cut(model, x)).attribute(images(), 0)
    except UnsupportedModelError as error:
        assert "gradient" in str(error)  # noqa: PT017
    else:  # gradients are switched on where the method's layer begins, inside of the model's no_grad
        torch.testing.assert_close(found, methods[method](model).attribute(images(), 0))


@pytest.mark.parametrize("method", ["lrp", "attnlrp"])
def test_a_cut_between_blocks(method):
    model = timm_vit(depth=3)
    model.blocks[1].register_forward_hook(lambda block, args, output: output.detach())
    with pytest.raises(UnsupportedModelError, match="forward_func: no relevance arrived at the input"):
        methods[method](model).attribute(images(), 0)


@pytest.mark.parametrize("name", [name for name in methods if methods[name].backwards])
def test_a_score_that_depends_on_nothing_is_refused(name):
    model = timm_vit()
    torch.nn.init.zeros_(model.head.weight)
    with pytest.raises(UnsupportedModelError, match=r"zero everywhere|has no gradient|no relevance arrived"):
        methods[name](model).attribute(images(), target=1)
