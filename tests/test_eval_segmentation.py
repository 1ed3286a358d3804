"""Segmentation scores: the published values, scikit-learn and torchmetrics, and maps without a threshold."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from sklearn import metrics as sk

from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.evaluation import segmentation_scores, segmentation_totals
from xattn.evaluation.segmentation import otsu_threshold

FOLDER = Path(__file__).parent / "reference" / "metrics"
META = json.loads((FOLDER / "meta.json").read_text())["segmentation"]
INPUTS = load_file(FOLDER / "inputs.safetensors")
EXPECTED = load_file(FOLDER / "expected.safetensors")
SIDE = 12


def scene(batch=4, seed=0, side=SIDE):
    generator = torch.Generator().manual_seed(seed)
    relevance = torch.randn(batch, side, side, generator=generator)
    mask = (torch.rand(batch, side, side, generator=generator) < 0.4).long()
    mask[torch.rand(batch, side, side, generator=generator) < 0.1] = -1
    return relevance, mask


def reference(case):
    scores = segmentation_scores(INPUTS[f"seg.{case}.saliency"][None], INPUTS[f"seg.{case}.mask"][None])
    return scores, lambda key: EXPECTED[f"seg.{case}.{key}"]


@pytest.mark.parametrize("case", META["cases"])
def test_published_values(case):
    scores, expected = reference(case)
    tp, fp, fn, tn = (scores[name].item() for name in ("tp", "fp", "fn", "tn"))
    assert tp + tn == expected("pixel_correct").item()
    assert tp + fp + fn + tn == expected("pixel_labeled").item()
    assert [tn, tp] == expected("intersection").tolist()
    assert [tn + fp + fn, tp + fp + fn] == expected("union").tolist()
    assert scores["ap_two_class"].item() == pytest.approx(
        expected("ap").item(), abs=META["tolerances"]["ap_same_upsampling_arithmetic"]
    )
    if META["cases"][case]["row_f1_defined"]:
        assert scores["f1_rows"].item() == pytest.approx(expected("f1_mean_over_rows").item(), abs=1e-9)
    else:
        assert scores["f1_rows"].isnan()
    if not scores["undefined"]:
        assert scores["f1"].item() == pytest.approx(EXPECTED[f"derived.seg.{case}.f1_whole_image"].item(), abs=1e-9)


def test_published_totals():
    counted = [reference(case)[0] for case, about in META["cases"].items() if about["counted_in_totals"]]
    pooled = {name: torch.cat([scores[name] for scores in counted]) for name in counted[0]}
    totals = segmentation_totals(pooled, undefined="background")
    names = {"accuracy": "pixAcc", "miou_dataset": "mIoU", "ap_two_class": "mAP", "f1_rows": "mF1"}
    for ours, theirs in names.items():
        assert totals[ours] == pytest.approx(EXPECTED[f"seg.totals.{theirs}"].item(), abs=1e-9)
    assert [totals["iou_background"], totals["iou_foreground"]] == pytest.approx(EXPECTED["seg.totals.IoU"].tolist())
    assert totals["undefined"] == 3


@pytest.mark.parametrize("threshold", ["mean", "otsu", "best", 0.7])
def test_against_scikit_learn(threshold):
    relevance, mask = scene()
    relevance = (relevance * 3).round() / 3  # ties
    scores = segmentation_scores(relevance, mask, threshold=threshold)
    for i in range(len(mask)):
        used = mask[i] >= 0
        truth, score = mask[i][used].numpy(), relevance[i][used].numpy()
        cut = {
            "mean": relevance[i].mean().item(),
            "otsu": otsu_threshold(relevance[i : i + 1].flatten(1)).item(),
            "best": None,
            0.7: relevance[i].flatten().sort().values[int(0.7 * SIDE * SIDE) - 1].item(),
        }[threshold]
        if cut is None:
            cut = max(set(score.tolist()) | {-99.0}, key=lambda t: sk.f1_score(truth, score > t))
        prediction = score > cut
        assert scores["ap"][i].item() == pytest.approx(sk.average_precision_score(truth, score))
        assert scores["f1"][i].item() == pytest.approx(sk.f1_score(truth, prediction))
        assert scores["iou"][i].item() == pytest.approx(sk.jaccard_score(truth, prediction))
        assert scores["miou_image"][i].item() == pytest.approx(sk.jaccard_score(truth, prediction, average="macro"))
        assert scores["accuracy"][i].item() == pytest.approx(sk.accuracy_score(truth, prediction))


def test_against_torchmetrics():
    from torchmetrics.functional import classification as tm

    relevance, mask = scene(6)
    scores = segmentation_scores(relevance, mask)
    prediction = (relevance > relevance.mean((1, 2), keepdim=True)).long()
    totals = segmentation_totals(scores)
    whole = tm.multiclass_jaccard_index(prediction, mask, num_classes=2, average="macro", ignore_index=-1)
    assert totals["miou_dataset"] == pytest.approx(whole.item(), abs=1e-6)
    stats = tm.binary_stat_scores(prediction, mask, multidim_average="samplewise", ignore_index=-1)
    assert torch.equal(stats[:, :4], torch.stack([scores[name] for name in ("tp", "fp", "tn", "fn")], 1))
    for i in range(len(mask)):
        score = (relevance[i] - relevance[i].min()) / (relevance[i].max() - relevance[i].min())
        precision = tm.binary_average_precision(score, mask[i], ignore_index=-1)
        assert scores["ap"][i].item() == pytest.approx(precision.item(), abs=1e-6)


def test_data_set_and_image_miou_are_two_numbers():
    mask = torch.tensor([[[1, 0], [0, 0]], [[1, 1], [1, 0]]])
    relevance = torch.tensor([[[1.0, 1.0], [0, 0]], [[1.0, 1.0], [1.0, 0]]])
    totals = segmentation_totals(segmentation_scores(relevance, mask))
    assert totals["miou_image"] == pytest.approx(((1 / 2 + 2 / 3) / 2 + 1) / 2)
    assert totals["miou_dataset"] == pytest.approx((4 / 5 + 3 / 4) / 2)


def test_two_class_precision_is_larger_than_foreground_precision_where_background_is_easy():
    relevance, mask = torch.zeros(1, 10, 10), torch.zeros(1, 10, 10, dtype=torch.long)
    mask[:, :2, :2] = 1
    relevance[:, :2, :2] = 1.0
    relevance[:, 5, 5] = 2.0
    scores = segmentation_scores(relevance, mask)
    assert scores["ap_two_class"].item() > scores["ap"].item()
    assert scores["ap"].item() == pytest.approx(sk.average_precision_score(mask.flatten(), relevance.flatten()))


@pytest.mark.parametrize("value", [0.0, 3.0, -2.5, torch.nan])
def test_maps_without_a_threshold_are_marked_and_counted(value):
    relevance, mask = scene(3)
    relevance[1] = value
    scores = segmentation_scores(relevance, mask)
    assert scores["undefined"].tolist() == [False, True, False]
    for name in ("ap", "f1", "iou", "miou_image", "accuracy"):
        assert scores[name].isnan().tolist() == [False, True, False], name
    assert scores["tp"][1] == scores["fp"][1] == 0
    totals = segmentation_totals(scores)
    assert (totals["images"], totals["undefined"]) == (3, 1)
    kept = {name: value[[0, 2]] for name, value in scores.items()}
    expected = {**segmentation_totals(kept), "images": 3, "undefined": 1}
    assert totals == pytest.approx(expected, nan_ok=True)
    assert segmentation_totals(scores, undefined="background")["accuracy"] != totals["accuracy"]


def test_one_nan_pixel_or_infinity_spoils_its_own_map_only():
    relevance, mask = scene(3)
    clean = segmentation_scores(relevance, mask)
    relevance[0, 3, 3], relevance[2, 0, 0] = torch.nan, torch.inf
    scores = segmentation_scores(relevance, mask)
    assert scores["undefined"].tolist() == [True, False, True]
    for name in scores:
        assert torch.allclose(scores[name][1].double(), clean[name][1].double(), equal_nan=True), name


def test_masks_of_one_class():
    relevance, mask = scene(2)
    mask[0], mask[1] = 0, 1
    scores = segmentation_scores(relevance, mask)
    assert scores["no_foreground"].tolist() == [True, False]
    assert scores["ap"].isnan().tolist() == [True, False]
    assert scores["ap"][1] == 1
    nothing = segmentation_scores(relevance, torch.full_like(mask, -1))
    assert all(nothing[name].isnan().all() for name in ("ap", "f1", "iou", "accuracy", "miou_image", "f1_rows"))
    totals = segmentation_totals(nothing)
    assert totals["miou_dataset"] != totals["miou_dataset"]


def test_only_correctly_classified_images_on_request():
    scores = segmentation_scores(*scene(4))
    correct = torch.tensor([True, False, True, False])
    totals = segmentation_totals(scores, where=correct)
    expected = segmentation_totals({name: value[correct] for name, value in scores.items()})
    assert totals == pytest.approx(expected, nan_ok=True)
    assert totals["images"] == 2


def test_perfect_and_inverted_maps():
    mask = scene(3)[1].clamp(min=0)
    right, wrong = (segmentation_scores(m.float(), mask) for m in (mask, 1 - mask))
    for name in ("accuracy", "iou", "miou_image", "f1", "ap", "ap_two_class"):
        assert torch.equal(right[name], torch.ones(3, dtype=torch.float64)), name
        assert (wrong[name] < 0.7).all(), name
    assert (wrong["iou"] == 0).all()


def test_best_is_an_upper_bound():
    relevance, mask = scene(5)
    best = segmentation_scores(relevance, mask, threshold="best")
    for threshold in ("mean", "otsu", 0.0, 0.2, 0.5, 0.9, 1.0):
        other = segmentation_scores(relevance, mask, threshold=threshold)
        assert (best["f1"] >= other["f1"]).all()
        assert (best["iou"] >= other["iou"]).all()
        assert torch.equal(best["ap"], other["ap"])


def test_quantile_predicts_its_part():
    relevance = torch.randperm(100, generator=torch.Generator().manual_seed(0)).view(1, 10, 10).float()
    for q in (0.0, 0.25, 0.8, 0.99, 1.0):
        scores = segmentation_scores(relevance, torch.ones(1, 10, 10, dtype=torch.long), threshold=q)
        assert scores["tp"].item() == max(round((1 - q) * 100), 1)


def test_otsu_separates_two_groups():
    values = torch.tensor([[0.0, 0.1, 0.2, 5.0, 5.1], [1.0, 9.0, 9.0, 9.0, 9.0]])
    assert torch.equal((values > otsu_threshold(values).unsqueeze(1)).sum(1), torch.tensor([2, 4]))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([torch.exp, torch.atan, lambda v: v**3, lambda v: 10 * v - 100]))
def test_rank_based_scores_do_not_see_monotone_transforms(seed, transform):
    generator = torch.Generator().manual_seed(seed)
    relevance = torch.randperm(64, generator=generator).view(1, 8, 8).double() / 40 - 0.8
    mask = (torch.rand(1, 8, 8, generator=generator) < 0.5).long()
    for threshold in ("best", 0.6):
        a = segmentation_scores(relevance, mask, threshold=threshold)
        b = segmentation_scores(transform(relevance), mask, threshold=threshold)
        for name in ("ap", "f1", "iou", "accuracy"):
            assert torch.equal(a[name], b[name]) or (a[name].isnan() & b[name].isnan()).all()


@pytest.mark.parametrize("threshold", ["mean", "otsu", "best", 0.7])
def test_a_batch_is_its_samples(threshold):
    relevance, mask = scene(4)
    together = segmentation_scores(relevance, mask, threshold=threshold)
    for i in range(4):
        alone = segmentation_scores(relevance[i : i + 1], mask[i : i + 1], threshold=threshold)
        assert all(torch.equal(alone[name], together[name][i : i + 1]) or alone[name].isnan() for name in alone)


def test_shapes_and_types():
    relevance, mask = scene(2)
    expected = segmentation_scores(relevance, mask)["iou"]
    assert torch.equal(segmentation_scores(relevance[:, None], mask[:, None].to(torch.int8))["iou"], expected)
    assert torch.equal(segmentation_scores(relevance, mask, ignore=-1)["iou"], expected)
    assert torch.equal(segmentation_scores(relevance, mask % 256, ignore=255)["iou"], expected)
    halves = segmentation_scores(relevance.half(), mask)["iou"]
    assert torch.allclose(halves, expected, atol=0.05)
    patches = torch.rand(2, 3, 3)
    spread = patches.repeat_interleave(4, 1).repeat_interleave(4, 2)
    nearest = segmentation_scores(patches, mask, interpolation="nearest")["iou"]
    assert torch.equal(nearest, segmentation_scores(spread, mask)["iou"])
    boolean = segmentation_scores(relevance, mask == 1)
    assert torch.equal(boolean["iou"], segmentation_scores(relevance, (mask == 1).long())["iou"])


@pytest.mark.parametrize(
    ("relevance", "mask", "options", "error", "names"),
    [
        (torch.zeros(2, 5, 5), torch.zeros(2, 9, 9).long(), {}, ArgumentError, r"relevance.*\(2, 5, 5\).*\(2, 9, 9\)"),
        (torch.zeros(3, 12, 12), torch.zeros(2, 12, 12).long(), {}, ArgumentError, "relevance"),
        (torch.zeros(2, 4, 4), torch.zeros(2, 4).long(), {}, ArgumentError, "mask"),
        (torch.zeros(2, 4, 4), torch.zeros(2, 4, 4), {}, ArgumentTypeError, "mask"),
        (torch.zeros(2, 4, 4), [[0]], {}, ArgumentTypeError, "mask"),
        (torch.zeros(1, 4, 4), torch.full((1, 4, 4), 15), {}, ArgumentError, "mask.*15"),
        (torch.zeros(1, 4, 4), torch.zeros(1, 4, 4).long(), {"threshold": "median"}, ArgumentError, "threshold"),
        (torch.zeros(1, 4, 4), torch.zeros(1, 4, 4).long(), {"threshold": 1.5}, ArgumentError, "threshold"),
        (torch.zeros(1, 4, 4), torch.zeros(1, 4, 4).long(), {"threshold": True}, ArgumentError, "threshold"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(relevance, mask, options, error, names):
    with pytest.raises(error, match=names):
        segmentation_scores(relevance, mask, **options)


def test_totals_reject_unknown_choices():
    with pytest.raises(ArgumentError, match="undefined"):
        segmentation_totals(segmentation_scores(*scene(1)), undefined="zero")
