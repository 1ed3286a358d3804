"""Captured attention, TokenRank and n-bounce as multiples of a plain forward pass of the same model.

    python -m benchmarks.capture [--quick]

The plain forward is torch's fused attention without a gradient. Random weights: time does not depend on them.
"""

import timm
import torch
from torch import nn

from benchmarks._rows import Row, fastest
from xattn import AttentionTap
from xattn.attributions import AttentionRollout, NBounceAttention, TokenRank

MODELS, BATCHES, REPEATS = {"ViT-S/16": "vit_small_patch16_224", "ViT-B/16": "vit_base_patch16_224"}, (1, 8), 5


def main(quick: bool = False) -> list[Row]:
    """Seconds of the forward pass, and ratios to it, per model and batch size."""
    rows: list[Row] = []
    for label, name in list(MODELS.items())[: 1 if quick else None]:
        model = timm.create_model(name, pretrained=False).eval()
        for batch in BATCHES[: 1 if quick else None]:
            rows += _ratios(f"{label}, batch {batch}", model, torch.randn(batch, 3, 224, 224), 2 if quick else REPEATS)
    return rows


def _ratios(case: str, model: nn.Module, images: torch.Tensor, repeats: int) -> list[Row]:
    def forward() -> None:
        with torch.no_grad():
            model(images)

    def captured() -> None:
        with torch.no_grad(), AttentionTap(consumer=lambda record: None):
            model(images)

    times = fastest(
        {
            "forward": forward,
            "captured": captured,
            "token_rank": lambda: TokenRank(model).attribute(images, resolution="token"),
            "n_bounce": lambda: NBounceAttention(model).attribute(images, resolution="token"),
            "rollout": lambda: AttentionRollout(model).attribute(images, resolution="token"),
        },
        repeats,
    )
    rows = [Row("capture", case, "forward, s", times["forward"])]
    rows += [
        Row("capture", case, f"{name} / forward", times[name] / times["forward"])
        for name in ("captured", "token_rank", "n_bounce", "rollout")
    ]
    return [*rows, Row("capture", case, "token_rank / captured", times["token_rank"] / times["captured"])]


if __name__ == "__main__":
    from benchmarks.__main__ import run

    run([main])
