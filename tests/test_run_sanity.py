"""Sanity checks, ROAD, average drop and complexity in runs: the rows are those of direct calls."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from run_models import Painted, tiny, values

from xattn.attributions import PredictionMap
from xattn.errors import ArgumentError
from xattn.evaluation import (
    average_drop_increase,
    benchmark,
    complexity,
    infidelity,
    load_dataset,
    parameter_randomization,
    random_logit,
    road,
    sensitivity_max,
    sparseness,
)

SCENES = load_dataset("demo", n=3, seed=5)
PROTOCOLS = ["road", "average-drop", "complexity", "randomization", "random-logit", "sensitivity", "infidelity"]


def test_rows_are_those_of_direct_calls(tmp_path):
    model = tiny()
    rows = benchmark(model, SCENES, "prediction_map", PROTOCOLS, tmp_path, seed=4).rows
    x = torch.stack([sample.image for sample in SCENES.samples(model)])
    target = model(x).argmax(1)

    def explain(inputs, index, forward=model):
        return PredictionMap(forward).attribute(inputs, target=index, resolution="patch")

    def explain_module(module, inputs, index):
        return explain(inputs, index, replace(model, module=module))

    maps = explain(x, target)
    drop = average_drop_increase(model, x, maps, target)
    randomized = parameter_randomization(explain_module, model.module, x, target, seed=4).similarity
    expected = {
        ("road", "positive"): road(model, x, maps, target, seed=4).auc(),
        ("road", "negative"): road(model, x, maps, target, seed=4, order="negative").auc(),
        ("average-drop", "average_drop"): drop["drop"],
        ("average-drop", "average_increase"): drop["increase"],
        ("complexity", "sparseness"): sparseness(maps),
        ("complexity", "complexity"): complexity(maps),
        ("randomization", "parameter_randomization"): randomized.mean(1),
        ("random-logit", "random_logit"): random_logit(explain, x, target, 5, seed=4),
        ("sensitivity", "sensitivity_max"): sensitivity_max(explain, x, target, seed=4),
        ("infidelity", "infidelity"): infidelity(model, x, maps, target, seed=4),
    }
    for (protocol, metric), wanted in expected.items():
        found = list(values(rows, "prediction_map", protocol, metric).values())
        np.testing.assert_allclose(found, wanted.detach().double().numpy(), atol=1e-5, err_msg=protocol)
    curves = values(rows, "prediction_map", "randomization", column="curve")
    np.testing.assert_allclose(list(curves.values()), randomized.numpy(), atol=1e-5)


def test_randomisation_is_repeated_for_several_seeds(tmp_path):
    results = benchmark(tiny(), SCENES, "raw_attention", "randomization", tmp_path, seeds=2)
    (cell,) = results.table(resamples=20).cells.values()
    assert (cell.seeds, cell.deviation > 0) == (2, True)


def test_methods_of_other_libraries_are_refused_where_other_models_are_explained(tmp_path):
    with pytest.raises(ArgumentError, match="needs methods of xattn"):
        benchmark(tiny(), SCENES, {"painted": Painted()}, "randomization", tmp_path)
