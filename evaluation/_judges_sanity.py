"""Judges of whether a map depends on model and class, is stable, simple and faithful; with ROAD and average drop."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from xattn.attributions import TransformerAttribution
from xattn.errors import ArgumentError
from xattn.evaluation._ranking import ALL_FRACTIONS
from xattn.evaluation._scores import Score
from xattn.evaluation.complexity import complexity, sparseness
from xattn.evaluation.judges import BOTH, Judge, Measured, Orders, metric, register
from xattn.evaluation.protocols import average_drop_increase, road
from xattn.evaluation.sanity import Mode, infidelity, parameter_randomization, random_logit, sensitivity_max

if TYPE_CHECKING:
    from xattn.evaluation._chunk import Chunk


def judge_road(
    chunk: "Chunk",
    relevance: Tensor,
    *,
    orders: Orders = BOTH,
    fractions: Sequence[float] = ALL_FRACTIONS[1:-1],
    score: Score = "accuracy",
) -> Mapping[str, Measured]:
    """`road` in both orders, with normalised areas."""
    measured: dict[str, Measured] = {}
    for order in orders:
        curve = road(
            chunk.shared,
            chunk.inputs,
            relevance,
            chunk.target,
            order=order,
            fractions=fractions,
            score=score,
            seed=chunk.seed,
            batch_size=chunk.batch_size,
        )
        measured[order] = Measured.of(curve)
    return measured


def judge_average_drop(chunk: "Chunk", relevance: Tensor) -> Mapping[str, Measured]:
    """`average_drop_increase`."""
    found = average_drop_increase(
        chunk.shared,
        chunk.inputs,
        relevance,
        chunk.target,
        mean=chunk.mean,
        std=chunk.std,
        batch_size=chunk.batch_size,
    )
    return {f"average_{name}": Measured(found[name], found["undefined"]) for name in ("drop", "increase")}


def judge_complexity(chunk: "Chunk", relevance: Tensor) -> Mapping[str, Measured]:
    """`sparseness` and `complexity` of the map."""
    return {"sparseness": Measured(sparseness(relevance)), "complexity": Measured(complexity(relevance))}


def judge_randomization(chunk: "Chunk", relevance: Tensor, *, mode: Mode = "cascading") -> Mapping[str, Measured]:
    """`parameter_randomization`: mean rank correlation over its steps, and the curve."""
    method = _own(chunk)

    def explain(module: nn.Module, inputs: Tensor, target: Tensor) -> Tensor:
        shaken = copy.copy(method)
        shaken.forward_func = replace(chunk.forward, module=module)
        return _map(shaken, inputs, target, chunk.batch_size)

    found = parameter_randomization(
        explain,
        chunk.forward.module,
        chunk.inputs,
        chunk.target,
        mode=mode,
        seed=chunk.seed,
        batch_size=chunk.batch_size,
    ).similarity
    steps = torch.arange(1, found.shape[1] + 1, dtype=found.dtype) / found.shape[1]
    return {"parameter_randomization": Measured(found.mean(1), fractions=steps, curves=found)}


def judge_random_logit(chunk: "Chunk", relevance: Tensor) -> Mapping[str, Measured]:
    """`random_logit`: rank correlation with the map of another class."""
    found = random_logit(
        lambda _, target: chunk.attribute(target),
        chunk.inputs,
        chunk.target,
        chunk.clean.shape[1],
        seed=chunk.seed,
    )
    return {"random_logit": Measured(found)}


def judge_sensitivity(
    chunk: "Chunk", relevance: Tensor, *, radius: float = 0.02, samples: int = 10
) -> Mapping[str, Measured]:
    """`sensitivity_max`."""
    method = _own(chunk)
    found = sensitivity_max(
        lambda inputs, target: _map(method, inputs, target, chunk.batch_size),
        chunk.inputs,
        chunk.target,
        radius=radius,
        samples=samples,
        seed=chunk.seed,
    )
    return {"sensitivity_max": Measured(found)}


def judge_infidelity(
    chunk: "Chunk", relevance: Tensor, *, noise: float = 0.1, samples: int = 50
) -> Mapping[str, Measured]:
    """`infidelity`, with the best scaling of the map."""
    found = infidelity(
        chunk.forward,
        chunk.inputs,
        relevance,
        chunk.target,
        noise=noise,
        samples=samples,
        seed=chunk.seed,
        batch_size=chunk.batch_size,
    )
    return {"infidelity": Measured(found)}


def _own(chunk: "Chunk") -> TransformerAttribution:
    if not isinstance(chunk.method, TransformerAttribution):
        raise ArgumentError(
            f"protocols: it explains other inputs and models, which needs methods of xattn; got {chunk.method!r}"
        )
    return chunk.method


def _map(method: TransformerAttribution, inputs: Tensor, target: Tensor, batch_size: int) -> Tensor:
    relevance: Tensor = method.attribute(inputs, target=target, resolution="patch", internal_batch_size=batch_size)
    return relevance


_ROAD = tuple(metric(order, f"road_{order}") for order in BOTH)

register(Judge("road", judge_road, _ROAD, random=True, partial=True))
register(Judge("average-drop", judge_average_drop, (metric("average_drop"), metric("average_increase"))))
register(Judge("complexity", judge_complexity, (metric("sparseness"), metric("complexity"))))
register(Judge("randomization", judge_randomization, (metric("parameter_randomization"),), random=True))
register(Judge("random-logit", judge_random_logit, (metric("random_logit"),), random=True))
register(Judge("sensitivity", judge_sensitivity, (metric("sensitivity_max"),), random=True))
register(Judge("infidelity", judge_infidelity, (metric("infidelity"),), random=True))
