"""Protocols by name, as the runner and the command line know them.

A judge is a small function from a chunk of samples and their relevance to measured values. One of your own is one
function and one `register`:

    def judge_area(chunk, relevance):
        return {"area": Measured((relevance > 0).double().mean((1, 2)))}

    register(Judge("area", judge_area, (Metric("area", False, (0, 1), False, False, "part with relevance"),)))
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor

from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.evaluation._curve import Convention, Curve
from xattn.evaluation.fill import RANDOM_FILLS
from xattn.evaluation.metrics import METRICS, Metric

if TYPE_CHECKING:
    from xattn.evaluation._chunk import AnyChunk


_ROUNDING = 1e-5  # how far a value may lie out of its range


@dataclass(frozen=True, eq=False)
class Measured:
    """One metric of each sample.

    Attributes:
        values: (B,) numbers; NaN where undefined.
        undefined: (B,) bool, samples whose map cannot be judged; by default where `values` is NaN.
        constant: (B,) bool, samples whose map has one value only, so that position alone ranks it.
        fractions: (S,) x-axis of the curve, if there is one.
        curves: (B, S).
    """

    values: Tensor
    undefined: Tensor | None = None
    constant: Tensor | None = None
    fractions: Tensor | None = None
    curves: Tensor | None = None

    @classmethod
    def of(cls, curve: Curve, convention: Convention = "normalized") -> "Measured":
        """The area under a curve, with the curve."""
        return cls(curve.auc(convention), curve.undefined, curve.constant, curve.fractions, curve.values)

    def shapes(self, samples: int) -> dict[str, tuple[int, ...]]:
        """What shape each part that is given has to have for B samples."""
        steps = self.fractions.numel() if isinstance(self.fractions, Tensor) else 0
        flat = dict.fromkeys(("values", "undefined", "constant"), (samples,))
        expected = {**flat, "fractions": (steps,), "curves": (samples, steps)}
        return {part: shape for part, shape in expected.items() if part == "values" or getattr(self, part) is not None}


Orders: TypeAlias = Sequence[Literal["positive", "negative"]]
BOTH: Orders = ("positive", "negative")

JudgeFunction: TypeAlias = Callable[..., Mapping[str, Measured]]


@dataclass(frozen=True)
class Judge:
    """A protocol with its options.

    Attributes:
        name: On the command line and in tables.
        function: (chunk, relevance, **options) to measured values by metric.
        metrics: What it measures, in the order of tables.
        options: Keyword arguments that differ from the function's defaults.
        needs_mask: Whether samples must have masks.
        needs_objects: Whether samples must have two objects with masks of their own.
        reads: What the samples are: "pictures" or "text".
        random: Whether it draws random numbers, whatever its options. A `fill` that draws some is recognised.
        counts: Names of measured values that are no scores, such as pixel counts; they are stored, not shown.
        partial: Whether it may measure fewer than its metrics, because options choose some or counts make them up.
    """

    name: str
    function: JudgeFunction
    metrics: tuple[Metric, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    needs_mask: bool = False
    needs_objects: bool = False
    counts: tuple[str, ...] = ()
    reads: Literal["pictures", "text"] = "pictures"
    random: bool = False
    partial: bool = False

    @property
    def is_random(self) -> bool:
        """Whether values depend on the seed, maps aside."""
        options = {**_options(self.function), **self.options}
        return self.random or any(options[name] in RANDOM_FILLS for name in options if name.endswith("fill"))

    @property
    def is_foreign(self) -> bool:
        """Whether the function is not one of xattn."""
        return not self.function.__module__.startswith("xattn.")

    def configured(self, **options: Any) -> "Judge":  # noqa: ANN401
        """The same protocol with other options.

        Raises:
            ArgumentError: If it has no such option.
        """
        known = _options(self.function)
        for name in options:
            if name not in known:
                raise ArgumentError(f"protocols: {self.name} has no option {name!r}; it has {', '.join(known)}")
        return replace(self, options={**self.options, **options})

    def configuration(self) -> dict[str, Any]:
        """Name and all options, defaults included; with the source of functions that are not of xattn."""
        facts = {"protocol": self.name, **_options(self.function), **self.options}
        if self.is_foreign:
            facts["function"] = _source(self.function)
        return facts

    def __call__(self, chunk: "AnyChunk", relevance: Tensor) -> Mapping[str, Measured]:
        """Measure one chunk.

        Raises:
            ArgumentError: If the function measures other metrics than it declares, other samples than the chunk's, or
                values out of a metric's range.
            ArgumentTypeError: If it returns no mapping of metrics to `Measured`.
        """
        if self.is_foreign:
            chunk, relevance = chunk.copy(), relevance.clone()  # it may write into what it is given
        try:
            measured = self.function(chunk, relevance, **self.options)
        except Exception as error:
            error.add_note(f"protocol {self.name!r}, samples {chunk.samples[0].name} to {chunk.samples[-1].name}")
            raise
        return self._checked(measured, len(chunk.samples))

    def _checked(self, measured: object, samples: int) -> Mapping[str, Measured]:
        """What the function returned, refused by the protocol's name if it is not what it has to return."""
        expected = f"protocol: {self.name!r} must return a mapping of metrics to Measured with values ({samples},)"
        if not isinstance(measured, Mapping):
            raise ArgumentTypeError(f"{expected}, got {_described(measured)}")
        names = [*(metric.name for metric in self.metrics), *self.counts]
        missing = bool(set(names) - set(measured)) and not self.partial
        if missing or not measured or set(measured) - set(names):
            got = ", ".join(map(repr, measured)) or "none"
            raise ArgumentError(f"{expected}; the metrics declared are {', '.join(map(repr, names))}, got {got}")
        for name, found in measured.items():
            if not isinstance(found, Measured):
                raise ArgumentTypeError(f"{expected}, got {_described(found)} for {name!r}")
            for part, shape in found.shapes(samples).items():
                value = getattr(found, part)
                if not isinstance(value, Tensor):
                    raise ArgumentTypeError(f"{expected}, got {_described(value)} as {part} of {name!r}")
                if tuple(value.shape) != shape:
                    raise ArgumentError(f"{expected}; expected {part} {shape} of {name!r}, got {tuple(value.shape)}")
                if part in ("undefined", "constant") and value.dtype != torch.bool:
                    raise ArgumentTypeError(f"{expected}; expected {part} of {name!r} to be bool, got {value.dtype}")
                if value.is_complex():
                    raise ArgumentTypeError(f"{expected}, got {value.dtype} as {part} of {name!r}")
        if self.is_foreign:  # those of xattn may have another range by their options, as `score="logit"`
            for about in self.metrics:
                if about.name in measured:
                    self._check_range(about, measured[about.name].values)
        return measured

    def _check_range(self, about: Metric, values: Tensor) -> None:
        known, (low, high) = values[~values.isnan()].cpu().double(), about.range
        if not bool(((known >= low - _ROUNDING) & (known <= high + _ROUNDING)).all()):
            raise ArgumentError(
                f"protocol: {self.name!r} declares {about.name!r} to lie in {low:g}..{high:g}, got values in "
                f"{float(known.min()):g}..{float(known.max()):g}"
            )


JUDGES: dict[str, Judge] = {}
"""Every protocol by name."""


def register(judge: Judge) -> Judge:
    """Make a protocol known by its name.

    Raises:
        ArgumentError: If the name is taken.
        ArgumentTypeError: If it is no Judge.
    """
    if not isinstance(judge, Judge):
        raise ArgumentTypeError(f"judge: expected a Judge, got {judge!r}")
    if judge.name in JUDGES:
        raise ArgumentError(f"name: there is a protocol {judge.name!r} already")
    JUDGES[judge.name] = judge
    return judge


def find_judge(protocol: str | Judge) -> Judge:
    """A protocol by its name; one that is configured already stays as it is.

    Raises:
        ArgumentError: If there is none of that name; the message lists them.
        ArgumentTypeError: If it is neither.
    """
    if isinstance(protocol, Judge):
        return protocol
    if not isinstance(protocol, str):
        raise ArgumentTypeError(f"protocols: expected names or Judge objects, got {protocol!r}")
    wanted = protocol.strip().lower().replace("_", "-")
    if wanted not in JUDGES:
        raise ArgumentError(f"protocol: expected one of {', '.join(JUDGES)}; got {protocol!r}")
    return JUDGES[wanted]


def metric(name: str, known: str = "") -> Metric:
    """A metric of the registry under its own name or another one."""
    return replace(METRICS[known or name], name=name)


def _described(value: object) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.60}"


def _options(function: JudgeFunction) -> dict[str, Any]:
    parameters = list(inspect.signature(function).parameters.values())[2:]
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def _source(function: JudgeFunction) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return function.__qualname__
