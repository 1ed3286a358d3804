"""The table behind the method tests: every registered method against every kind of token layout.

A method joins by being registered, a layout by a line in `LAYOUTS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertForSequenceClassification

from xattn.attributions import methods

CLASSES = 5


@dataclass(frozen=True)
class Case:
    """A model with a batch of inputs."""

    model: nn.Module
    inputs: Tensor
    args: tuple[Any, ...] = ()
    grid: tuple[int, int] | None = None

    def sample(self, index: int) -> tuple[Tensor, tuple[Any, ...]]:
        """Sample `index` as a batch of one, with its further arguments."""
        return self.inputs[index : index + 1], tuple(a[index : index + 1] for a in self.args)


def _vit(**kwargs: Any) -> nn.Module:
    torch.manual_seed(0)
    defaults: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3}
    return VisionTransformer(**{**defaults, "num_classes": CLASSES, **kwargs}).eval()


def _images(*size: int, batch: int = 5) -> Tensor:
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(1))


def _cls() -> Case:
    return Case(_vit(), _images(32, 32), grid=(4, 4))


def _wide_registers() -> Case:
    return Case(_vit(img_size=(16, 64), reg_tokens=4), _images(16, 64), grid=(2, 8))


def _average() -> Case:
    return Case(_vit(class_token=False, global_pool="avg"), _images(32, 32), grid=(4, 4))


def _pooling() -> Case:
    return Case(_vit(class_token=False, global_pool="map"), _images(32, 32), grid=(4, 4))


def _distilled() -> Case:
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": CLASSES}
    model = timm.models.deit.VisionTransformerDistilled(**sizes).eval()
    return Case(model, _images(32, 32), grid=(4, 4))


def _words() -> Case:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=48,
        max_position_embeddings=16,
        num_labels=CLASSES,
    )
    ids = torch.randint(5, 50, (5, 9), generator=torch.Generator().manual_seed(2))
    lengths = torch.tensor([9, 6, 4, 9, 7])
    mask = (torch.arange(9) < lengths[:, None]).long()
    return Case(BertForSequenceClassification(config).eval(), ids * mask, (mask,))


LAYOUTS: dict[str, Callable[[], Case]] = {
    "cls": _cls,
    "registers, 2x8": _wide_registers,
    "average pooling": _average,
    "attention pooling": _pooling,
    "distilled": _distilled,
    "words, padded": _words,
}
WITHOUT_CLS = {"average pooling", "attention pooling"}
ATTENTION_POOLED = {"attention pooling"}
WORDS = {"words, padded"}


@cache
def case(name: str) -> Case:
    """The case, built once; tests must leave its model as it was."""
    return LAYOUTS[name]()


def applies(method: str, layout: str) -> bool:
    """Whether the method is meant for this layout, by its own metadata."""
    if method == "center" and layout in WORDS:
        return False
    if getattr(methods[method], "needs_token_head", False) and layout in ATTENTION_POOLED:
        return False
    return not (methods[method].needs_class_token and layout in WITHOUT_CLS)


PAIRS = [(method, layout) for method in methods for layout in LAYOUTS if applies(method, layout)]
REFUSED = [(method, layout) for method in methods for layout in LAYOUTS if not applies(method, layout)]
WORD_PAIRS = [(method, layout) for method, layout in PAIRS if layout in WORDS]
LOOKING = [method for method in methods if not methods[method].is_control]
CLASS_SPECIFIC = [method for method in methods if methods[method].is_class_specific]


class PlantedViT(nn.Module):
    """A transformer whose attention is known: every token looks at the brightest patch, and the answer is read there.

    No position embedding, so that permuting patches permutes everything. Class k grows with channel k of the patch
    that is looked at.
    """

    def __init__(self, patch: int = 4, sharpness: float = 8.0) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 3, patch, stride=patch, bias=False)
        self.patch_embed.weight.data = torch.eye(3)[:, :, None, None].expand(3, 3, patch, patch) / patch**2
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 3))
        self.blocks = nn.ModuleList([PlantedAttention(sharpness) for _ in range(3)])
        self.head = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patch_embed(images).flatten(2).mT
        tokens = torch.cat([self.cls_token.expand(len(images), -1, -1), tokens], 1)
        for block in self.blocks:
            tokens = tokens + block(tokens)
        return self.head(tokens[:, 0])


class PlantedAttention(nn.Module):
    """Queries are constant, keys are brightness."""

    def __init__(self, sharpness: float) -> None:
        super().__init__()
        self.sharpness = nn.Parameter(torch.tensor(sharpness))

    def forward(self, tokens: Tensor) -> Tensor:
        key = (self.sharpness * tokens.mean(-1, keepdim=True)).unsqueeze(1)
        return F.scaled_dot_product_attention(torch.ones_like(key), key, tokens.unsqueeze(1), scale=1.0).squeeze(1)
