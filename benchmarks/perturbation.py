"""Perturbation curves against quantus' PixelFlipping: the same images, maps, steps and model, and the same curves.

    python -m benchmarks.perturbation [--quick]

Both make one forward row per image and step, so that the model bounds the ratio: with a large model it tends to 1, and
what is compared is everything around the model. The linear model costs next to nothing, the demo ViT is a small
transformer. quantus ranks the three channels of a pixel apart; three features per pixel and distinct values make its
steps whole pixels (their number must divide that of the pixels). Its default, one feature per step, is measured at the
size of MNIST; for RGB it would take three times as many steps as there are pixels.
"""

import warnings

import numpy as np
import quantus
import torch
from torch import Tensor, nn

from benchmarks._rows import Row, fastest
from xattn import load
from xattn.evaluation import perturbation
from xattn.models.scenes import Scenes

BATCH = 32


class Linear(nn.Module):
    """Ten classes straight from the pixels."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        features = shape[0] * shape[1] * shape[2]
        weight = torch.randn(10, features, generator=torch.Generator().manual_seed(0)) / features**0.5
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, 10)."""
        return x.flatten(1) @ self.weight.T


def main(quick: bool = False) -> list[Row]:
    """Seconds, ratio and largest difference of the curves, per model."""
    rows: list[Row] = []
    digits, grey, colour = (1, 28, 28), (1, 64, 64), (3, 96, 96)
    rows += _compare("linear, grey 28x28", Linear(digits), _noise(digits), 28 if quick else 784)
    rows += _compare("linear, grey 64x64", Linear(grey), _noise(grey), 16 if quick else 64)
    rows += _compare("linear, RGB 96x96", Linear(colour), _noise(colour), 12 if quick else 48)
    model = load("demo")
    images = torch.stack([model.preprocess(scene.image) for scene in Scenes("test", BATCH)])
    return rows + _compare("demo ViT, RGB 96x96", model.module, images, 3 if quick else 12)


def _noise(shape: tuple[int, int, int]) -> Tensor:
    return torch.rand(BATCH, *shape, generator=torch.Generator().manual_seed(1))


def _compare(case: str, model: nn.Module, images: Tensor, steps: int) -> list[Row]:
    model.eval()
    generator = np.random.default_rng(2)
    pixels = images.shape[-2] * images.shape[-1]
    relevance = torch.from_numpy(generator.permuted(np.tile(np.arange(1.0, pixels + 1), (BATCH, 1)), axis=1))
    relevance = relevance.view(BATCH, *images.shape[-2:]).float()
    with torch.no_grad():
        target = model(images).argmax(1)
    metric = quantus.PixelFlipping(
        features_in_step=images.shape[1] * pixels // steps,
        perturb_baseline=0.0,
        abs=False,
        normalise=False,
        disable_warnings=True,
        display_progressbar=False,
    )

    def theirs() -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            curves = metric(
                model=model,
                x_batch=images.numpy(),
                y_batch=target.numpy(),
                a_batch=relevance.unsqueeze(1).numpy(),
                softmax=True,
                batch_size=BATCH,
                device="cpu",
            )
        return torch.tensor(np.array(curves))

    def ours() -> Tensor:
        fractions = [step / steps for step in range(1, steps + 1)]
        return perturbation(model, images, relevance, target, fractions=fractions, batch_size=BATCH).values

    with torch.no_grad():
        difference = float((theirs() - ours()).abs().max())
        times = fastest({"quantus": theirs, "xattn": ours}, 3)
    case = f"{case}, {BATCH} images, {steps} steps"
    return [
        Row("perturbation", case, "quantus, s", times["quantus"], None),
        Row("perturbation", case, "xattn, s", times["xattn"]),
        Row("perturbation", case, "speed-up", times["quantus"] / times["xattn"], "higher"),
        Row("perturbation", case, "largest difference of the curves", difference, None),
    ]


if __name__ == "__main__":
    from benchmarks.__main__ import run

    run([main])
