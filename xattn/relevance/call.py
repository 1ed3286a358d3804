"""One operation of a recorded forward: its backward is the gradient, or the rule that is being propagated."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from xattn.errors import MissingRuleError, UnsupportedModelError

if TYPE_CHECKING:
    from xattn.relevance.recording import Recording
    from xattn.relevance.rules.stabilizer import Stabilizer

Shares: TypeAlias = Sequence[Tensor | None]


class Call:
    """An operation, its operands and its result, as a rule sees them.

    The operation runs on a small autograd graph of its own, so its ordinary gradient is torch's, bit by bit, and a
    rule has the transpose of the operation at hand (`vjp`).

    Attributes:
        kind: What rule sets are keyed by: "linear", "add", "softmax", ...
        func: The function that the model called.
        name: Its name.
        path: Path of the module that called it.
        args: Positional arguments, operands replaced by their counterparts in the small graph.
        kwargs: Keyword arguments, likewise.
        inputs: The operands that depend on the explained input, in the order of the arguments.
        origins: For each of them the kind of operation that made it, None for the explained input itself.
        output: The result in the small graph.
        value: The result as the model got it.
        uses: How many operations read the result.
    """

    __slots__ = (
        *(
            "recording",
            "kind",
            "func",
            "name",
            "path",
            "args",
            "kwargs",
            "origins",
            "inputs",
            "output",
            "value",
            "uses",
        ),
        *("_versions", "_value_version"),
    )

    def __init__(
        self,
        recording: "Recording",
        kind: str,
        func: Callable[..., Any],
        name: str,
        path: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        origins: tuple[str | None, ...],
    ) -> None:
        self.recording = recording
        self.kind = kind
        self.func = func
        self.name = name
        self.path = path
        self.args = args
        self.kwargs = kwargs
        self.origins = origins
        self.inputs: tuple[Tensor, ...] = ()
        self.uses = 0

    def run(self, operands: tuple[Tensor, ...]) -> Tensor:
        """Apply the operation to its operands on a graph of its own."""
        with torch.enable_grad():
            self.inputs = tuple(x.detach().requires_grad_() for x in operands)
            inner = {id(outer): own for outer, own in zip(operands, self.inputs, strict=True)}
            self.args = replace_tensors(self.args, lambda x: inner.get(id(x), x))
            self.kwargs = replace_tensors(self.kwargs, lambda x: inner.get(id(x), x))
            self.output: Tensor = self.func(*self.args, **self.kwargs)
        self.value: Tensor = self.output.detach()
        self._versions = [x._version for x in self.inputs]
        self._value_version = self.value._version
        handed_out: Tensor = self.output.detach()
        return handed_out

    def keep(self, value: Tensor) -> None:
        """Remember the result, which the model is about to overwrite."""
        self.value, self._value_version = value, value._version

    def depends(self, operand: object) -> bool:
        """Whether an argument is one of `inputs`, not a constant."""
        return any(operand is x for x in self.inputs)

    def vjp(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        """The transpose of the operation's derivative, for each of `inputs`."""
        return torch.autograd.grad(
            self.output, self.inputs, cotangent, retain_graph=True, allow_unused=True, materialize_grads=True
        )

    def divide(self, stabilizer: "Stabilizer", relevance: Tensor, by: Tensor, terms: Sequence[Tensor] = ()) -> Tensor:
        """`relevance / by` for a signed sum `by`, of these terms if they are known; its rounding is noted."""
        size = sum((x.detach().abs() for x in terms[1:]), terms[0].detach().abs()) if terms else None
        self.recording.ledger.divided(relevance, by, size)
        return stabilizer.divide(relevance, by)

    def relevance(self, arriving: Tensor) -> Shares:
        """What the active rule gives to each of `inputs`.

        Raises:
            MissingRuleError: If the rule set has no rule for this operation.
            UnsupportedModelError: If the model overwrote an operand afterwards.
        """
        rules = self.recording.rules
        assert rules is not None  # the caller asked
        rule = rules.find(self)
        if rule is None:
            raise MissingRuleError(self._complaint(rules.name))
        if self._versions != [x._version for x in self.inputs] or self._value_version != self.value._version:
            raise UnsupportedModelError(
                f"forward_func: an operand of {self.name!r} in {self.path!r} was changed in place after its use"
            )
        left = arriving
        if rules.split is not None and self.uses > 1:
            left = rules.split.share(self.value, arriving)
        shares = [self._fit(share, x) for share, x in zip(rule(self, left), self.inputs, strict=True)]
        self.recording.ledger.enter(self, arriving, shares)
        return shares

    def _fit(self, share: Tensor | None, operand: Tensor) -> Tensor | None:
        return None if share is None else share.sum_to_size(operand.shape).to(operand.dtype)

    def _complaint(self, rule_set: str) -> str:
        return (
            f"relevance reached {self.name!r} ({self.kind}) in {self.path!r}, and rule set {rule_set!r} has no rule "
            f"for it. Choose one with rules=rule_set({rule_set!r}).extended({{{self.name!r}: Identity()}}), or with "
            "any other rule of xattn.relevance.rules in its place"
        )


class Operation(torch.autograd.Function):
    """The outer graph's node of a `Call`."""

    @staticmethod
    def forward(ctx: FunctionCtx, call: Call, *operands: Tensor) -> Tensor:
        """Run the call."""
        ctx.set_materialize_grads(False)
        ctx.call = call  # type: ignore[attr-defined]
        return call.run(operands)

    @staticmethod
    def backward(ctx: Any, arriving: Tensor | None) -> Any:  # noqa: ANN401
        """Gradient, or relevance while rules are being propagated."""
        call: Call = ctx.call
        if arriving is None:
            return (None, *(None for _ in call.inputs))
        if call.recording.rules is None:
            return (None, *call.vjp(arriving))
        return (None, *call.relevance(arriving))


def replace_tensors(tree: Any, change: Callable[[Tensor], Any]) -> Any:  # noqa: ANN401
    """Arguments with every tensor in them changed; lists, tuples and dicts are rebuilt."""
    if isinstance(tree, Tensor):
        return change(tree)
    if type(tree) in (list, tuple):
        return type(tree)(replace_tensors(part, change) for part in tree)
    if type(tree) is dict:
        return {key: replace_tensors(part, change) for key, part in tree.items()}
    return tree
