"""A few sentences with everything the judges share: clean logits, targets, words, and the relevance of one method."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from xattn._state import undisturbed
from xattn.attributions import TransformerAttribution
from xattn.evaluation._foreign import foreign_relevance
from xattn.evaluation._labels import Explained, sample_labels
from xattn.evaluation.datasets import Sample
from xattn.evaluation.text import sentence_logits, word_groups

if TYPE_CHECKING:
    from xattn.models.text_model import TextModel


@dataclass(eq=False)
class TextChunk:
    """Sentences of one chunk, and one method's way to explain them.

    Attributes:
        forward: The model.
        samples: B of them.
        inputs: (B, N) token ids, padded.
        mask: (B, N), 0 at padding.
        groups: (B, N) number of the word that each token belongs to, -1 for special tokens and padding.
        clean: (B, classes) logits of the inputs.
        target: (B,) class that is explained.
        batch_size: Largest number of rows of one forward call.
        seed: Of everything random.
        method: The method whose relevance is judged.
    """

    forward: "TextModel"
    samples: Sequence[Sample]
    inputs: Tensor
    mask: Tensor
    groups: Tensor
    clean: Tensor
    target: Tensor
    batch_size: int
    seed: int = 0
    method: Any = None

    def copy(self) -> "TextChunk":
        """The same with tensors of its own, to write into."""
        own: dict[str, Any] = {k: value.clone() for k, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, samples=[sample.copy() for sample in self.samples], **own)

    def shown(self, relevance: Tensor, count: int) -> dict[int, Any]:
        """Nothing: reports show examples of pictures only."""
        return {}

    def attribute(self, target: Tensor) -> Tensor:
        """(B, N) relevance of tokens for these classes; embeddings' relevance is summed over their width."""
        if isinstance(self.method, TransformerAttribution):
            relevance: Tensor = self.method.attribute(
                self.inputs,
                target=target,
                additional_forward_args=self.mask,
                resolution="token",
                internal_batch_size=self.batch_size,
            )
            return relevance
        found = foreign_relevance(
            self.method, self.inputs.clone(), (2, 3), target=target, additional_forward_args=(self.mask,)
        )
        return found.sum(-1) if found.ndim == 3 else found

    def per_word(self, relevance: Tensor) -> list[Tensor]:
        """(words,) relevance of each sentence's words, summed over their pieces."""
        words = (self.forward.words(sample.text) for sample in self.samples)
        return [one.per_word(row[: len(one.tokens)]) for one, row in zip(words, relevance, strict=True)]


def make_text_chunk(
    model: "TextModel", samples: Sequence[Sample], *, explained: Explained, batch_size: int
) -> TextChunk:
    """Pad the sentences to one length and run the model on them once.

    Raises:
        ArgumentError: If labels are to be explained and one is unknown.
    """
    texts = [sample.text for sample in samples]
    ids, mask = model.preprocess(texts)
    with torch.no_grad(), undisturbed(model):
        clean = sentence_logits(model, ids, mask, batch_size)
    target = clean.argmax(1) if explained == "predicted" else sample_labels(samples, clean, 'target="label"')
    return TextChunk(model, samples, ids, mask, word_groups(model, texts), clean, target, batch_size)
