"""TransInterp against the plain forward and backward pass of the same model: time per image, and peak memory.

    python -m benchmarks.transinterp [--quick]

Memory is that of all tensors alive at a time but weights and input; gradients of the weights count for the plain pass.
"""

import warnings

import timm
import torch

from benchmarks._rows import Row, fastest
from xattn._cost import measure
from xattn.attributions import TransInterp
from xattn.errors import PrecisionWarning

MODEL, BATCHES, REPEATS = "vit_base_patch16_224", (1, 8), 2


def main(quick: bool = False) -> list[Row]:
    """Seconds per image, and time and memory as multiples of the plain pass, per batch size."""
    model = timm.create_model("vit_small_patch16_224" if quick else MODEL, pretrained=False).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)  # random weights: nobody relies on the maps
        return [
            row for batch in BATCHES[: 1 if quick else None] for row in _rows(model, batch, 1 if quick else REPEATS)
        ]


def _rows(model: torch.nn.Module, batch: int, repeats: int) -> list[Row]:
    images, case = torch.randn(batch, 3, 224, 224), f"{model.default_cfg['architecture']}, batch {batch}"

    def plain() -> None:
        model.zero_grad()
        model(images).amax(-1).sum().backward()

    def ours() -> None:
        TransInterp(model).attribute(images)

    times = fastest({"plain": plain, "ours": ours}, repeats)
    memory = measure(ours, model).peak_bytes / measure(plain, model).peak_bytes
    return [
        Row("transinterp", case, "forward and backward, s per image", times["plain"] / batch),
        Row("transinterp", case, "TransInterp, s per image", times["ours"] / batch),
        Row("transinterp", case, "time / forward and backward", times["ours"] / times["plain"]),
        Row("transinterp", case, "memory / forward and backward", memory),
    ]


if __name__ == "__main__":
    from benchmarks.__main__ import run

    run([main])
