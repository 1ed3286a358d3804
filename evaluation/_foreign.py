"""Relevance from a method of another library: what its `attribute` returned, checked."""

from collections.abc import Collection
from typing import Any

from torch import Tensor

from xattn.errors import ArgumentTypeError


def foreign_relevance(method: Any, inputs: Tensor, dimensions: Collection[int], **arguments: Any) -> Tensor:  # noqa: ANN401
    """What a captum-like method finds, as (B, ...) of one of these numbers of dimensions.

    Raises:
        ArgumentTypeError: If it returns anything else.
    """
    found = method.attribute(inputs, **arguments)
    got = f"got {type(found).__name__}"
    if isinstance(found, Tensor):
        if found.ndim in dimensions and len(found) == len(inputs) and not found.is_complex():
            return found.detach()
        got = f"got {tuple(found.shape)} of {found.dtype}"
    expected = " or ".join(map(str, dimensions))
    raise ArgumentTypeError(
        f"methods: {type(method).__name__}.attribute must return a real tensor of {expected} dimensions, the first of "
        f"them {len(inputs)}, for inputs {tuple(inputs.shape)}, {got}"
    )
