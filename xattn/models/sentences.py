"""Sentences with known answers: short texts about one or two topics, whose deciding words are known.

A sentence depends on (split, seed, index) alone. Only its terms tell the topic; names, places, things and the template
are drawn independently of it. Test sentences use terms that no training sentence has.

Example:
    >>> sentence = Sentences("two-topic", n=6)[1]
    >>> sentence.names, [[sentence.words[i] for i in rationale] for rationale in sentence.rationales]
    (('astronomy', 'food'), [['spaceship'], ['ice', 'cream']])
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from xattn.models._splits import check_split
from xattn.models.phrases import FILLERS, ONE_TOPIC, TEST_TERMS, TRAIN_TERMS, TWO_TOPICS
from xattn.models.wordpiece import split_words

NAMES: tuple[str, ...] = tuple(TRAIN_TERMS)
SPLITS: dict[str, int] = {"train": 0, "test": 1, "two-topic": 2, "two-topic-train": 3}
"""Each split has a number that enters the seed of its sentences."""

_PAIRS = tuple((a, b) for step in range(1, len(NAMES)) for a in range(len(NAMES)) for b in [(a + step) % len(NAMES)])


@dataclass(frozen=True)
class Sentence:
    """One text and the words that decide what it is about.

    Attributes:
        text: the sentence.
        labels: topic of each term, in the order of the text, the first one being `label`.
        rationales: positions in `words` of each term, in the order of `labels`.
    """

    text: str
    labels: tuple[int, ...]
    rationales: tuple[tuple[int, ...], ...]

    @property
    def label(self) -> int:
        """Topic of the first term."""
        return self.labels[0]

    @property
    def rationale(self) -> tuple[int, ...]:
        """Positions in `words` of all terms together."""
        return tuple(position for rationale in self.rationales for position in rationale)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words and punctuation marks of the text, as `wordpiece.split_words` gives them."""
        return tuple(self.text[start:stop] for start, stop in split_words(self.text))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the topics."""
        return tuple(NAMES[label] for label in self.labels)


class Sentences(torch.utils.data.Dataset[Sentence]):
    """A split of sentences, made on demand; topics (and pairs of topics) take turns, so that they are balanced.

    Args:
        split: "train", "test" (one topic), "two-topic" (terms of two topics), or "two-topic-train".
        n: number of sentences.
        seed: another seed gives other sentences; 0 is the seed of every figure stated for the `text` model.
    """

    def __init__(self, split: str = "test", n: int = 600, seed: int = 0) -> None:
        check_split(split, n, seed, SPLITS)
        self.split, self.n, self.seed = split, n, seed
        self.topics = 2 if split.startswith("two") else 1

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Sentence:
        if not -self.n <= index < self.n:
            raise IndexError(f"sentence {index} of a split of {self.n}")
        index %= self.n
        rng = np.random.default_rng([self.seed, SPLITS[self.split], index])
        labels = (index % len(NAMES),) if self.topics == 1 else _PAIRS[index % len(_PAIRS)]
        terms = TRAIN_TERMS if self.split.endswith("train") else TEST_TERMS
        return write(rng, labels, [_pick(rng, terms[NAMES[label]]) for label in labels])

    def __iter__(self) -> Iterator[Sentence]:
        return (self[i] for i in range(self.n))


def write(rng: np.random.Generator, labels: tuple[int, ...], terms: Sequence[str]) -> Sentence:
    """Fills a template with the terms of the topics and with words that tell nothing."""
    template = _pick(rng, ONE_TOPIC if len(labels) == 1 else TWO_TOPICS)
    fillers = {place: _pick(rng, words) for place, words in FILLERS.items()}
    rationales = []
    for number, term in enumerate(terms):
        before = template.partition(f"{{{number}}}")[0].format(*terms, **fillers)
        first = len(split_words(before))
        rationales.append(tuple(range(first, first + len(term.split()))))
    return Sentence(template.format(*terms, **fillers), labels, tuple(rationales))


def _pick(rng: np.random.Generator, choices: Sequence[str]) -> str:
    return choices[int(len(choices) * rng.random())]
