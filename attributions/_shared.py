"""The passes through a model that several methods on the same batch have in common."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from xattn.attributions._forward import ForwardPass, run_forwards
from xattn.attributions._forward_pass import SharedGradients
from xattn.attributions._resolution import Resolution
from xattn.attributions._targets import Target
from xattn.attributions.base import TransformerAttribution, as_args, check_inputs
from xattn.errors import XattnError


class SharedPasses:
    """Runs the methods of one forward function on one batch with as few passes as they need together.

    Methods without gradient share one forward call, those with gradient another one and one backward pass. Methods
    that record their forward (relevance propagation) and those that the shared call does not suit run alone.

    Args:
        methods: Attribution objects by name; those that are not of this library are not touched.
        inputs: As in `attribute`.
        additional_forward_args: As in `attribute`.

    Attributes:
        seconds: Time that shared passes took so far.

    Raises:
        ArgumentError: As `attribute` does.
        ArgumentTypeError: As `attribute` does.
    """

    def __init__(
        self,
        methods: Mapping[str, Any],
        inputs: Tensor,
        additional_forward_args: Any = None,  # noqa: ANN401
    ) -> None:
        self._inputs, _ = check_inputs(inputs)
        self._args = as_args(additional_forward_args)
        self.seconds = 0.0
        self._group_of: dict[str, _Group] = {}
        groups: dict[tuple[int, bool], _Group] = {}
        for name, method in methods.items():
            if isinstance(method, TransformerAttribution) and method.shares_forward:
                key = (id(method.forward_func), method.needs_gradient)
                group = groups.setdefault(key, _Group(method.forward_func, method.needs_gradient))
                group.methods[name] = method
                self._group_of[name] = group

    def logits(self) -> Tensor | None:
        """(B, classes) logits of a shared call without gradient; None if there is none that gives them."""
        group = next((group for group in self._group_of.values() if not group.needs_gradient), None)
        if group is None:
            return None
        self._run(group)
        found = (forward.logits for _, forward in group.passes.values())
        return next((logits for logits in found if logits is not None), None)

    def attribute(self, name: str, method: TransformerAttribution, target: Target, resolution: Resolution) -> Tensor:
        """What `method.attribute` returns for the batch; each method once, all with the same target."""
        group = self._group_of.get(name)
        if group is not None:
            self._run(group)
        if group is None or name not in group.passes:  # alone it says what is wrong, or knows another way
            relevance: Tensor = method.attribute(self._inputs, target, self._args or None, resolution=resolution)
            return relevance
        reducer, forward = group.passes.pop(name)
        with torch.inference_mode(False), torch.no_grad():
            forward = replace(forward, target=target)
            method._check(forward)
            if forward.slopes is not None:
                with self._shared(group):
                    forward.slopes.of(forward.score(), [])
            relevance = method._checked(method._relevance(forward, reducer), forward)
            return method._shown_at(relevance, forward, resolution, interpolation="nearest")

    def share(self, name: str) -> float:
        """Seconds that a method's shared passes took so far, divided by the methods that share them."""
        group = self._group_of.get(name)
        return 0.0 if group is None else group.seconds / len(group.methods)

    def _run(self, group: "_Group") -> None:
        if not group.has_run:
            with torch.inference_mode(False), torch.no_grad(), self._shared(group):
                group.run(self._inputs, self._args)

    @contextmanager
    def _shared(self, group: "_Group") -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self.seconds += seconds
        group.seconds += seconds


@dataclass
class _Group:
    """Methods that one call of the model serves, and what it left for each that has not been asked for yet."""

    forward_func: Callable[..., Any]
    needs_gradient: bool
    methods: dict[str, TransformerAttribution] = field(default_factory=dict)
    passes: dict[str, tuple[Any, ForwardPass]] = field(default_factory=dict)
    has_run: bool = False
    seconds: float = 0.0

    def run(self, inputs: Tensor, args: tuple[Any, ...]) -> None:
        self.has_run = True
        if len(self.methods) == 1:
            return
        reducers = {name: method._reducer() for name, method in self.methods.items()}
        requests = [method._request(reducers[name]) for name, method in self.methods.items()]
        try:
            found = run_forwards(self.forward_func, inputs, args, requests, needs_gradient=self.needs_gradient)
        except (XattnError, AssertionError, ValueError, RuntimeError):
            return  # each alone, so that each says what is wrong
        slopes = SharedGradients() if self.needs_gradient else None
        for (name, method), forward in zip(self.methods.items(), found, strict=True):
            if isinstance(forward, XattnError):
                continue
            forward.slopes = slopes
            try:
                tensors = method._differentiated(forward, reducers[name])
            except XattnError:
                continue
            if slopes is not None:
                slopes.expect(tensors)
            self.passes[name] = (reducers[name], forward)
