"""Words and their word pieces: how a sentence is cut for BERT, and how relevance of pieces becomes that of words."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from xattn.errors import ArgumentError, ArgumentTypeError, WeightsError

CLS, SEP, PAD, UNKNOWN = "[CLS]", "[SEP]", "[PAD]", "[UNK]"


@dataclass(frozen=True)
class Words:
    """The words of one sentence and where their pieces are among the model's tokens.

    Attributes:
        words: words and punctuation marks as they are written; iterating gives them.
        spans: (start, stop) positions of each word's tokens, the class token being position 0; an empty span
            for what the tokenizer drops, such as a lone zero-width space.
        tokens: the word pieces, class token and separator included.
    """

    words: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    tokens: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.words)

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def per_word(self, relevance: Tensor) -> Tensor:
        """Sums relevance (..., N) of tokens over each word's pieces: (..., words).

        Class token, separator and padding belong to no word.

        Raises:
            ArgumentError: there are fewer numbers than the sentence has tokens.
        """
        if not isinstance(relevance, Tensor):
            raise ArgumentTypeError(f"relevance: expected a tensor, got {type(relevance).__name__}.")
        if relevance.ndim < 1 or relevance.shape[-1] < len(self.tokens):
            raise ArgumentError(
                f"relevance: expected a number for each of the {len(self.tokens)} tokens (padding may follow), "
                f"got shape {tuple(relevance.shape)}."
            )
        return torch.stack([relevance[..., start:stop].sum(-1) for start, stop in self.spans], -1)


def split_words(text: str) -> list[tuple[int, int]]:
    """(start, stop) of each word: cut at white space, and punctuation around a word stands for itself.

    Example:
        >>> text = "Well-known, isn't it?"
        >>> [text[start:stop] for start, stop in split_words(text)]
        ['Well-known', ',', "isn't", 'it', '?']
    """
    spans = []
    start = 0
    for chunk in text.split():
        start = text.index(chunk, start)
        stop = start + len(chunk)
        first, last = start, stop
        while first < stop and _is_punctuation(text[first]):
            first += 1
        while last > first and _is_punctuation(text[last - 1]):
            last -= 1
        spans += [(i, i + 1) for i in range(start, first)]
        spans += [(first, last)] * (last > first)
        spans += [(i, i + 1) for i in range(last, stop)]
        start = stop
    return spans


def _is_punctuation(character: str) -> bool:
    """What BERT cuts off: punctuation in the sense of Unicode, and every ASCII sign that is no letter or digit."""
    ascii_sign = character.isascii() and character.isprintable() and not (character.isalnum() or character.isspace())
    return ascii_sign or unicodedata.category(character).startswith("P")


class WordPieces:
    """BERT's tokenizer for lower-case English, from a vocabulary file alone.

    Args:
        vocabulary: file with one piece a line; the line number is the id.
        longest: most tokens that the model takes.
    """

    def __init__(self, vocabulary: Path, longest: int = 512) -> None:
        from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

        try:
            pieces = vocabulary.read_text(encoding="utf-8").rstrip("\n").split("\n")
        except OSError as error:
            raise WeightsError(f"{vocabulary} is not a readable vocabulary ({error}).") from None
        self.pieces = tuple(pieces)
        self.longest = longest
        self._tokenizer = BertWordPieceTokenizer({piece: i for i, piece in enumerate(pieces)}, lowercase=True)
        self._pad = self.pieces.index(PAD)

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Token ids (B, N), padded to the longest text, and the attention mask (B, N), 0 at padding."""
        encodings = [self._encode(text)[0] for text in texts]
        if not encodings:
            raise ArgumentError("text: expected at least one sentence, got none.")
        length = max(len(ids) for ids in encodings)
        ids = torch.tensor([row + [self._pad] * (length - len(row)) for row in encodings])
        mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in encodings])
        return ids, mask

    def decode(self, ids: Tensor) -> list[str]:
        """The pieces of token ids (N,)."""
        if ids.ndim != 1 or ids.is_floating_point():
            raise ArgumentError(f"ids: expected the token ids (N,) of one sentence, got shape {tuple(ids.shape)}.")
        return [self.pieces[i] for i in ids.tolist()]

    def words(self, text: str) -> Words:
        """The words of a text with the spans of their pieces."""
        ids, offsets = self._encode(text)
        places = split_words(text)
        spans, position = [], 1
        for _, stop in places:
            first = position
            while position < len(ids) - 1 and offsets[position][0] < stop:
                position += 1
            spans.append((first, position))
        names = tuple(text[start:stop] for start, stop in places)
        return Words(names, tuple(spans), tuple(self.pieces[i] for i in ids))

    def _encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        if not isinstance(text, str):
            raise ArgumentTypeError(f"text: expected a string or a list of strings, got {type(text).__name__}.")
        encoding = self._tokenizer.encode(text)
        if len(encoding.ids) <= 2:
            raise ArgumentError(f"text: expected at least one word, got {text!r}.")
        if len(encoding.ids) > self.longest:
            raise ArgumentError(
                f"text: {len(encoding.ids)} word pieces are more than the {self.longest} the model takes; shorten it."
            )
        return encoding.ids, encoding.offsets
