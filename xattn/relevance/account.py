"""The books of a relevance pass: what started, what arrived, what was kept where, and how large it grew."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Account:
    """Where the relevance of each of B samples went.

    started = arrived + sum of absorbed + joined, exactly but for rounding. Printing it shows the first sample.

    Attributes:
        started: (B,) relevance at the score.
        arrived: (B,) relevance at the input (the embedding, for token ids).
        absorbed: For each kind of operation (B,) relevance that came and was not handed on, negative where more left:
            shares of biases ("linear", "conv", "input_conv", "norm"), of constant terms such as position embeddings
            ("add"), of the softmax's constant term, of stabilisers, and what rules that do not conserve made.
        largest: For each layer, and each module outside of layers, (B,) largest absolute relevance of a single number
            in it, from the input to the output.
    """

    started: Tensor
    arrived: Tensor
    absorbed: Mapping[str, Tensor]
    largest: Mapping[str, Tensor]

    @property
    def delta(self) -> Tensor:
        """(B,) captum's convergence delta: arrived - started."""
        return self.arrived - self.started

    @property
    def joined(self) -> Tensor:
        """(B,) what went to constants that were joined to the sequence: class, register and distillation tokens."""
        rest = self.started - self.arrived
        for lost in self.absorbed.values():
            rest = rest - lost
        return rest

    def __str__(self) -> str:
        rows = [("started", self.started), ("arrived at the input", self.arrived), ("joined tokens", self.joined)]
        rows += [(f"absorbed: {kind}", lost) for kind, lost in self.absorbed.items()]
        rows += [(f"largest: {layer or 'the model itself'}", size) for layer, size in self.largest.items()]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {float(values[0]):.4g}" for name, values in rows)
