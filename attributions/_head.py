"""The tokens between the layers of a model, and the answer that its head gives to one of them.

Nothing is known about the model: blocks are the modules around its attentions, and norm and head are whatever
operations follow the last block. They run again on sequences that hold nothing but one token.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor, nn

from xattn._state import undisturbed
from xattn._trace import Call, ModuleTrace
from xattn.attention import AttentionRecord
from xattn.attributions._forward import ForwardPass
from xattn.attributions._tape import Program, Tape
from xattn.errors import ArgumentError, UnsupportedModelError, XattnError
from xattn.layout import TokenLayout

Head: TypeAlias = Callable[[Tensor], Tensor]

_TOLERANCE = 1e-5
_ADVICE = (
    "pass head=, a function from tokens (..., D) to logits (..., classes), "
    "for example head=lambda tokens: model.head(model.norm(tokens))"
)


class LayerTokens:
    """Context around a forward call and taker of its records: the tokens after layers, and the operations behind them.

    Args:
        roots: Modules that paths start from.
        layers: Whose output tokens are kept, negative from the end; None keeps all.
    """

    def __init__(self, roots: Sequence[nn.Module], layers: Sequence[int] | None) -> None:
        self.tape = Tape()
        self.depth = 0
        self._trace = _BlockTrace(roots, self.tape)
        self._kept: dict[int, Tensor] = {}
        from_end = None if layers is None else max((-layer - 1 for layer in layers), default=0)
        self._last: deque[tuple[int, Tensor]] = deque(maxlen=None if from_end is None else max(from_end, 0))
        self._first = set(layers or ())
        self._problem: str | None = None
        self._resources = ExitStack()
        self._shape = (0, 0)

    def __enter__(self) -> Self:
        with ExitStack() as resources:
            resources.enter_context(self._trace)
            resources.enter_context(self.tape)
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._resources.close()

    def update(self, record: AttentionRecord, layout: TokenLayout) -> None:
        """Take the next layer: what its block was given is what the layer before it left."""
        problem = self._trace.enter_block(record)
        self._problem = self._problem or problem
        self._shape = record.attention.shape[0], record.attention.shape[-1]
        self.depth = record.layer + 1
        given = self._trace.given
        if record.layer and given is not None:
            self._keep(record.layer - 1, given)

    def after(self, layer: int) -> Tensor:
        """(B, N, D) tokens after a layer.

        Raises:
            ArgumentError: If there is no such layer.
            UnsupportedModelError: If the model has no blocks that tokens go through one by one.
        """
        if not -self.depth <= layer < self.depth:
            raise ArgumentError(f"layer: no self-attention layer {layer}; the explained layers are {self.depth}")
        index = layer % self.depth
        tokens = self.tape.source if index == self.depth - 1 else self._kept.get(index, dict(self._last).get(index))
        if self.tape.mixes:
            self._problem = "they are combined with other tokens behind the last block"
        if tokens is None or tokens.shape[:2] not in (self._shape, self._shape[::-1]):
            seen = "none" if tokens is None else f"a tensor {tuple(tokens.shape)}"
            self._problem = self._problem or f"expected {self._shape} of them around layer {layer}, got {seen}"
        if self._problem is not None or tokens is None:
            raise UnsupportedModelError(f"forward_func: its tokens between layers could not be told: {self._problem}")
        return tokens.detach() if tokens.shape[:2] == self._shape else tokens.detach().transpose(0, 1)

    def head(self, forward: ForwardPass) -> Head:
        """The model's own norm and head as a function of tokens (B, M, D) to logits (B, M, classes).

        Raises:
            UnsupportedModelError: If what follows the last block does not answer single tokens, or does not
                reproduce the model's logits.
        """
        assert forward.logits is not None  # a target was found in them
        last = self.after(-1)
        program = self.tape.program(forward.logits)
        if program is None:
            raise UnsupportedModelError(f"forward_func: its output is not computed from its last block; {_ADVICE}")
        if len(last) == 1 and any(self._trace.made(constant) for constant in program.constants()):
            raise UnsupportedModelError(
                f"forward_func: its output depends on more of the sample than its last block; {_ADVICE}"
            )
        sequence_first = self.tape.source is not None and self.tape.source.shape[:2] != self._shape
        tail = _Tail(program, last[:, : forward.layout.num_prefix], sequence_first)
        tail.check(last, forward.layout.cls_index, forward.logits)
        return tail

    def _keep(self, layer: int, tokens: Tensor) -> None:
        if layer in self._first:
            self._kept[layer] = tokens
        elif self._last.maxlen != 0:
            self._last.append((layer, tokens))


class _Tail:
    """The operations behind the last block, applied to tokens one by one.

    A token is shown alone: to a sequence of all prefix tokens and one patch, each of them that token.
    """

    def __init__(self, program: Program, prefix: Tensor, sequence_first: bool) -> None:
        self._program = program
        self._prefix = prefix
        self._length = prefix.shape[1] + 1
        self._sequence_first = sequence_first

    def __call__(self, tokens: Tensor) -> Tensor:
        alone = tokens.unsqueeze(2).expand(-1, -1, self._length, -1)
        return self._answers(alone)

    def check(self, last: Tensor, cls: int | None, logits: Tensor) -> None:
        """Refuse a tail that does not answer with the model's logits where it is given what the model read.

        That is the class token, the mean of the patches, or the mean of the answers that patches give, each behind
        the prefix tokens: which is all the same for a model that reads its prefix tokens alone.
        """
        patches = last[:, self._length - 1 :]
        pooled = patches.mean(1, keepdim=True)
        read = pooled if cls is None else torch.cat([last[:, cls : cls + 1], pooled], 1)
        if any(_agree(answer, logits) for answer in self(read).unbind(1)):
            return
        if not _agree(self._answers(self._behind_prefix(patches)).mean(1), logits):
            raise UnsupportedModelError(
                "forward_func: what follows its last block is not a norm and a head on the class token or on the mean "
                f"of the patches: run on them, it does not give the model's logits; {_ADVICE}"
            )

    def _behind_prefix(self, patches: Tensor) -> Tensor:
        """(B, M, 1 + prefix, D): each patch alone behind the prefix tokens of its sample."""
        prefix = self._prefix.unsqueeze(1).expand(-1, patches.shape[1], -1, -1)
        return torch.cat([prefix, patches.unsqueeze(2)], 2)

    def _answers(self, sequences: Tensor) -> Tensor:
        """(B, M, L, D) sequences to (B, M, classes)."""
        batch, count = sequences.shape[:2]
        flat = sequences.flatten(0, 1).contiguous()
        try:
            answers = self._program(flat.transpose(0, 1) if self._sequence_first else flat)
        except (RuntimeError, LookupError, ValueError, TypeError) as error:
            raise UnsupportedModelError(
                f"forward_func: what follows its last block does not run on single tokens ({error}); {_ADVICE}"
            ) from error
        if answers.shape[:1] != (batch * count,) or answers.ndim > 2:
            raise UnsupportedModelError(
                f"forward_func: what follows its last block gives {tuple(answers.shape)} for {batch * count} single "
                f"tokens, expected (tokens, classes); {_ADVICE}"
            )
        return answers.reshape(batch, count, -1)


class _BlockTrace(ModuleTrace):
    """Knows the block that runs, and starts the tape at the output of each."""

    def __init__(self, roots: Sequence[nn.Module], tape: Tape) -> None:
        super().__init__(roots)
        self.block = ""
        self._tape = tape
        self._previous = ""
        self._level: int | None = None

    @property
    def given(self) -> Tensor | None:
        """The tokens that the running block was given."""
        return next((_tokens(call) for call in self.stack if self._in_block(call.path)), None)

    def made(self, constant: Tensor) -> bool:
        """Whether a tensor that fits one sample was computed in the call: it shares no memory with the model."""
        if constant.ndim < 2 or constant.shape[0] != 1 or isinstance(constant, nn.Parameter):
            return False
        stored = {x.untyped_storage().data_ptr() for m in self._roots for x in (*m.parameters(), *m.buffers())}
        return constant.untyped_storage().data_ptr() not in stored

    def enter_block(self, record: AttentionRecord) -> str | None:
        """Note which numbered module this attention runs in; returns what is wrong with it."""
        path, previous, self._previous = record.path, self._previous, record.path
        parts = path.split(".")
        level = len(record.stream.split(".")) if record.stream else 0
        if previous and previous != path:
            level = _first_difference(parts, previous.split("."))
            expected, self._level = self._level, level
            if not parts[level : level + 1] or not parts[level][-1].isdigit() or expected not in (None, level):
                return f"{previous!r} and {path!r} are not attentions of one block each"
        self.block = ".".join(parts[: level + 1])
        self._tape.paused = True
        return None

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        super()._enter(module, args)
        self._tape.paused = self._runs()

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        call = self.stack[-1] if self.stack else None
        super()._leave(module, args, output)
        self._tape.paused = self._runs()
        if call is None or call in self.stack or self._tape.paused or not self._in_block(call.path):
            return
        given, left = _tokens(call), output[0] if isinstance(output, (tuple, list)) and output else output
        if given is not None and isinstance(left, Tensor) and left.shape == given.shape:
            self._tape.begin(left, given)

    def _runs(self) -> bool:
        return any(self._in_block(call.path) for call in self.stack)

    def _in_block(self, path: str) -> bool:
        return bool(self.block) and (path == self.block or path.startswith(f"{self.block}."))


def _tokens(call: Call) -> Tensor | None:
    return next((x for x in call.args if x.ndim == 3), None)


def own_head(head: Head, tokens: Tensor, logits: Tensor | None) -> Tensor:
    """Logits (B, M, classes) that a given head has for tokens (B, M, D).

    Raises:
        ArgumentError: If it fails, or answers with another shape.
    """
    try:
        with undisturbed(head):
            answers = head(tokens)
    except XattnError:
        raise
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise ArgumentError(f"head: it failed on tokens of shape {tuple(tokens.shape)}: {error}") from error
    classes = None if logits is None else logits.shape[1:].numel()
    if not isinstance(answers, Tensor) or answers.shape != (*tokens.shape[:-1], classes):
        seen = tuple(answers.shape) if isinstance(answers, Tensor) else type(answers).__name__
        raise ArgumentError(
            f"head: expected (..., {classes}) logits for tokens of shape {tuple(tokens.shape)}, got {seen}"
        )
    return answers


def _agree(answers: Tensor, logits: Tensor) -> bool:
    logits = logits.detach().reshape(answers.shape[0], -1)
    if answers.shape != logits.shape:
        return False
    tolerance = max(_TOLERANCE, 4 * torch.finfo(logits.dtype).eps)
    wide = torch.promote_types(logits.dtype, torch.float32)
    error, size = (answers.to(wide) - logits.to(wide)).abs().max(), logits.abs().max().to(wide)
    return bool(error <= tolerance * size.clamp_min(1))


def _first_difference(parts: Sequence[str], others: Sequence[str]) -> int:
    pairs = enumerate(zip(parts, others, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(parts), len(others)))
