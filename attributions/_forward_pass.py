"""What one forward call left behind, and gradients through it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from xattn.attention import AttentionRecord
from xattn.attributions._targets import Target, required, resolve_target, scores
from xattn.errors import ArgumentError, UnsupportedModelError
from xattn.layout import TokenLayout


@dataclass
class ForwardPass:
    """What one forward call on a batch left behind.

    Attributes:
        inputs: The explained tensor (B, ...).
        additional_args: The other arguments of the forward function.
        target: As the caller gave it, for this batch.
        layout: Roles of the N tokens.
        records: Kept self-attentions of the stream that owns the input, in order; empty with a reducer.
        pooling: (B, N) weights with which attention pooling read the tokens, None without.
        valid: (B, N) bool, false for padding; None without a mask.
        logits: The model's logits in the autograd graph, None if it returns none.
        slopes: Where gradients are shared with other methods, what computes them.
    """

    inputs: Tensor
    additional_args: tuple[Any, ...]
    target: Target
    layout: TokenLayout
    records: list[AttentionRecord]
    pooling: Tensor | None
    valid: Tensor | None
    logits: Tensor | None
    slopes: "SharedGradients | None" = field(default=None, repr=False)
    _index: Tensor | None = field(default=None, repr=False)

    @property
    def target_index(self) -> Tensor:
        """(B, D) resolved target; the predicted class where the caller gave None.

        Raises:
            ArgumentError: If the model returned no logits, or the target does not fit them.
        """
        if self._index is None:
            logits, samples = required(self.logits), self.inputs.shape[0]
            if logits.ndim and logits.shape[0] != samples:
                raise ArgumentError(
                    f"forward_func: expected logits for each of {samples} samples, got shape {tuple(logits.shape)}"
                )
            self._index = resolve_target(logits, self.target)
        return self._index

    def score(self) -> Tensor:
        """(B,) value of each sample's target, in the autograd graph."""
        index = self.target_index
        assert self.logits is not None  # target_index raised otherwise
        with torch.enable_grad():
            return scores(self.logits, index)

    def gradients(self, tensors: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Gradient of each sample's score by tensors of the graph, on the inputs' device; None where it has none."""
        score = self.score()
        if not score.requires_grad:
            raise UnsupportedModelError(
                "forward_func: its output has no gradient; expected a model that neither detaches it nor runs "
                "in no_grad"
            )
        found = gradients_of(score, tensors) if self.slopes is None else self.slopes.of(score, tensors)
        home = self.inputs.device
        return tuple(None if gradient is None else gradient.to(home) for gradient in found)

    def patch_mean(self, values: Tensor, dim: int) -> Tensor:
        """Mean over the patches (words) along `dim` of (B, ...), which is kept; padding does not count."""
        if self.valid is None:
            return values.mean(dim, keepdim=True)
        shape = [1] * values.ndim
        shape[0], shape[dim] = values.shape[0], values.shape[dim]
        valid = self.valid[:, self.layout.num_prefix :].reshape(shape)
        return (values * valid).sum(dim, keepdim=True) / valid.sum(dim, keepdim=True)

    def tokens_read(self) -> Tensor:
        """(B, N) distribution of the tokens that the answer is read from.

        The weights of attention pooling where there is one, uniform over the valid patches or words where the model
        averages them, else the class token, else the last valid token of a causal model, else uniform.
        """
        batch, layout = self.inputs.shape[0], self.layout
        start = torch.zeros(batch, layout.num_tokens, device=self.inputs.device)
        if self.pooling is not None:
            start = self.pooling
        elif layout.cls_index is not None and layout.pooling != "avg":
            start[:, layout.cls_index] = 1.0
        elif layout.pooling == "last":
            positions = torch.arange(layout.num_tokens, device=start.device)
            last = positions.expand(batch, -1) if self.valid is None else positions * self.valid
            start.scatter_(1, last.amax(1, keepdim=True), 1.0)
        else:
            start[:, layout.num_prefix :] = 1.0
            start = start if self.valid is None else start * self.valid
            start = start / start.sum(-1, keepdim=True)
        return start


class SharedGradients:
    """One backward pass for all tensors by which methods differentiate the same score."""

    def __init__(self) -> None:
        self._expected: dict[int, Tensor] = {}
        self._found: dict[int, Tensor | None] = {}

    def expect(self, tensors: Sequence[Tensor]) -> None:
        """Tensors that will be asked for; kept alive, so that their identity stays theirs."""
        self._expected.update((id(tensor), tensor) for tensor in tensors)

    def of(self, score: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Gradients of the score (B,) by the tensors; those of all expected ones are computed at once."""
        self.expect(tensors)
        if any(key not in self._found for key in self._expected):
            wanted = {key: tensor for key, tensor in self._expected.items() if key not in self._found}
            found = gradients_of(score, list(wanted.values()), retain_graph=True)
            self._found.update(zip(wanted, found, strict=True))
        return tuple(self._found[id(tensor)] for tensor in tensors)


def gradients_of(score: Tensor, tensors: Sequence[Tensor], *, retain_graph: bool = False) -> tuple[Tensor | None, ...]:
    """Gradient of each sample's score (B,) by tensors of its graph; None where it does not depend on one."""
    return torch.autograd.grad(score, tensors, torch.ones_like(score), retain_graph=retain_graph, allow_unused=True)
