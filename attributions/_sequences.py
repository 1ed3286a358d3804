"""Which of two sequences asks and which answers in each attention of a model."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from xattn.attention import AttentionRecord
from xattn.errors import ArgumentError, UnsupportedModelError

SequencesOf: TypeAlias = Callable[[AttentionRecord], tuple[str, str]]

_ASK = (
    "pass sequences_of=, a function from a record (.path, .kind, .attention) to the names of the sequences that ask "
    'and that answer, for example lambda record: ("text", "image")'
)


def find_sequences(
    records: Sequence[AttentionRecord], given: SequencesOf | None
) -> tuple[tuple[str, str], list[tuple[int, int]]]:
    """Names of two sequences in order of execution, and for each record the numbers of those that ask and answer.

    Sequences are told apart by their lengths, or, where these are equal, by the two stacks of layers (encoder and
    decoder) that they run through.

    Raises:
        ArgumentError: If they cannot be told apart, or `given` names more or fewer than two.
        UnsupportedModelError: If the model has another number of sequences, or they do not meet.
    """
    for record in records:
        if record.kind not in ("self", "cross"):
            raise UnsupportedModelError(
                f"forward_func: attention in {record.path!r} is of kind {record.kind!r}; expected self-attention and "
                "cross-attention of two sequences of tokens"
            )
    if given is not None:
        keys = [given(record) for record in records]
        names = list(dict.fromkeys(name for pair in keys for name in pair))
        if len(names) != 2:
            raise ArgumentError(f"sequences_of: expected two names, got {len(names)}: {names}")
        return _numbered((names[0], names[1]), keys)
    if all(record.kind == "self" for record in records):
        raise UnsupportedModelError(
            "forward_func: no sequence is seen to attend to another one; explain one at a time with GenericAttention, "
            f"or {_ASK}"
        )
    sizes = list(dict.fromkeys(size for record in records for size in record.attention.shape[-2:]))
    if len(sizes) > 2:
        raise UnsupportedModelError(
            f"forward_func: expected two sequences of tokens, got {len(sizes)}, of lengths {sizes}; wrap the model so "
            "that it runs two of them"
        )
    if len(sizes) == 2:
        named = {size: _first_stream(records, size) for size in sizes}
        if len(set(named.values())) == 1:  # both in one stack
            named = {size: f"{stream}, {size} tokens" for size, stream in named.items()}
        queries_and_keys = [tuple(named[size] for size in record.attention.shape[-2:]) for record in records]
        return _numbered((named[sizes[0]], named[sizes[1]]), [(pair[0], pair[1]) for pair in queries_and_keys])
    return _by_stream(records, sizes[0])


def _by_stream(records: Sequence[AttentionRecord], size: int) -> tuple[tuple[str, str], list[tuple[int, int]]]:
    streams = list(dict.fromkeys(record.stream for record in records))
    if len(streams) != 2 or {record.stream for record in records if record.kind == "self"} != set(streams):
        raise ArgumentError(
            f"sequences_of: both sequences have {size} tokens, and their layers do not tell them apart; {_ASK}"
        )
    other = {streams[0]: streams[1], streams[1]: streams[0]}
    keys = [(r.stream, r.stream if r.kind == "self" else other[r.stream]) for r in records]
    return _numbered((streams[0], streams[1]), keys)


def _first_stream(records: Sequence[AttentionRecord], size: int) -> str:
    """The stack in which a sequence of that length attends to itself first, else asks first."""
    asking = [record for record in records if record.attention.shape[-2] == size]
    own = [record for record in asking if record.attention.shape[-1] == size]
    return next((record.stream for record in (*own, *asking)), "keys alone")


def _numbered(names: tuple[str, str], keys: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], list[tuple[int, int]]]:
    return names, [(names.index(asks), names.index(answers)) for asks, answers in keys]
