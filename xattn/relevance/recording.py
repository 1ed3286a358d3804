"""The forward pass with every operation on the way from input to output open to rules."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Self

import torch
from torch import Tensor

from xattn._intercept import AttentionMode
from xattn._trace import ModuleTrace
from xattn.relevance._mode import RecordingMode
from xattn.relevance._widen import narrow_type
from xattn.relevance.account import Account
from xattn.relevance.ledger import Ledger
from xattn.relevance.rule_set import RuleSet, ensure_rule_set


class Recording:
    """Context manager around a forward call; afterwards both gradients and relevances can be taken.

        with Recording(images) as recording:
            logits = model(recording.input)
        pixels, = recording.relevance(logits[:, 3], [recording.input], rules="attnlrp")

    Inside, parameters are constants, computations run in `precision` (float32 at least), attention is computed in the
    open and autocast is off. Nothing is stored on the model and nothing of torch is replaced. Outside of
    `relevance` and `propagate`, gradients through the recorded graph are torch's own.

    Args:
        inputs: The explained tensor. Token ids have no gradient: `input` is then what the embedding made of them.
        precision: Lowest precision of the computation: `torch.float32` or `torch.float64`.

    Attributes:
        input: The tensor in the graph at which relevance arrives, None for token ids until they are embedded.
        ledger: Where relevance was lost on the way, and how far float32 can be trusted.
        narrow: The half precision type of the inputs (of the embeddings, for token ids), and so of the weights; None
            if they are wider.
        rules: The rule set that is being propagated, None for gradients.
    """

    def __init__(self, inputs: Tensor, *, precision: torch.dtype = torch.float32) -> None:
        self.precision = precision
        self.ids: Tensor | None = None
        self.narrow = narrow_type(inputs)
        self.input: Tensor | None = None
        with torch.inference_mode(False):
            if inputs.is_floating_point():
                wide = torch.promote_types(inputs.dtype, precision)
                self.input = inputs.detach().to(wide, copy=inputs.is_inference()).requires_grad_()
            else:
                self.ids = inputs.clone() if inputs.is_inference() else inputs
        self._batch = inputs.shape[0]
        self._device = inputs.device.type
        self.rules: RuleSet | None = None
        self.ledger = Ledger(self.sum_per_sample, self.max_per_sample)
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as resources:
            trace = resources.enter_context(ModuleTrace())
            resources.enter_context(torch.autocast(self._device, enabled=False))
            mode = resources.enter_context(RecordingMode(self, trace))
            resources.callback(mode.forget)
            # Opens attention when no tap does; under a tap it has nothing left to do.
            resources.enter_context(AttentionMode(lambda matrix, *_: matrix, lambda: False))
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._resources.close()

    @contextmanager
    def propagate(self, rules: str | RuleSet) -> Iterator[None]:
        """While it lasts, a backward pass through the recorded graph carries relevance in place of gradients."""
        self.rules = ensure_rule_set(rules)
        self.ledger.clear()
        self.ledger.weights = None if self.rules.robust else self.narrow
        try:
            with torch.autocast(self._device, enabled=False):
                yield
        finally:
            self.rules = None

    def relevance(
        self, score: Tensor, tensors: Sequence[Tensor], rules: str | RuleSet, *, retain_graph: bool = True
    ) -> tuple[Tensor, ...]:
        """Relevance of tensors of the recorded graph for one score per sample.

        Args:
            score: (B,) in the graph, such as the target's logits.
            tensors: Tensors in the graph.
            rules: A rule set or its name; it also says how much relevance each sample starts with.
            retain_graph: Keep the graph for another pass.

        Returns:
            One tensor each; zeros where no relevance arrives.
        """
        rules = ensure_rule_set(rules)
        with self.propagate(rules):
            return torch.autograd.grad(
                score, list(tensors), rules.start_value(score.detach()), retain_graph=retain_graph,
                allow_unused=True, materialize_grads=True,
            )  # fmt: skip

    def account(self, score: Tensor, rules: str | RuleSet, *, retain_graph: bool = True) -> Account:
        """Where the relevance of one score per sample goes on its way to the input; see `Account`."""
        assert self.input is not None  # token ids were embedded
        rules = ensure_rule_set(rules)
        self.ledger.accounting = True
        try:
            (arrived,) = self.relevance(score, [self.input], rules, retain_graph=retain_graph)
        finally:
            self.ledger.accounting = False
        layers = dict(reversed(self.ledger.largest.items()))
        started = rules.start_value(score.detach())
        return Account(started, self.sum_per_sample(arrived).flatten(), dict(self.ledger.absorbed), layers)

    @property
    def computed_in(self) -> torch.dtype:
        """The type of the computation."""
        return self.precision if self.input is None else self.input.dtype

    def sum_per_sample(self, tensor: Tensor) -> Tensor:
        """Sums over all but the batch dimension, kept for broadcasting.

        The batch is the first dimension of its size: the leading one, or the second in models that put tokens first.
        """
        dims = self._within_samples(tensor)
        return tensor.sum(dims, keepdim=True) if dims else tensor

    def max_per_sample(self, tensor: Tensor) -> Tensor:
        """Maxima over all but the batch dimension, kept for broadcasting."""
        dims = self._within_samples(tensor)
        return tensor.amax(dims, keepdim=True) if dims else tensor

    def _within_samples(self, tensor: Tensor) -> list[int]:
        batch = next((dim for dim, size in enumerate(tensor.shape) if size == self._batch), None)
        return [dim for dim in range(tensor.ndim) if dim != batch]
