"""A loaded text classifier: the network with its tokenizer and its class names."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from xattn.errors import ArgumentError
from xattn.models.classifier import Classifier
from xattn.models.model import Prediction
from xattn.models.wordpiece import WordPieces, Words


@dataclass(frozen=True, eq=False)
class TextModel(Classifier):
    """A text classifier ready to be explained; `model(input_ids, attention_mask)` returns logits (B, classes).

    Attributes:
        name: what `load` was called with.
        module: the network, in evaluation mode.
        tokenizer: cuts texts into word pieces.
        classes: class names in the order of the logits.
        description: one sentence on what the model is.

    Example, with a method of `xattn.attributions`::

        model = load("text")
        ids, mask = model.preprocess(["The choir sang.", "She lost the tennis match on Friday."])
        relevance = RawAttention(model).attribute(ids, additional_forward_args=mask)   # (2, N), padding 0
        words = model.words("The choir sang.")
        words.per_word(relevance[0])                                                   # one number for each of `words`
    """

    name: str
    module: nn.Module
    tokenizer: WordPieces
    classes: tuple[str, ...] = ()
    description: str = ""

    def preprocess(self, text: str | Sequence[str]) -> tuple[Tensor, Tensor]:
        """One text or several to token ids (B, N) and attention mask (B, N), on the model's device."""
        ids, mask = self.tokenizer.encode([text] if isinstance(text, str) else text)
        return ids.to(self.device), mask.to(self.device)

    def tokens(self, ids: Tensor) -> list[str]:
        """The word pieces of one text's ids (N,), special tokens included."""
        return self.tokenizer.decode(ids)

    def words(self, text: str) -> Words:
        """The words of a text, with the spans of their word pieces; `.per_word` sums relevance over them."""
        return self.tokenizer.words(text)

    @torch.no_grad()
    def predict(self, text: str | Sequence[str], k: int = 3) -> list[list[Prediction]]:
        """The k most probable classes of each text, best first.

        Args:
            text: one text or several.
            k: how many; more than there are classes means all.
        """
        if k < 1:
            raise ArgumentError(f"k must be at least 1; got {k}.")
        probabilities = self(*self.preprocess(text)).float().softmax(-1)
        top = probabilities.topk(min(k, probabilities.shape[-1]))
        return [
            [Prediction(self.class_name(i), i, p) for i, p in zip(indices, values, strict=True)]
            for indices, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ]
