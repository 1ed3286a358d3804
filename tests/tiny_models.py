"""Tiny models with random weights: one builder for each family, the same weights on each call.

The libraries are imported by the builders, so that a test pays only for those it uses.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 5
WIDTH, DEPTH, HEADS = 24, 2, 2
SIZE, PATCH = 32, 8
VOCABULARY, MAX_WORDS = 60, 32

_HF = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS, "intermediate_size": 2 * WIDTH}
_HF_IMAGE = {**_HF, "image_size": SIZE, "patch_size": PATCH}
_HF_TEXT = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": MAX_WORDS,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def images(batch: int = 2, size: tuple[int, int] = (SIZE, SIZE), **kwargs: Any) -> Tensor:
    """Random images (batch, 3, *size), always the same."""
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(1), **kwargs)


def words(batch: int = 2, length: int = 7) -> Tensor:
    """Random token ids (batch, length), always the same, without special ones."""
    return torch.randint(5, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))


def spread(model: nn.Module) -> nn.Module:
    """The model in eval mode with larger weights: at the usual initial scale attention is almost uniform."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "norm" not in name:
                parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5, generator=generator)
            else:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def seeded(build: Callable[..., nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    """A model whose initialisation draws from a fixed seed, the caller's random state untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return spread(build(*args, **kwargs))


def timm_vit(**kwargs: Any) -> nn.Module:
    """timm's VisionTransformer: class token, 4x4 patches."""
    from timm.models.vision_transformer import VisionTransformer

    return seeded(VisionTransformer, **{**_timm(), **kwargs})


def timm_deit_distilled(**kwargs: Any) -> nn.Module:
    """timm's DeiT with class and distillation token; one output in eval mode."""
    from timm.models.deit import VisionTransformerDistilled

    return seeded(VisionTransformerDistilled, **{**_timm(), **kwargs})


def timm_dinov2(registers: bool = False, **kwargs: Any) -> nn.Module:
    """timm's DINOv2 entry points with 2x2 patches of 14."""
    import timm

    name = "vit_small_patch14_reg4_dinov2" if registers else "vit_small_patch14_dinov2"
    sizes = {"img_size": 28, "embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS, "num_classes": CLASSES}
    return seeded(timm.create_model, name, **{**sizes, **kwargs})


def timm_swin(**kwargs: Any) -> nn.Module:
    """timm's Swin: four windows in the first stage, one in the second."""
    from timm.models.swin_transformer import SwinTransformer

    sizes = {"img_size": SIZE, "patch_size": 4, "window_size": 4, "embed_dim": 12, "depths": (1, 1)}
    return seeded(SwinTransformer, **{**sizes, "num_heads": (2, 2), "num_classes": CLASSES, **kwargs})


def torchvision_vit(**kwargs: Any) -> nn.Module:
    """torchvision's VisionTransformer."""
    from torchvision.models import VisionTransformer

    return seeded(VisionTransformer, SIZE, PATCH, DEPTH, HEADS, WIDTH, 2 * WIDTH, num_classes=CLASSES, **kwargs)


def torchvision_swin() -> nn.Module:
    """torchvision's Swin, whose windows are cut by a function, not by a module."""
    from torchvision.models import SwinTransformer

    return seeded(SwinTransformer, [4, 4], 12, [1, 1], [2, 2], [4, 4], num_classes=CLASSES)


def hf_vit(implementation: str = "sdpa", **kwargs: Any) -> nn.Module:
    """Transformers' ViT with a classification head."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(**{**_HF_IMAGE, **kwargs}, num_labels=CLASSES, attn_implementation=implementation)
    return seeded(ViTForImageClassification, config)


def hf_dinov2(implementation: str = "sdpa", registers: bool = False) -> nn.Module:
    """Transformers' DINOv2 backbone, with four registers if asked for."""
    from transformers import Dinov2Config, Dinov2Model, Dinov2WithRegistersConfig, Dinov2WithRegistersModel

    if registers:
        config = Dinov2WithRegistersConfig(**_HF_IMAGE, num_register_tokens=4, attn_implementation=implementation)
        return seeded(Dinov2WithRegistersModel, config)
    return seeded(Dinov2Model, Dinov2Config(**_HF_IMAGE, attn_implementation=implementation))


def hf_swin(implementation: str = "sdpa") -> nn.Module:
    """Transformers' Swin, cut as `timm_swin`."""
    from transformers import SwinConfig, SwinForImageClassification

    sizes = {"image_size": SIZE, "patch_size": 4, "window_size": 4, "embed_dim": 12, "depths": [1, 1]}
    config = SwinConfig(**sizes, num_heads=[2, 2], num_labels=CLASSES, attn_implementation=implementation)
    return seeded(SwinForImageClassification, config)


def hf_clip(implementation: str = "sdpa") -> nn.Module:
    """Transformers' CLIP with both towers; 17 vision tokens."""
    from transformers import CLIPConfig, CLIPModel

    config = CLIPConfig(
        text_config={**_HF, **_HF_TEXT},
        vision_config=_HF_IMAGE,
        projection_dim=16,
        attn_implementation=implementation,
    )
    return seeded(CLIPModel, config)


def hf_clip_vision(implementation: str = "sdpa") -> nn.Module:
    """The vision tower alone."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    return seeded(CLIPVisionModel, CLIPVisionConfig(**_HF_IMAGE, attn_implementation=implementation))


def hf_clip_text(implementation: str = "sdpa") -> nn.Module:
    """The causal text tower alone."""
    from transformers import CLIPTextConfig, CLIPTextModel

    return seeded(CLIPTextModel, CLIPTextConfig(**_HF, **_HF_TEXT, attn_implementation=implementation))


def hf_bert(implementation: str = "sdpa") -> nn.Module:
    """Transformers' BERT with a classification head."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(**_HF, **_HF_TEXT, num_labels=CLASSES, attn_implementation=implementation)
    return seeded(BertForSequenceClassification, config)


def hf_gpt2(implementation: str = "sdpa") -> nn.Module:
    """Transformers' GPT-2 with a classification head on the last token."""
    from transformers import GPT2Config, GPT2ForSequenceClassification

    sizes = {"n_embd": WIDTH, "n_layer": DEPTH, "n_head": HEADS, "n_positions": MAX_WORDS, "num_labels": CLASSES}
    tokens = {key: value for key, value in _HF_TEXT.items() if key != "max_position_embeddings"}
    return seeded(GPT2ForSequenceClassification, GPT2Config(**sizes, **tokens, attn_implementation=implementation))


def torch_encoder(depth: int = DEPTH, **kwargs: Any) -> nn.Module:
    """`nn.TransformerEncoder` on embeddings, batch first unless said otherwise."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, **{"batch_first": True, **kwargs})
    return seeded(nn.TransformerEncoder, layer, depth, enable_nested_tensor=False)


class ToyAttention(nn.Module):
    """Self-attention written out with torch's function, or with a softmax where `fused` is false."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS, fused: bool = True) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.heads, self.fused = heads, fused

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = F.scaled_dot_product_attention(query, key, value)
        else:
            mixed = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value
        return self.proj(mixed.transpose(1, 2).flatten(2))


class ToyBlock(nn.Module):
    """Attention and an MLP with residuals."""

    def __init__(self, width: int = WIDTH, **kwargs: Any) -> None:
        super().__init__()
        self.attn = ToyAttention(width, **kwargs)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        return x + self.mlp(x)


class LinearPatches(nn.Module):
    """A vision transformer whose patches are cut by reshaping and embedded by a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.to_patch_embedding = nn.Linear(3 * PATCH * PATCH, WIDTH)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.blocks = nn.ModuleList(ToyBlock() for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        patches = image.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH)  # (B, 3, h, w, patch, patch)
        x = self.to_patch_embedding(patches.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2))
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class TwoStages(nn.Module):
    """Full attention on 4x4 patches, then on 2x2; merged by a convolution or by a linear layer.

    Args:
        convolution: Whether a convolution merges patches.
        named: Whether the stages have names of their own in place of numbers in a list.
    """

    def __init__(self, convolution: bool = False, named: bool = False) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.merge = nn.Conv2d(WIDTH, WIDTH, 2, 2) if convolution else nn.Linear(4 * WIDTH, WIDTH)
        stages = [nn.Sequential(ToyBlock()), nn.Sequential(ToyBlock())]
        self.stages = nn.ModuleDict(zip(("early", "late"), stages, strict=True)) if named else nn.ModuleList(stages)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image)
        h, w = x.shape[-2:]
        early, late = self.stages.values() if isinstance(self.stages, nn.ModuleDict) else self.stages
        x = early(x.flatten(2).mT)
        if isinstance(self.merge, nn.Conv2d):
            x = self.merge(x.mT.unflatten(-1, (h, w))).flatten(2).mT
        else:
            x = x.unflatten(1, (h // 2, 2, w // 2, 2)).transpose(2, 3)
            x = self.merge(x.flatten(3).flatten(1, 2))
        return self.head(late(x).mean(1))


def _timm() -> dict[str, Any]:
    return {
        "img_size": SIZE,
        "patch_size": PATCH,
        "embed_dim": WIDTH,
        "depth": DEPTH,
        "num_heads": HEADS,
        "num_classes": CLASSES,
    }
