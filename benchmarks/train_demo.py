r"""Trains the `demo` model on generated scenes and writes its float16 weights and their record.

    python benchmarks/train_demo.py --stop-at 1750 --checkpoint stage1.pt
    python benchmarks/train_demo.py --init stage1.pt --steps 700 --stop-at 200 --lr 8e-4 --drop-until 0 \
        --masks-until 0 --seed 1 --checkpoint stage2.pt
    python benchmarks/train_demo.py --init stage2.pt --steps 160 --lr 6e-4 --drop-until 0 --masks-until 0 --seed 2 \
        --out xattn/models/weights

Every training scene is new. One quarter of each batch holds two objects and is labelled half and half, so that
evidence for a class has a place. The first part of the training sees a third of the patches, those on objects and
random others, which is three times as fast. There a separate linear layer also predicts the class of each patch from
the masks; its weight falls to almost zero, and the layer is thrown away. The rest sees whole pictures and class
labels only.
"""

import argparse
import hashlib
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from scipy.stats import binomtest
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from xattn.models import demo
from xattn.models.scenes import NAMES, Scenes

EVALUATION_SEED = 0
MASK_LABELS = len(NAMES) + 1  # the last one is the background


class Batches(IterableDataset):
    """Batches of new scenes: images, class targets (B, 10), patch targets (B, 144, 11)."""

    def __init__(self, steps: int, batch: int, seed: int, start: int = 0) -> None:
        self.steps, self.batch, self.seed, self.start = steps, batch, seed, start

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        torch.set_num_threads(1)
        pairs = self.batch // 4
        singles = self.batch - pairs
        one = Scenes("train", self.steps * singles, self.seed)
        two = Scenes("two-object-train", self.steps * pairs, self.seed)
        for step in range(self.start, self.steps):
            parts = [
                one.batch(range(step * singles, (step + 1) * singles)),
                two.batch(range(step * pairs, (step + 1) * pairs)),
            ]
            images = torch.cat([part[0] for part in parts])
            classes, patches = zip(*(targets(labels, masks) for _, labels, masks in parts), strict=True)
            yield images, torch.cat(classes), torch.cat(patches)


def targets(labels: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Class shares of a scene, and the share of each patch that belongs to each class or to the background."""
    shares = F.one_hot(labels, len(NAMES)).float().mean(1)
    cover = F.avg_pool2d(masks.float(), 8).flatten(2)
    patches = torch.zeros(len(labels), MASK_LABELS, cover.shape[-1])
    patches.scatter_(1, labels[..., None].expand_as(cover), cover)
    patches[:, -1] = 1 - cover.sum(1)
    return shares, patches.transpose(1, 2)


def augment(images: Tensor) -> Tensor:
    """Random contrast, brightness and noise, then the model's normalisation."""
    contrast = torch.empty(len(images), 1, 1, 1).uniform_(0.7, 1.3)
    shift = torch.empty(len(images), 1, 1, 1).uniform_(-0.1, 0.1)
    images = (images - 0.5) * contrast + 0.5 + shift
    return normalize(images + 0.02 * torch.randn_like(images))


def normalize(images: Tensor) -> Tensor:
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (demo.TRANSFORM.mean, demo.TRANSFORM.std))
    return (images - mean) / std


def waves(side: int, width: int) -> Tensor:
    """Sines and cosines of both coordinates, a start for the position embedding (1, side * side, width)."""
    place = torch.arange(side).float()
    frequency = torch.pi / side * 2 ** (torch.arange(width // 4) / (width // 4) * 3.5 - 0.5)
    line = torch.cat([torch.sin(place[:, None] * frequency), torch.cos(place[:, None] * frequency)], 1)
    grid = torch.cat([line[:, None].expand(-1, side, -1), line[None].expand(side, -1, -1)], 2)
    return 0.5 * grid.reshape(1, side * side, width)


def rate(step: int, warmup: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to one per cent."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.01 + 0.495 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def choose(patches: Tensor, keep: float) -> Tensor:
    """Indices (B, kept) of the patches to see: those that touch an object first, then others at random."""
    order = torch.rand(patches.shape[:2]) - (patches[..., -1] < 1).float()
    return order.argsort(1)[:, : int(keep * patches.shape[1])]


def forward(model: nn.Module, images: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor]:
    """Class logits and normalised patch tokens; only the patches with the indices `kept` are seen."""
    tokens = model.patch_embed(images) + model.pos_embed[:, 1:]
    if kept is not None:
        tokens = tokens.gather(1, kept[..., None].expand(-1, -1, tokens.shape[-1]))
    first = (model.cls_token + model.pos_embed[:, :1]).expand(len(images), -1, -1)
    tokens = model.norm(model.blocks(torch.cat([first, tokens], 1)))
    return model.head(tokens[:, 0]), tokens[:, 1:]


@torch.no_grad()
def accuracy(model: nn.Module, split: str, n: int, chunk: int = 250) -> float:
    """Share of scenes whose predicted class is that of (one of) their objects."""
    model.eval()
    scenes, right = Scenes(split, n, EVALUATION_SEED), 0
    for start in range(0, n, chunk):
        images, labels, _ = scenes.batch(range(start, min(n, start + chunk)))
        right += int((model(normalize(images)).argmax(1)[:, None] == labels).any(1).sum())
    return right / n


def train(args: argparse.Namespace) -> nn.Module:
    torch.manual_seed(args.seed)
    model, patch_head = demo.build(), nn.Linear(96, MASK_LABELS)
    if args.init:
        model.load_state_dict(torch.load(args.init, weights_only=True)["state"])
    else:
        model.pos_embed.data[:, 1:] = waves(12, 96)
    patch_weights = torch.tensor([1.0] * len(NAMES) + [0.2])
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if all(p is not m for m in matrices)]
    optimizers = [
        torch.optim.Muon(matrices, lr=args.lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([*others, *patch_head.parameters()], lr=args.lr, betas=(0.9, 0.98), weight_decay=0.05),
    ]
    warmup = max(1, min(150, args.steps // 10))
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda step: rate(step, warmup, args.steps)) for o in optimizers]
    begin, last = time.perf_counter(), args.stop_at or args.steps
    batches = DataLoader(Batches(args.steps, args.batch, args.seed), batch_size=None, num_workers=1, prefetch_factor=4)
    for step, (images, classes, patches) in zip(range(last), batches, strict=False):
        model.train()
        done = step / args.steps
        mask_weight = max(0.0, 1 - done / args.masks_until) if args.masks_until else 0.0
        kept = choose(patches, args.keep) if done < args.drop_until else None
        logits, tokens = forward(model, augment(images), kept)
        loss = class_loss = F.cross_entropy(logits, classes)
        if mask_weight > 0:
            wanted = patches if kept is None else patches.gather(1, kept[..., None].expand(-1, -1, MASK_LABELS))
            predicted = patch_head(tokens)
            loss = loss + mask_weight * F.cross_entropy(predicted.flatten(0, 1), wanted.flatten(0, 1), patch_weights)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        if (step + 1) % args.every == 0 or step + 1 == last:
            score, seconds = accuracy(model, "val", 500), time.perf_counter() - begin
            losses = f"class loss {class_loss.item():.3f}  loss {loss.item():.3f}"
            print(f"step {step + 1}  {losses}  val {score:.3f}  {seconds:.0f} s", flush=True)
            if args.checkpoint:
                torch.save({"state": model.state_dict(), "stages": stages(args, step + 1, seconds)}, args.checkpoint)
    args.stages = stages(args, last, time.perf_counter() - begin)
    return model


def stages(args: argparse.Namespace, steps: int, seconds: float) -> list[dict]:
    """The settings of this run, after those of the run it continues."""
    keys = ("steps", "batch", "lr", "seed", "drop_until", "keep", "masks_until")
    here = {key: getattr(args, key) for key in keys} | {"stopped_at": steps, "seconds": round(seconds)}
    return [*(torch.load(args.init, weights_only=True)["stages"] if args.init else []), here]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for weights and record, written if given")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--stop-at", type=int, help="stop after this many of the steps")
    parser.add_argument("--init", type=Path, help="checkpoint to start from")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the training scenes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--drop-until", type=float, default=0.65, help="share of training with few patches")
    parser.add_argument("--keep", type=float, default=1 / 3, help="share of the patches seen until then")
    parser.add_argument("--masks-until", type=float, default=0.6, help="share of training with the patch loss")
    parser.add_argument("--every", type=int, default=250, help="steps between validations")
    parser.add_argument("--test-scenes", type=int, default=3000)
    parser.add_argument("--checkpoint", type=Path, help="file rewritten at each validation")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    model = train(args)
    if args.out is None:
        return
    state = {name: value.half().contiguous() for name, value in model.state_dict().items()}
    args.out.mkdir(parents=True, exist_ok=True)
    weights = args.out / "demo.safetensors"
    weights.write_bytes(save(state))
    model = demo.build()
    model.load_state_dict({name: value.float() for name, value in load_file(weights).items()})
    right = round(accuracy(model, "test", args.test_scenes) * args.test_scenes)
    interval = binomtest(right, args.test_scenes).proportion_ci(0.95, method="wilson")
    record = {
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "test": {
            "split": "test",
            "scenes": args.test_scenes,
            "seed": EVALUATION_SEED,
            "accuracy": right / args.test_scenes,
            "wilson95": [interval.low, interval.high],
        },
        "two_object": {
            "split": "two-object",
            "scenes": 1000,
            "seed": EVALUATION_SEED,
            "top1_is_one_of_the_two": accuracy(model, "two-object", 1000),
        },
        "training": {"stages": args.stages, "torch": torch.__version__},
        "note": "Measured on the float16 weights as shipped, computed in float32.",
    }
    (args.out / "demo.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
