"""What the methods that propagate relevance share: the recorded forward, the convergence delta, the precision."""

import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from captum.log import log_usage
from torch import Tensor

from xattn._layers import Layers
from xattn.attributions._forward import ForwardPass, Reducer, Request
from xattn.attributions._resolution import Interpolation, Resolution
from xattn.attributions._targets import Target
from xattn.attributions.base import TensorOrTuple, TransformerAttribution, as_args, check_inputs
from xattn.errors import ArgumentError, PrecisionWarning, UnsupportedModelError
from xattn.layout import TokenLayout
from xattn.relevance import Account, Recording, RuleSet
from xattn.relevance.rule_set import ensure_rule_set

Precision: TypeAlias = Literal["float32", "float64"] | None

_DTYPES = {None: torch.float32, "float32": torch.float32, "float64": torch.float64}

# Weights of the two kinds of noise in an estimate of the relative error, measured against float64 on random
# transformers: errors of a tenth were always noticed, and one sample in thirty was suspected.
_FROM_FLIPS = 0.3
_NOISY = 0.03


class RelevanceAttribution(TransformerAttribution):
    """Base of the methods that propagate relevance: one recorded forward, and passes back through it.

    Half precision models are computed in float32, and autocast is off. The published rules divide by sums that can be
    near zero; where rounding may have decided the result a `PrecisionWarning` says so, and `precision="float64"`
    settles it, unless the weights themselves were rounded to half precision. The model itself is not converted.

    Args:
        forward_func: Module or callable that returns logits.
        rules: Rule set or its name: "transinterp", "lrp", "attnlrp", "epsilon".
        layers: Which attention layers are kept.
        layout: Roles of the tokens.
        precision: Lowest precision of the computation, "float32" (default) or "float64".
    """

    family = "relevance"
    _from_sums: ClassVar[float] = 1.0  # maps of attention are decided in late layers, before most rounding enters
    is_class_specific = True
    needs_gradient = True
    shares_forward = False  # it is recorded
    backwards = 1

    def __init__(
        self,
        forward_func: Callable[..., Any],
        *,
        rules: str | RuleSet,
        layers: Layers = "all",
        layout: TokenLayout | None = None,
        precision: Precision = None,
    ) -> None:
        super().__init__(forward_func, layers=layers, layout=layout)
        if precision not in _DTYPES:
            raise ArgumentError(f'precision: expected "float32", "float64" or None, got {precision!r}')
        self.rules = ensure_rule_set(rules)
        self.precision = precision
        self._recording: Recording | None = None
        self._deltas: list[Tensor] | None = None

    def has_convergence_delta(self) -> bool:
        """Whether `attribute` can say how much relevance was lost: yes."""
        return True

    @log_usage()  # type: ignore[untyped-decorator]
    def attribute(
        self,
        inputs: TensorOrTuple,
        target: Target = None,
        additional_forward_args: Any = None,  # noqa: ANN401
        *,
        return_convergence_delta: bool = False,
        resolution: Resolution = "input",
        interpolation: Interpolation = "nearest",
        internal_batch_size: int | None = None,
    ) -> TensorOrTuple | tuple[TensorOrTuple, Tensor]:
        """Relevance of the inputs for each sample; see `TransformerAttribution.attribute`.

        Args:
            inputs: As there.
            target: As there.
            additional_forward_args: As there.
            return_convergence_delta: Return a pair, with for each sample (B,) the relevance that arrived at the input
                (the embedding, for token ids) minus the relevance that it started with.
            resolution: As there.
            interpolation: As there.
            internal_batch_size: As there.
        """
        call = copy(self)  # what belongs to one call stays with it
        call._deltas = [] if return_convergence_delta else None
        relevance = super(RelevanceAttribution, call).attribute(
            inputs,
            target,
            additional_forward_args,
            resolution=resolution,
            interpolation=interpolation,
            internal_batch_size=internal_batch_size,
        )
        return relevance if call._deltas is None else (relevance, torch.cat(call._deltas))

    def account(
        self,
        inputs: Tensor,
        target: Target = None,
        additional_forward_args: Any = None,  # noqa: ANN401
    ) -> Account:
        """Where relevance goes under this method's rules, on its way from the score to the input.

        Take `precision="float64"`: rules that do not conserve let relevance grow until float32 sums mean little.

        Args:
            inputs: As in `attribute`.
            target: As in `attribute`.
            additional_forward_args: As in `attribute`.

        Raises:
            ArgumentError: For everything that `attribute` refuses.
        """
        call = copy(self)
        tensor, _ = check_inputs(inputs)
        with torch.inference_mode(False), torch.no_grad():
            forward = call._forward(tensor, target, as_args(additional_forward_args), None)
            recording, score = call._followed(forward)
            return recording.account(score, self.rules, retain_graph=False)

    def _request(self, reducer: Reducer | None) -> Request:
        return replace(super()._request(reducer), around=self._recording)

    def _forward(
        self, inputs: Tensor, target: Target, additional_args: tuple[Any, ...], reducer: Reducer | None
    ) -> ForwardPass:
        self._recording = Recording(inputs, precision=_DTYPES[self.precision])
        recorded = inputs if self._recording.input is None else self._recording.input
        return replace(super()._forward(recorded, target, additional_args, reducer), inputs=inputs)

    def _relevance(self, forward: ForwardPass, reducer: Any) -> Tensor:  # noqa: ANN401
        recording, score = self._followed(forward)
        with torch.autocast(forward.inputs.device.type, enabled=False):
            relevance = self._read(forward, recording, score)
        if self._is_noisy(recording):
            rounded = recording.ledger.weights or recording.computed_in
            advice = 'use precision="float64"'
            if recording.ledger.weights is not None:
                advice = "load the model in float32, whose digits no precision brings back, or use AttnLRP"
            warnings.warn(
                f"{type(self).__name__}: relevance passed through sums that nearly cancel, so rounding to "
                f"{str(rounded).removeprefix('torch.')} may have decided the result; {advice}",
                PrecisionWarning,
                stacklevel=6,
            )
        return relevance

    def _followed(self, forward: ForwardPass) -> tuple[Recording, Tensor]:
        """The recording of the forward call, and the score whose relevance can be followed to the input."""
        recording = self._recording
        assert recording is not None  # _forward made it
        self._recording = None  # the graph goes with this call
        with torch.enable_grad():
            score = forward.score()
        if recording.input is None or not score.requires_grad:
            raise UnsupportedModelError(
                "forward_func: the output was not computed from the inputs by operations that can be followed; token "
                "ids must reach torch.nn.functional.embedding as they are, and gradients must not be cut"
            )
        return recording, score

    def _is_noisy(self, recording: Recording) -> bool:
        """Whether rounding is estimated to have moved a sample's map by some percent."""
        ledger = recording.ledger
        return bool((self._from_sums * ledger.sums + _FROM_FLIPS * ledger.flips > _NOISY).any())

    def _propagate(self, recording: Recording, score: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Relevance of `tensors`; what arrives at the input is noted where it was asked for."""
        assert recording.input is not None  # _followed checked
        asked = tensors if self._deltas is None else [*tensors, recording.input]
        found = recording.relevance(score, asked, self.rules, retain_graph=False)
        if not any(bool(relevance.any()) for relevance in found[: len(tensors)]):
            where = "attention" if self.level == "token" else "input"
            raise UnsupportedModelError(
                f"forward_func: no relevance arrived at the {where}; the score does not depend on it, or a detach() in "
                "the model is in the way"
            )
        if self._deltas is not None:
            started = self.rules.start_value(score.detach())
            self._deltas.append(found[-1].flatten(1).sum(1) - started.to(found[-1].device))
        return tuple(found[: len(tensors)])

    @abstractmethod
    def _read(self, forward: ForwardPass, recording: Recording, score: Tensor) -> Tensor:
        """Relevance of tokens (B, N), or of the inputs where `level` is "pixel"."""
