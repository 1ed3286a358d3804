"""The rule of AttnLRP for normalisation layers with their affine part."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from xattn.relevance.call import Call
from xattn.relevance.rules.stabilizer import SIGNED, Stabilizer


@dataclass(frozen=True)
class FixedNorm:
    """The epsilon rule on the norm with its standard deviation held fixed.

    y = (x - mean(x)) / sigma * gamma + beta is then linear in x (Achtibat et al. 2024, section 3.3.3): R goes to x
    through the centring, and beta keeps its share. Layer and RMS norm; for other norms, which in evaluation mode only
    scale, relevance is handed on.
    """

    stabilizer: Stabilizer = SIGNED

    def __call__(self, call: Call, relevance: Tensor) -> Sequence[Tensor | None]:
        """Operand times the transpose of the centred, scaled map applied to R / y."""
        if call.name not in ("layer_norm", "rms_norm"):
            return (relevance,)
        x = call.inputs[0].detach()
        given = {**dict(zip(("input", "normalized_shape", "weight", "bias", "eps"), call.args, strict=False))}
        if call.name == "rms_norm":
            given.pop("bias", None)
        given |= call.kwargs
        dims = tuple(range(-len(tuple(given["normalized_shape"])), 0))
        centred = x - x.mean(dims, keepdim=True) if call.name == "layer_norm" else x
        scaled = call.divide(self.stabilizer, relevance, call.value)
        weight = given.get("weight")
        scaled = scaled / _deviation(call, centred, given.get("eps"), dims)
        if weight is not None:
            scaled = scaled * weight
        if call.name == "layer_norm":
            scaled = scaled - scaled.mean(dims, keepdim=True)
        return (x * scaled,)


def _deviation(call: Call, centred: Tensor, eps: float | None, dims: tuple[int, ...]) -> Tensor:
    if eps is None:
        eps = 1e-5 if call.name == "layer_norm" else torch.finfo(centred.dtype).eps
    return (centred.square().mean(dims, keepdim=True) + eps).sqrt()
