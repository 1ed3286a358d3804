"""PredictionAttention against the plain forward pass of the same model, for one image and for a batch.

python -m benchmarks prediction_attention [--quick]
"""

import timm
import torch

from benchmarks._rows import Row, fastest
from xattn.attributions import PredictionAttention


def main(quick: bool = False) -> list[Row]:
    """Seconds per image, and time as a multiple of the plain pass."""
    model_name, repeats = ("vit_small_patch16_224", 1) if quick else ("vit_base_patch16_224", 3)
    torch.manual_seed(0)
    model = timm.create_model(model_name, pretrained=False).eval()
    size = timm.data.resolve_model_data_config(model)["input_size"]
    return [row for batch in (1, 8) for row in _compare(model, model_name, torch.randn(batch, *size), repeats)]


def _compare(model: torch.nn.Module, model_name: str, images: torch.Tensor, repeats: int) -> list[Row]:
    explainer = PredictionAttention(model)

    @torch.no_grad()
    def forward() -> None:
        model(images)

    found = fastest({"forward": forward, "PredictionAttention": lambda: explainer.attribute(images)}, repeats)
    case = f"{model_name}, batch {len(images)}"
    rows = [Row("prediction_attention", case, f"{name}, s per image", found[name] / len(images)) for name in found]
    ratio = found["PredictionAttention"] / found["forward"]
    return [*rows, Row("prediction_attention", case, "time / forward", ratio)]


if __name__ == "__main__":
    from benchmarks.__main__ import run

    run([main])
