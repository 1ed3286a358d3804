"""A walk over the tokens of a picture: bounces from a clicked token to their limit, and each head's lambda2."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from xattn.attention import AttentionRecord
from xattn.attributions import NBounceAttention, TokenRank
from xattn.attributions._chain import restrict
from xattn.attributions._forward import run_forward
from xattn.layout import TokenLayout
from xattn.markov import second_eigenvalue
from xattn.markov.chain import Direction
from xattn.models.model import Model

BOUNCES = 20
"""Bounces of a film; the frame after the last one is the limit."""


@dataclass(frozen=True)
class Survey:
    """What the walks of a picture can run on.

    Attributes:
        layout: Roles of the tokens.
        lambda2: (layers, heads) modulus of the second eigenvalue of each head's chain on the patches; NaN where a
            layer has fewer heads than others.
    """

    layout: TokenLayout
    lambda2: Tensor

    def heads(self, layer: int) -> int:
        """Number of heads of a layer."""
        return int((~self.lambda2[layer].isnan()).sum())


@dataclass(frozen=True)
class Walk:
    """Where a walk starts and what it follows.

    Attributes:
        start: Position of the token; None is where the model reads its answer (the class token, mostly).
        layer: Index of the self-attention layer.
        head: Index of the head; None is the mean of all.
        direction: "forward" from query to key, or "backward".
    """

    start: int | None = None
    layer: int = -1
    head: int | None = None
    direction: Direction = "forward"

    def options(self, layout: TokenLayout | None) -> dict[str, Any]:
        """Arguments of chain methods."""
        fusion = "mean" if self.head is None else self.head
        return {"layers": self.layer, "head_fusion": fusion, "direction": self.direction, "layout": layout}


def survey(model: Model, inputs: Tensor) -> Survey:
    """Layout and lambda2 of every layer and head, from one forward call on a batch of one.

    Raises:
        UnsupportedModelError: If the model's attention is no chain over all tokens.
        CaptureError: If attention could not be read.
        LayoutError: If the tokens' roles could not be found.
    """
    heads = _Eigenvalues()
    with torch.no_grad():
        layout = run_forward(model, inputs, layers="all", layout=model.layout, reducer=heads).layout
    most = max(map(len, heads.layers))
    rows = [torch.nn.functional.pad(row, (0, most - len(row)), value=torch.nan) for row in heads.layers]
    return Survey(layout, torch.stack(rows))


def film(model: Model, inputs: Tensor, walk: Walk, layout: TokenLayout) -> Tensor:
    """(BOUNCES + 2, h, w): the start, bounces 1 to `BOUNCES`, and TokenRank, their limit."""
    options = walk.options(layout)
    bounces = NBounceAttention(model, n=BOUNCES, start=_start(walk), **options).film(inputs)[0]
    limit = TokenRank(model, **options).attribute(inputs, resolution="patch")
    return torch.cat([bounces, limit]).cpu()


def attention(model: Model, inputs: Tensor, walk: Walk, layout: TokenLayout) -> Tensor:
    """(N,) attention that the start pays to each token (forward), or each token's share in what it gets (backward)."""
    method = NBounceAttention(model, n=1, start=_start(walk), tokens="all", **walk.options(layout))
    return method.film(inputs, resolution="token")[0, 1].cpu()


def _start(walk: Walk) -> Any:  # noqa: ANN401
    return "auto" if walk.start is None else walk.start


class _Eigenvalues:
    """Takes each layer's lambda2 and lets go of its matrices."""

    def __init__(self) -> None:
        self.layers: list[Tensor] = []

    def update(self, record: AttentionRecord, layout: TokenLayout) -> None:
        chains = restrict(record.attention.detach(), layout, "patches")[0]
        self.layers.append(second_eigenvalue(chains).modulus.cpu())
