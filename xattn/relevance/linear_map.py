"""A call seen as z = x W: what it is linear in, with which weights, without bias."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from xattn.errors import UnsupportedModelError
from xattn.relevance.call import Call


@dataclass(frozen=True)
class LinearMap:
    """A bilinear function of an operand and its weights.

    Attributes:
        x: The operand that depends on the explained input.
        weight: The constant one.
        apply: The function of both, without bias.
    """

    x: Tensor
    weight: Tensor
    apply: Callable[[Tensor, Tensor], Tensor]

    def at(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The result for another operand and other weights, and the transpose of the map with these weights."""
        if self.apply is torch.nn.functional.linear:
            return self.apply(x, weight), lambda s: s @ weight
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            z = self.apply(leaf, weight)
        return z.detach(), lambda s: torch.autograd.grad(z, leaf, s, retain_graph=True)[0]


def linear_map(call: Call) -> LinearMap:
    """The linear map that a call of kind "linear", "conv" or "input_conv" applies.

    Raises:
        UnsupportedModelError: If the operand is not where these functions have it, for example a weight that
            depends on the explained input.
    """
    if call.name == "linear" or call.name.startswith("conv"):
        names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
        given = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
        x, weight = given.pop("input"), given.pop("weight")
        given.pop("bias", None)
        apply = partial(call.func, **given) if given else call.func
    elif call.name in ("addmm", "baddbmm"):
        x, weight = call.args[1:3]
        apply = torch.matmul
    else:
        x, weight, apply = _constant_product(call)
    if not call.depends(x) or call.depends(weight):
        raise UnsupportedModelError(
            f"forward_func: in {call.name!r} of {call.path!r} the weight depends on the explained input"
        )
    return LinearMap(x.detach(), weight.detach(), apply)


def _constant_product(call: Call) -> tuple[Any, Any, Callable[[Tensor, Tensor], Tensor]]:
    """A matmul or einsum with one constant factor, on whichever side."""
    equation = [call.args[0]] if isinstance(call.args[0], str) else []
    factors = [x for x in (*call.args, *call.kwargs.values()) if isinstance(x, Tensor)]
    if len(factors) != 2:
        raise UnsupportedModelError(f"forward_func: {call.name!r} of {call.path!r} has {len(factors)} factors, not 2")
    if call.depends(factors[0]):
        return factors[0], factors[1], lambda x, weight: call.func(*equation, x, weight)
    return factors[1], factors[0], lambda x, weight: call.func(*equation, weight, x)
