"""Methods that look at one layer at a time need no more memory for a deeper model."""

import pytest
import torch
from timm.models import VisionTransformer

from xattn._cost import measure
from xattn.attributions import (
    AttentionGradCAM,
    AttentionRollout,
    ClassTokenRank,
    ColumnSum,
    Lambda2Rollout,
    NBounceAttention,
    RawAttention,
    TokenGradCAM,
    TokenRank,
)

METHODS = {
    "tokenrank": lambda model: TokenRank(model),
    "tokenrank, all layers": lambda model: TokenRank(model, layers="all"),
    "tokenrank of rollout": lambda model: TokenRank(model, layers="all", on="rollout"),
    "n_bounce": lambda model: NBounceAttention(model),
    "column_sum": lambda model: ColumnSum(model),
    "raw_attention": lambda model: RawAttention(model),
    "attention_rollout": lambda model: AttentionRollout(model),
    "lambda2_rollout": lambda model: Lambda2Rollout(model),
    "attention_gradcam": lambda model: AttentionGradCAM(model),
    "class_tokenrank": lambda model: ClassTokenRank(model),
    "token_gradcam": lambda model: TokenGradCAM(model),
}
TOKENS, HEADS = 65, 4
ONE_LAYER = 4 * HEADS * TOKENS**2  # bytes of its attention, float32


def peak(build, depth):
    torch.manual_seed(0)
    sizes = {"img_size": 64, "patch_size": 8, "embed_dim": 16, "num_heads": HEADS, "num_classes": 3}
    model = VisionTransformer(**sizes, depth=depth).eval()
    images = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    return measure(lambda: build(model).attribute(images, resolution="token"), model).peak_bytes


@pytest.mark.parametrize("name", METHODS)
def test_peak_memory_is_flat_in_depth(name):
    shallow, deep = (peak(METHODS[name], depth) for depth in (3, 8))
    assert shallow > ONE_LAYER
    assert deep - shallow < ONE_LAYER / 2
