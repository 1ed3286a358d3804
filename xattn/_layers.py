"""Which of a model's attention layers to keep, decided while the forward runs."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from xattn.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from xattn.attention import AttentionRecord

Layers = Literal["all"] | int | Sequence[int]


def check_layers(layers: Layers) -> tuple[int, ...] | None:
    """`layers` as a tuple of indices, None for all.

    Raises:
        ArgumentError: For another word than "all" or an empty list.
        ArgumentTypeError: If it is no integer, no list of integers.
    """
    if isinstance(layers, str):
        if layers != "all":
            raise ArgumentError(f'layers: expected "all", an integer or a list of integers, got {layers!r}')
        return None
    indices = (layers,) if isinstance(layers, int) else tuple(layers) if isinstance(layers, Iterable) else (layers,)
    if any(not isinstance(index, int) or isinstance(index, bool) for index in indices):
        raise ArgumentTypeError(f'layers: expected "all", an integer or a list of integers, got {layers!r}')
    if not indices:
        raise ArgumentError("layers: expected at least one index, got an empty list")
    return indices


class LayerSelection:
    """Keeps the asked records of each stream and drops the others at once.

    Indices count the self-attentions of each stream. Records of another kind (pooling, cross, window) are kept with
    every choice, since they are what a stream without a class token is explained by. An index from the end is known
    only when the forward is over: until then as many of the last records as may be asked for are held.
    """

    def __init__(self, layers: Layers, consumer: "Callable[[AttentionRecord], AttentionRecord | None] | None") -> None:
        self._indices = check_layers(layers)
        self._consumer = consumer
        self._order = 0
        self._kept: list[tuple[int, AttentionRecord]] = []
        self._tails: dict[str, deque[tuple[int, AttentionRecord]]] = {}
        self._depth: dict[str, int] = {}

    def add(self, record: "AttentionRecord") -> None:
        """Take the next record of the forward call."""
        self._order += 1
        if record.kind != "self":
            self._keep(self._order, record)
            return
        self._depth[record.stream] = record.layer + 1
        if self._indices is None or record.layer in self._indices:
            self._keep(self._order, record)
        else:
            size = max(0, -min(self._indices))
            self._tails.setdefault(record.stream, deque(maxlen=size)).append((self._order, record))

    def finish(self) -> "list[AttentionRecord]":
        """All kept records in order of execution.

        Raises:
            ArgumentError: If an index exists in no stream, although there are self-attentions.
        """
        for index in self._indices or ():
            if self._depth and not any(-depth <= index < depth for depth in self._depth.values()):
                found = ", ".join(f"{stream or 'the model'} has {depth}" for stream, depth in self._depth.items())
                raise ArgumentError(f"layers: no self-attention layer {index}; {found}")
        for order, record in list(self._from_end()):
            self._keep(order, record)
        self._tails.clear()
        return [record for _, record in sorted(self._kept, key=lambda entry: entry[0])]

    def so_far(self) -> "list[AttentionRecord]":
        """What `finish` would return if the forward were over, without those that the consumer has not taken yet."""
        waiting = self._from_end() if self._consumer is None else ()
        return [record for _, record in sorted([*self._kept, *waiting], key=lambda entry: entry[0])]

    def _from_end(self) -> "Iterator[tuple[int, AttentionRecord]]":
        """Records that are asked for by an index from the end, as many layers as there are now."""
        for stream, tail in self._tails.items():
            wanted = {index + self._depth[stream] for index in self._indices or () if index < 0}
            yield from ((order, record) for order, record in tail if record.layer in wanted)

    def _keep(self, order: int, record: "AttentionRecord") -> None:
        kept = record if self._consumer is None else self._consumer(record)
        if kept is not None:
            self._kept.append((order, kept))
