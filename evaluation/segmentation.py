"""Segmentation as a test of explanations: does the map, cut at a threshold, cover the object?"""

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from xattn.errors import ArgumentError, ArgumentTypeError
from xattn.evaluation._average_precision import Sweep, average_precision, best_threshold, sweep
from xattn.evaluation._shapes import Interpolation, check_choice, mask_of, min_max, pixel_map, undefined_maps

Threshold: TypeAlias = Literal["mean", "otsu", "best"] | float
Undefined: TypeAlias = Literal["exclude", "background"]

_COUNTS = ("tp", "fp", "fn", "tn")


def segmentation_scores(
    relevance: Tensor,
    mask: Tensor,
    *,
    threshold: Threshold = "mean",
    ignore: int = -1,
    interpolation: Interpolation = "bilinear",
) -> dict[str, Tensor]:
    """Per-sample scores of relevance against the object's mask.

    A pixel is foreground where its relevance exceeds the threshold. A map that is constant or not finite has no
    threshold: it predicts background everywhere in the counts and the published quantities, as in the published
    evaluation, is NaN in all others, and is marked `undefined`.

    Args:
        relevance: (B, h, w), (B, H, W), (B, 1, H, W) or (B, C, H, W); channels are summed, signs kept.
        mask: (B, H, W) or (B, 1, H, W): 0 background, 1 foreground, `ignore` not labelled; or bool.
        threshold: "mean" of the map (published), "otsu", "best" (largest F1 given the mask: an upper bound), or a
            number q in 0..1: the q-quantile, so that 0.8 predicts the top fifth.
        ignore: Label of pixels that do not count.
        interpolation: From a patch map to pixels; the published evaluation is bilinear.

    Returns:
        Tensors (B,), larger is better, 0..1 unless said otherwise.
            "tp", "fp", "fn", "tn": pixel counts, int64.
            "accuracy": labelled pixels predicted correctly. "iou": of the foreground. "miou_image": mean over the
            classes that occur in mask or prediction. "f1": of the foreground. "ap": average precision of the
            foreground, independent of the threshold, NaN without foreground.
            "ap_two_class", "f1_rows": as published (Chefer et al. 2021). AP with both classes' pixels pooled; mean
            of the F1 of each image row, NaN where ignored pixels leave a number that the rows do not divide.
            "undefined": bool, constant or not finite maps. "no_foreground": bool, masks without foreground.

    Raises:
        ArgumentError: If shapes do not fit, or mask or threshold have other values.

    Example:
        >>> mask = torch.tensor([[[0, 0], [0, 1]]])
        >>> segmentation_scores(mask.float(), mask)["iou"]
        tensor([1.], dtype=torch.float64)
    """
    mask = mask_of(mask)
    labelled, positive = _labels(mask, ignore)
    maps = pixel_map(relevance, mask, interpolation)
    maps = maps.to(torch.promote_types(maps.dtype, torch.float32))
    undefined = undefined_maps(maps)
    score = min_max(maps).masked_fill(undefined.view(-1, 1, 1), 0.0).flatten(1)
    labelled, positive = labelled.flatten(1), positive.flatten(1)
    curve = sweep(score, positive, labelled)
    predicted = score > _threshold(threshold, score, curve).unsqueeze(1)
    predicted &= ~undefined.unsqueeze(1)

    tp, fp, fn, tn = counts = _counts(predicted, positive, labelled)
    defined = {
        "accuracy": _ratio(tp + tn, tp + fp + fn + tn),
        "iou": _ratio(tp, tp + fp + fn),
        "miou_image": torch.stack([_ratio(tn, tn + fp + fn), _ratio(tp, tp + fp + fn)]).nanmean(0),
        "f1": _ratio(2 * tp, 2 * tp + fp + fn),
        "ap": average_precision(curve),
    }
    return {
        **dict(zip(_COUNTS, counts, strict=True)),
        **{name: value.masked_fill(undefined, torch.nan) for name, value in defined.items()},
        "ap_two_class": _two_class_precision(score, positive, labelled, undefined),
        "f1_rows": _row_f1(predicted, positive, labelled, rows=mask.shape[1]),
        "undefined": undefined,
        "no_foreground": tp + fn == 0,
    }


def segmentation_totals(
    scores: Mapping[str, Tensor], *, undefined: Undefined = "exclude", where: Tensor | None = None
) -> dict[str, float]:
    """Data-set values from the per-sample scores of all images.

    Args:
        scores: What `segmentation_scores` returned, concatenated over batches.
        undefined: "exclude" leaves out maps without a threshold, "background" counts them as predicting background,
            as published. Their number is in the result either way.
        where: (B,) bool, the images to count, for example the correctly classified ones.

    Returns:
        "accuracy", "iou_background", "iou_foreground", "miou_dataset": counts pooled over the data set, as in the
        segmentation literature (`MulticlassJaccardIndex(average="macro")`). "miou_image", "iou_image", "f1", "ap",
        "ap_two_class", "f1_rows": means over the images where they are defined. "images", "undefined",
        "no_foreground": numbers of images. NaN where nothing is left.

    Raises:
        ArgumentError: For an unknown choice.
    """
    check_choice("undefined", undefined, get_args(Undefined))
    chosen = torch.ones_like(scores["undefined"]) if where is None else where.to(scores["undefined"].device).bool()
    used = chosen & ~scores["undefined"] if undefined == "exclude" else chosen
    tp, fp, fn, tn = (int(scores[name][used].sum()) for name in _COUNTS)
    background, foreground = _divide(tn, tn + fp + fn), _divide(tp, tp + fp + fn)
    means = {"miou_image": "miou_image", "iou_image": "iou", "f1": "f1", "ap": "ap"}
    means |= {"ap_two_class": "ap_two_class", "f1_rows": "f1_rows"}
    return {
        "accuracy": _divide(tp + tn, tp + fp + fn + tn),
        "iou_background": background,
        "iou_foreground": foreground,
        "miou_dataset": float(torch.tensor([background, foreground], dtype=torch.float64).nanmean()),
        **{name: float(scores[key][used].double().nanmean()) for name, key in means.items()},
        "images": int(chosen.sum()),
        "undefined": int((chosen & scores["undefined"]).sum()),
        "no_foreground": int((chosen & scores["no_foreground"]).sum()),
    }


def otsu_threshold(values: Tensor) -> Tensor:
    """(B,) threshold that maximises the variance between the classes "> t" and "<= t" of (B, n) values.

    Exact: every distinct value is tried, no histogram. Of equally good ones the largest is taken.
    """
    ordered = values.double().sort(dim=1, descending=True).values
    count = torch.arange(1, ordered.shape[1], dtype=torch.float64, device=values.device)
    total = ordered.shape[1]
    above = ordered.cumsum(1)
    means = above[:, :-1] / count, (above[:, -1:] - above[:, :-1]) / (total - count)
    between = count * (total - count) * (means[0] - means[1]) ** 2
    between = between.masked_fill(ordered[:, 1:] == ordered[:, :-1], -1.0)
    best = between.argmax(1, keepdim=True)
    return ordered.gather(1, best + 1).squeeze(1)


def _labels(mask: Tensor, ignore: int) -> tuple[Tensor, Tensor]:
    """(labelled, foreground) bool masks."""
    if mask.is_floating_point() or mask.is_complex():
        raise ArgumentTypeError(f"mask: expected integers or bool, got {mask.dtype}")
    mask = mask.long()
    labelled = mask != ignore
    other = mask[labelled & (mask != 0) & (mask != 1)]
    if other.numel():
        raise ArgumentError(
            f"mask: expected 0, 1 and the ignored label {ignore}, got {sorted(set(other.tolist()))[:5]}; "
            "choose the object's class first, for example mask == class_index"
        )
    return labelled, labelled & (mask == 1)


def _threshold(threshold: Threshold, score: Tensor, curve: Sweep) -> Tensor:
    """(B,) for scores (B, n) in 0..1, over all pixels, ignored ones included."""
    if isinstance(threshold, str):
        check_choice("threshold", threshold, ("mean", "otsu", "best"))
        if threshold == "mean":
            return score.mean(1)
        return best_threshold(curve) if threshold == "best" else otsu_threshold(score).to(score.dtype)
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 <= threshold <= 1:
        raise ArgumentError(f"threshold: expected mean, otsu, best or a quantile in 0..1, got {threshold!r}")
    rank = min(int(threshold * score.shape[1]), score.shape[1] - 1)
    if rank == 0:  # nothing lies below the smallest value
        return torch.full_like(score[:, 0], -1.0)
    return curve.value.flip(1)[:, rank - 1]


def _counts(predicted: Tensor, positive: Tensor, labelled: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(tp, fp, fn, tn), each (B,) int64."""
    right, wrong = labelled & (predicted == positive), labelled & (predicted != positive)
    tp, fp = (right & predicted).sum(1), (wrong & predicted).sum(1)
    return tp, fp, wrong.sum(1) - fp, right.sum(1) - tp


def _two_class_precision(score: Tensor, positive: Tensor, labelled: Tensor, undefined: Tensor) -> Tensor:
    background = (1 - score).masked_fill(undefined.unsqueeze(1), 0.0)
    pooled = torch.cat([background, score], 1)
    return average_precision(sweep(pooled, torch.cat([~positive, positive], 1), labelled.repeat(1, 2)))


def _row_f1(predicted: Tensor, positive: Tensor, labelled: Tensor, rows: int) -> Tensor:
    """Mean F1 of rows, (B,); labelled pixels are cut into `rows` equal parts, 0/0 is 0."""
    number = labelled.sum(1)
    equal = (number % rows == 0) & (number > 0)
    part = (labelled.cumsum(1) - 1) * rows // number.clamp(min=1).unsqueeze(1)

    def per_row(chosen: Tensor) -> Tensor:
        sums = torch.zeros(len(chosen), rows, dtype=torch.float64, device=chosen.device)
        return sums.scatter_add_(1, part.clamp(0, rows - 1), (chosen & labelled).double())

    denominator = per_row(predicted) + per_row(positive)
    f1 = 2 * per_row(predicted & positive) / denominator.clamp(min=1)
    return f1.mean(1).masked_fill(~equal, torch.nan)


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Part / whole in float64; NaN for 0/0."""
    return part.double() / whole.double()


def _divide(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
