"""A tiny model of scenes, and methods that misbehave, for the tests of evaluation runs."""

from collections import Counter

import torch
from tiny_models import timm_vit
from torch import nn

from xattn.evaluation import Dataset
from xattn.models.image import Preprocess
from xattn.models.model import Model
from xattn.models.scenes import NAMES

CLASSES = NAMES[:5]


class Counting(nn.Module):
    """Counts the rows that pass through."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.seen = Counter()

    @property
    def rows(self):
        return self.seen.total()

    def forward(self, x):
        self.seen["rows"] += len(x)
        return self.inner(x)


def tiny(name="tiny", **options):
    return Model(name, Counting(timm_vit()), Preprocess((32, 32), **options), CLASSES)


class Painted:
    """Pixel maps that do not depend on the picture; NaN where the picture's first value is above a limit."""

    def __init__(self, limit=float("inf"), constant=False):
        self.limit, self.constant = limit, constant

    def attribute(self, inputs, target=None):
        ramp = torch.linspace(0, 1, inputs[0, 0].numel()).view_as(inputs[0, 0])
        maps = torch.zeros_like(inputs) if self.constant else ramp.expand_as(inputs).clone()
        return maps.masked_fill(inputs[:, :1, :1, :1] > self.limit, torch.nan)


class Picked(Dataset):
    """Some pictures of a data set."""

    def __init__(self, data, indices):
        self.name, self.classes, self.has_masks = data.name, data.classes, data.has_masks
        self.has_labels, self.has_objects = data.has_labels, data.has_objects
        self.data, self.indices = data, list(indices)

    def __len__(self):
        return len(self.indices)

    def read(self, index):
        return self.data.read(self.indices[index])

    def fingerprint(self, start, stop):
        return f"{self.data.fingerprint(0, len(self.data))} {self.indices[start:stop]}"


def values(rows, *keys, column="value"):
    """(method, protocol, metric) restricted rows as {sample index: value}."""
    return {
        row["sample_index"]: row[column]
        for row in rows.to_pylist()
        if (row["method"], row["protocol"], row["metric"])[: len(keys)] == keys
    }
