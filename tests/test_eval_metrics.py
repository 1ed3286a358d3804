"""The registry says what metrics do: direction and range are checked on maps of known quality."""

import dataclasses

import pytest
import torch
from torch import nn

from xattn import evaluation as ev
from xattn.evaluation import METRICS

SIDE = 8


class Detector(nn.Module):
    """Two classes, each the brightness of one corner."""

    def forward(self, x):
        corners = torch.stack([x[:, :, :4, :4], x[:, :, 4:, 4:]], 1)
        return 12 * corners.mean((2, 3, 4)) - 3


def scenes(batch=6):
    generator = torch.Generator().manual_seed(0)
    x = 0.1 + 0.05 * torch.rand(batch, 3, SIDE, SIDE, generator=generator)
    x[:, :, :4, :4] += 0.8
    x[:, :, 4:, 4:] += 0.5
    first = torch.zeros(batch, SIDE, SIDE, dtype=torch.long)
    first[:, :4, :4] = 1
    noise = torch.rand(batch, SIDE, SIDE, generator=generator)
    return x, first, noise


def of_mask(name):
    return lambda x, mask, r: ev.segmentation_scores(r, mask)[name]


def area(protocol, **options):
    return lambda x, mask, r: protocol(Detector(), x, r, 0, **options).auc()


def discrimination(x, mask, r):
    return ev.class_discrimination(r, r.flip(1, 2), mask, mask.flip(1, 2))["both"]


COMPUTE = {
    "perturbation_positive": area(ev.perturbation),
    "perturbation_negative": area(ev.perturbation, order="negative"),
    "deletion": area(ev.deletion),
    "insertion": area(ev.insertion, fill="black"),
    "road_positive": area(ev.road, score="probability"),
    "road_negative": area(ev.road, score="probability", order="negative"),
    "token_masking_positive": area(ev.token_masking, grid=(4, 4)),
    "token_masking_negative": area(ev.token_masking, grid=(4, 4), order="negative"),
    "average_drop": lambda x, mask, r: ev.average_drop_increase(Detector(), x, r, 0)["drop"],
    "average_increase": lambda x, mask, r: ev.average_drop_increase(Detector(), x, r, 0)["increase"],
    "pointing_game": lambda x, mask, r: ev.pointing_game(r, mask),
    "relevance_mass": lambda x, mask, r: ev.relevance_mass(r, mask),
    "relevance_rank": lambda x, mask, r: ev.relevance_rank(r, mask),
    "class_discrimination": discrimination,
    **{n: of_mask(n) for n in ("accuracy", "iou", "miou_image", "f1", "f1_rows", "ap", "ap_two_class")},
    "miou_dataset": lambda x, mask, r: torch.tensor(
        [ev.segmentation_totals(ev.segmentation_scores(r, mask))["miou_dataset"]]
    ),
}
IDS = torch.arange(1, 9).repeat(6, 1)  # six sentences of six words between two special tokens
EVIDENCE = torch.tensor([0.0, 0.0, 2.5, -1.0, -0.8, 1.0, 0.2, 0.1, 0.0])


def bag(ids, mask):
    """The second class's logit is the sum of what the words say for it."""
    return torch.stack([torch.zeros(len(ids)), (EVIDENCE[ids] * mask).sum(1)], 1)


def removal(**options):
    return lambda r: ev.token_removal(bag, IDS, torch.ones_like(IDS), r, 1, **options).auc()


TEXT = {
    "removal_positive": removal(),
    "removal_negative": removal(order="negative"),
    "comprehensiveness": lambda r: ev.comprehensiveness(bag, IDS, torch.ones_like(IDS), r, 1),
    "sufficiency": lambda r: ev.sufficiency(bag, IDS, torch.ones_like(IDS), r, 1),
    "rationale_hit": lambda r: ev.rationale_hit(list(r[:, 1:-1]), [[0]] * len(r)),
}
NOT_RANKED = {"parameter_randomization", "random_logit", "sensitivity_max", "infidelity", "sparseness", "complexity"}


def test_every_metric_is_checked():
    assert set(COMPUTE) | set(TEXT) | NOT_RANKED == set(METRICS)
    assert all(name == metric.name for name, metric in METRICS.items())


@pytest.mark.parametrize("name", COMPUTE)
def test_direction_and_range(name):
    metric = METRICS[name]
    x, mask, noise = scenes()
    quality = [COMPUTE[name](x, mask, r) for r in (mask + 0.1 * noise, noise, 0.1 * noise - mask)]
    for values in quality:
        assert values.isfinite().all() or name == "relevance_mass"
        assert (values.nan_to_num() >= metric.range[0]).all()
        assert (values.nan_to_num() <= metric.range[1]).all()
    oracle, random, inverse = (values.double().nanmean().item() for values in quality)
    better = (lambda a, b: a > b) if metric.higher_is_better else (lambda a, b: a < b)
    assert oracle == random or better(oracle, random)
    if name == "average_drop":  # a random half of all pixels shows as little of the object as the wrong part does
        return
    assert better(oracle, inverse)
    if not name.startswith("road"):  # scattered pixels are imputed almost perfectly, so random orders keep the score
        assert random == inverse or better(random, inverse)


@pytest.mark.parametrize("name", TEXT)
def test_direction_and_range_on_sentences(name):
    metric = METRICS[name]
    noise = torch.rand(IDS.shape, generator=torch.Generator().manual_seed(0))
    oracle, random, inverse = (TEXT[name](r).double() for r in (EVIDENCE[IDS], noise, -EVIDENCE[IDS]))
    for values in (oracle, random, inverse):
        assert ((values >= metric.range[0]) & (values <= metric.range[1])).all()
    sign = 1 if metric.higher_is_better else -1
    assert sign * oracle.mean() > sign * random.mean() > sign * inverse.mean()


@pytest.mark.parametrize("name", ["perturbation_positive", "perturbation_negative", "deletion", "insertion"])
def test_curves_know_their_direction(name):
    protocol = {"deletion": ev.deletion, "insertion": ev.insertion}.get(name, ev.perturbation)
    options = {"order": "negative"} if name.endswith("negative") else {}
    x, mask, _ = scenes(1)
    assert protocol(Detector(), x, mask, **options).higher_is_better == METRICS[name].higher_is_better


def test_needs():
    assert {name for name, metric in METRICS.items() if metric.needs_mask} == {
        *("accuracy", "iou", "miou_image", "miou_dataset", "f1", "f1_rows", "ap", "ap_two_class"),
        *("pointing_game", "relevance_mass", "relevance_rank", "class_discrimination"),
    }


def test_metadata_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        METRICS["iou"].higher_is_better = False
    with pytest.raises(TypeError):
        METRICS["iou"] = METRICS["f1"]


def test_arrows():
    assert [METRICS[name].arrow for name in ("insertion", "deletion", "complexity")] == ["↑", "↓", ""]


def test_public_names():
    assert all(hasattr(ev, name) for name in ev.__all__)
    assert ev.stats.holm([0.5]).tolist() == [0.5]
    with pytest.raises(AttributeError, match="nothing"):
        ev.nothing  # noqa: B018
