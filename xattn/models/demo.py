"""The `demo` model: a small vision transformer that names the object of a scene, shipped with the package."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xattn.layout import TokenLayout
from xattn.models.image import Preprocess
from xattn.models.scenes import NAMES, SIZE
from xattn.models.weights_file import check_sha256, read_weights

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

DESCRIPTION = "ViT (96 px, patch 8, width 96, 6 blocks of 6 heads, class token) trained on generated scenes"
CLASSES = NAMES
TRANSFORM = Preprocess((SIZE, SIZE), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
LAYOUT = TokenLayout(prefix=("cls",), grid=(12, 12), pooling="token")

_WEIGHTS = Path(__file__).parent / "weights"


def build() -> "VisionTransformer":
    """The architecture with random weights: patch 8, a 12x12 grid, width 96, 6 blocks of 6 heads, a class token."""
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=SIZE, patch_size=8, embed_dim=96, depth=6, num_heads=6, num_classes=len(NAMES), class_token=True
    )


def record() -> dict[str, Any]:
    """How the shipped weights were trained, and their measured accuracy."""
    loaded: dict[str, Any] = json.loads((_WEIGHTS / "demo.json").read_text())
    return loaded


def load(weights: Path | None = None) -> "VisionTransformer":
    """The trained model in float32; the file is stored in float16 and checked against its SHA-256."""
    path = weights or _WEIGHTS / "demo.safetensors"
    check_sha256(path, record()["sha256"])
    model = build()
    model.load_state_dict({name: value.float() for name, value in read_weights(path).items()})
    return model.eval()
