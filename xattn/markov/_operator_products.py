"""Products with softmax(Q K^T) and its transpose, through torch's fused attention and without the matrix.

A x is attention with x as the values. v A is attention with the roles of queries and keys exchanged: what token j
receives is sum_i exp(q_i k_j - lse_i) v_i, where lse_i is the normaliser of row i. An extra coordinate carries -lse_i
into the dot product. The fused kernel divides by a normaliser of its own; a dummy token with score zero, whose value is
one in a spare column and zero elsewhere, tells what it was.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK_ENTRIES = 2**20
"""Scores that exist at a time while the normalisers are summed up."""
WIDTH_MULTIPLE = 8
"""Fused kernels take head widths that are multiples of this."""


class Products(Protocol):
    """Products of a flat batch of B chains with k vectors as rows."""

    @property
    def received(self) -> Tensor:
        """(B, N) column sums."""

    def __getitem__(self, rows: Tensor) -> Self:
        """The chains of some rows."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, k, N) -> (B, k, N): A x for each vector."""

    def transposed(self, v: Tensor) -> Tensor:
        """(B, k, N) -> (B, k, N): v A for each vector."""


@dataclass(frozen=True)
class DenseProducts:
    """Products with the matrix (B, N, N) itself."""

    matrix: Tensor

    @property
    def received(self) -> Tensor:
        """(B, N) column sums."""
        return self.matrix.sum(-2)

    def __getitem__(self, rows: Tensor) -> Self:
        return replace(self, matrix=self.matrix[rows])

    def forward(self, x: Tensor) -> Tensor:
        """See `Products`."""
        return torch.bmm(x, self.matrix.mT)

    def transposed(self, v: Tensor) -> Tensor:
        """See `Products`."""
        return torch.bmm(v, self.matrix)


@dataclass(frozen=True)
class FusedProducts:
    """Products through `scaled_dot_product_attention`; memory grows with N, not with its square.

    Attributes:
        query: (B, 1 + N, D), a dummy token first; its product with `key` is score minus normaliser.
        key: (B, 1 + N, D), a dummy token first.
        valid: (B, N) bool, false for padding; None without.
        causal: Whether later tokens are hidden.
    """

    query: Tensor
    key: Tensor
    valid: Tensor | None
    causal: bool

    @classmethod
    def of(cls, query: Tensor, key: Tensor, bias: Tensor | None, valid: Tensor | None, causal: bool) -> Self:
        """From scaled queries and keys (B, N, d) and what is added to the scores of each key, (B, N)."""
        width = query.shape[-1]
        wide = -(-(width + 2) // WIDTH_MULTIPLE) * WIDTH_MULTIPLE
        full_query, full_key = (query.new_zeros(len(query), query.shape[1] + 1, wide) for _ in range(2))
        full_query[:, 1:, :width], full_query[:, 1:, -2] = query, 1
        full_key[:, 1:, :width], full_key[:, 1:, -1] = key, 1
        if bias is not None:
            full_key[:, 1:, -2] = bias
        return cls(full_query, full_key, valid, causal)._normalised()

    def double(self) -> Self:
        """The same in float64, normalisers included."""
        return replace(self, query=self.query.double(), key=self.key.double())._normalised()

    def _normalised(self) -> Self:
        """Put the normalisers where the dot product takes them off the scores."""
        self.query[..., -1] = 0
        self.query[:, 1:, -1] = -log_normalisers(self.query[:, 1:], self.key[:, 1:], self.causal)
        return self

    @property
    def states(self) -> int:
        """N."""
        return self.query.shape[1] - 1

    @property
    def received(self) -> Tensor:
        """(B, N) column sums."""
        return self.transposed(self.query.new_ones(len(self.query), 1, self.states)).squeeze(1)

    @property
    def normalisers(self) -> Tensor:
        """(B, N) logarithm of each row's sum of exponentials."""
        return -self.query[:, 1:, -1]

    @property
    def diagonal(self) -> Tensor:
        """(B, N) what each token pays to itself; one on padding, where nothing is paid."""
        return (self.query * self.key).sum(-1)[:, 1:].exp()

    def __getitem__(self, rows: Tensor) -> Self:
        valid = None if self.valid is None else self.valid[rows]
        return replace(self, query=self.query[rows], key=self.key[rows], valid=valid)

    def forward(self, x: Tensor) -> Tensor:
        """See `Products`."""
        query, key, most = self.query[:, 1:], self.key[:, 1:], self.key.shape[-1]
        return self._apart(x, most, lambda part: attend(query, key, part, self.causal))

    def transposed(self, v: Tensor) -> Tensor:
        """See `Products`."""
        return self._apart(v, self.key.shape[-1] - 1, self._swapped)

    def _swapped(self, v: Tensor) -> Tensor:
        data = F.pad(v, (1, 0))
        spare = torch.zeros_like(data[:, :1])
        spare[..., 0] = 1
        values = torch.cat((data, spare), 1)
        if not self.causal:
            found = attend(self.key[:, 1:], self.query, values, causal=False)
        else:  # what is received from later tokens comes from earlier ones in the reversed sequence
            query, key = (torch.cat((x[:, :1], x[:, 1:].flip(1)), 1) for x in (self.query, self.key))
            values = torch.cat((values[..., :1], values[..., 1:].flip(-1)), -1)
            found = attend(key, query, values, causal=True)[..., 1:].flip(-1)
        return found[:, :-1] / found[:, -1:]

    def _apart(self, vectors: Tensor, most: int, product: Callable[[Tensor], Tensor]) -> Tensor:
        """At most `most` vectors at a time, and nothing enters or leaves padding."""
        if self.valid is not None:
            vectors = vectors * self.valid.unsqueeze(1)
        found = torch.cat([product(part) for part in vectors.split(most, 1)], 1)
        return found if self.valid is None else found * self.valid.unsqueeze(1)


def attend(query: Tensor, key: Tensor, values: Tensor, causal: bool) -> Tensor:
    """softmax(Q K^T) values for k vectors as rows, (B, k, M) -> (B, k, N).

    Values as wide as queries keep torch on its fused kernels: any other width would build the matrix.
    """
    padded = F.pad(values.mT, (0, key.shape[-1] - values.shape[1])).unsqueeze(1)
    found = F.scaled_dot_product_attention(query.unsqueeze(1), key.unsqueeze(1), padded, is_causal=causal, scale=1.0)
    return found[:, 0, :, : values.shape[1]].mT


def log_normalisers(query: Tensor, key: Tensor, causal: bool) -> Tensor:
    """(B, N) logarithm of each row's sum of exponentials, a few rows of scores at a time."""
    states = query.shape[1]
    rows = max(1, CHUNK_ENTRIES // states)
    found = query.new_empty(query.shape[:2])
    for chain in range(len(query)):
        for start in range(0, states, rows):
            stop = min(start + rows, states)
            scores = query[chain, start:stop] @ key[chain, : stop if causal else states].mT
            if causal:
                future = torch.ones_like(scores, dtype=torch.bool).triu(start + 1)
                scores.masked_fill_(future, -torch.inf)
            found[chain, start:stop] = scores.logsumexp(-1)
    return found
