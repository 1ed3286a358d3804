"""Other packages on the same model and photographs: seconds, and how far their maps agree with those of xattn.

    pip install captum torchcam torchxai-explain
    python -m benchmarks.peers [--quick]

The model is `photos`, a timm ViT. Maps are averaged over the cells of its 16 x 16 grid and compared by Spearman's rank
correlation, mean over photographs. Each map is compared with the method of xattn that is its counterpart; captum's
Saliency and IntegratedGradients have none and are yardsticks beside TokenRank. Packages that are not installed are
skipped by name. quantus makes no maps; `benchmarks.perturbation` compares with it.
"""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from benchmarks._photos import photographs, prepared
from benchmarks._rows import Row, fastest
from xattn.attributions import AttentionRollout, GradientRollout, TokenGradCAM, TokenRank
from xattn.errors import WeightsError
from xattn.models import photos

Maps = Callable[[nn.Module, Tensor, Tensor], Tensor]
COUNT, QUICK = 4, 2


@dataclass(frozen=True)
class Peer:
    """A method of another package, and what it is compared with: (model, images, targets) -> (B, h, w) maps."""

    package: str
    module: str
    name: str
    maps: Maps
    ours: str


def saliency(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    from captum.attr import Saliency

    return Saliency(model).attribute(images.clone(), targets).sum(1)


def integrated_gradients(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    from captum.attr import IntegratedGradients

    found = IntegratedGradients(model).attribute(images, target=targets, n_steps=20, internal_batch_size=len(images))
    return found.sum(1).abs()


def torchcam_gradcam(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """On the input of the last block, as TokenGradCAM."""
    from torchcam.methods import GradCAM

    side = photos.SIZE // 14
    # The block before the last: its output is what enters the last one.
    block = f"blocks.{len(model.blocks) - 2}"
    with GradCAM(model, block, reshape_transform=lambda x: x[:, 1:].mT.unflatten(2, (side, side))) as extractor:
        return extractor(targets.tolist(), model(images))[0]


def torchxai_rollout(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    from torchxai.methods.attention_rollout import AttentionRollout as Peer

    explainer = Peer(model, head_fusion="mean", discard_ratio=0.0)
    return _one_by_one(explainer, images, targets)


def torchxai_transformer(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    from torchxai.methods.transformer_attribution import TransformerAttribution as Peer

    return _one_by_one(Peer(model), images, targets)


def _one_by_one(explainer: object, images: Tensor, targets: Tensor) -> Tensor:
    """Torchxai takes one image a call; `_compute_cam` leaves out its enlargement to the size of the image."""
    found = [explainer._compute_cam(image[None], int(target)) for image, target in zip(images, targets, strict=True)]
    return torch.from_numpy(np.stack(found)).float()


OURS: dict[str, Maps] = {
    "token_rank": lambda model, images, targets: TokenRank(model).attribute(images, resolution="patch"),
    "rollout": lambda model, images, targets: AttentionRollout(model).attribute(images, resolution="patch"),
    "token_gradcam": lambda model, images, targets: TokenGradCAM(model).attribute(images, targets, resolution="patch"),
    "gradient_rollout": lambda model, images, targets: GradientRollout(model).attribute(
        images, targets, resolution="patch"
    ),
}
PEERS = (
    Peer("captum", "captum", "Saliency", saliency, "token_rank"),
    Peer("captum", "captum", "IntegratedGradients, 20 steps", integrated_gradients, "token_rank"),
    Peer("torchcam", "torchcam", "GradCAM", torchcam_gradcam, "token_gradcam"),
    Peer("torchxai-explain", "torchxai", "AttentionRollout", torchxai_rollout, "rollout"),
    Peer("torchxai-explain", "torchxai", "TransformerAttribution", torchxai_transformer, "gradient_rollout"),
)


def main(quick: bool = False) -> list[Row]:
    """Seconds per photograph, time as a multiple of ours, and agreement, for every package that is here."""
    try:
        model = photos.build()
    except WeightsError as missing:
        print(f"peers: skipped. {missing}", file=sys.stderr)
        return []
    images = prepared(photographs(QUICK if quick else COUNT), photos.SIZE)
    with torch.no_grad():
        targets = model(images).argmax(1)
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the other packages
        for peer in PEERS:
            if _is_here(peer.package, peer.module):
                rows += _compare(peer, model, images, targets)
    return rows


def _is_here(package: str, module: str) -> bool:
    if find_spec(module):
        return True
    print(f"peers: {package} is not installed; skipped", file=sys.stderr)
    return False


def _compare(peer: Peer, model: nn.Module, images: Tensor, targets: Tensor) -> list[Row]:
    calls = {"theirs": peer.maps, "ours": OURS[peer.ours]}
    maps: dict[str, Tensor] = {}
    times = fastest(
        {name: lambda name=name: maps.update({name: calls[name](model, images, targets)}) for name in calls}, repeats=1
    )
    pairs = zip(_cells(maps["theirs"]), _cells(maps["ours"]), strict=True)
    agreement = np.mean([spearmanr(theirs, ours).statistic for theirs, ours in pairs])
    case = f"{peer.package} {version(peer.package)} {peer.name}"
    return [
        Row("peers", case, "s per photograph", times["theirs"] / len(images), None),
        Row("peers", case, f"time / {peer.ours}", times["theirs"] / times["ours"], "higher"),
        Row("peers", case, f"rank correlation with {peer.ours}", float(agreement), None),
    ]


def _cells(maps: Tensor) -> Tensor:
    """(B, h, w) -> (B, cells), averaged over the cells of the model's grid."""
    side = photos.SIZE // 14
    return adaptive_avg_pool2d(maps.detach().float(), (side, side)).flatten(1)


if __name__ == "__main__":
    from benchmarks.__main__ import run

    run([main])
