"""Where a model runs, checked before any work."""

import torch
from torch import Tensor

from xattn.errors import ArgumentError


def find_device(device: str | torch.device) -> torch.device:
    """A device that holds numbers and gives them back.

    Raises:
        ArgumentError: If there is none of that name, or it does not.
    """
    try:
        found = torch.device(device)
        torch.zeros(1, device=found).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0]
        raise ArgumentError(f"device: {str(device)!r} cannot be used ({reason})") from None
    return found


def check_data(name: str, tensor: Tensor) -> None:
    """Refuse a tensor on the meta device, which has a shape and no numbers.

    Raises:
        ArgumentError: For such a tensor.
    """
    if tensor.is_meta:
        raise ArgumentError(f"{name}: expected numbers, got a tensor on the meta device, which has none")
