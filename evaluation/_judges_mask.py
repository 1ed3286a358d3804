"""Judges that compare with masks: segmentation, localisation, class discrimination."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from xattn.errors import ArgumentError
from xattn.evaluation._shapes import Interpolation, constant_maps
from xattn.evaluation.judges import Judge, Measured, metric, register
from xattn.evaluation.localization import class_discrimination, pointing_game, relevance_mass, relevance_rank
from xattn.evaluation.segmentation import Threshold, segmentation_scores

if TYPE_CHECKING:
    from xattn.evaluation._chunk import Chunk

COUNTS = ("tp", "fp", "fn", "tn")
_SCORES = ("accuracy", "miou_image", "iou", "f1", "ap", "ap_two_class", "f1_rows")


def judge_segmentation(
    chunk: "Chunk", relevance: Tensor, *, threshold: Threshold = "mean", interpolation: Interpolation = "bilinear"
) -> Mapping[str, Measured]:
    """`segmentation_scores`, with the counts that the data set's mIoU is pooled from."""
    scores = segmentation_scores(relevance, chunk.masks, threshold=threshold, interpolation=interpolation)
    undefined, constant = scores["undefined"], constant_maps(relevance)
    return {name: Measured(scores[name], undefined, constant) for name in (*COUNTS, *_SCORES)}


def judge_localization(chunk: "Chunk", relevance: Tensor, *, tolerance: int = 0) -> Mapping[str, Measured]:
    """`pointing_game`, `relevance_mass` and `relevance_rank`; unlabelled pixels count as background."""
    mask = chunk.masks == 1
    constant = constant_maps(relevance)
    return {
        "pointing_game": Measured(pointing_game(relevance, mask, tolerance=tolerance), constant=constant),
        "relevance_mass": Measured(relevance_mass(relevance, mask), constant=constant),
        "relevance_rank": Measured(relevance_rank(relevance, mask), constant=constant),
    }


def judge_discrimination(chunk: "Chunk", relevance: Tensor) -> Mapping[str, Measured]:
    """`class_discrimination`: each map is made anew for the class of each of the two objects."""
    if any(len(sample.object_labels) != 2 for sample in chunk.samples):
        raise ArgumentError("protocol: discrimination needs two objects per picture, of classes that the model knows")
    masks = torch.stack([sample.object_masks for sample in chunk.samples if sample.object_masks is not None], 1)
    labels = torch.tensor([sample.object_labels for sample in chunk.samples], device=chunk.inputs.device)
    first, second = (chunk.attribute(labels[:, i]) for i in (0, 1))
    scores = class_discrimination(first, second, masks[0], masks[1])
    return {name: Measured(scores[name]) for name in ("both", "per_target")}


register(
    Judge(
        "segmentation",
        judge_segmentation,
        (metric("miou_dataset"), *(metric(name) for name in _SCORES)),
        needs_mask=True,
        counts=COUNTS,
        partial=True,
    )
)
register(
    Judge(
        "localization",
        judge_localization,
        tuple(metric(name) for name in ("pointing_game", "relevance_mass", "relevance_rank")),
        needs_mask=True,
    )
)
register(
    Judge(
        "discrimination",
        judge_discrimination,
        (metric("both", "class_discrimination"), metric("per_target", "class_discrimination")),
        needs_objects=True,
    )
)
