"""Token masking: how a score falls as whole tokens are taken away in the order of their relevance."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from xattn._state import undisturbed
from xattn.attributions._targets import Target
from xattn.errors import ArgumentError, UnsupportedModelError
from xattn.evaluation._curve import Curve
from xattn.evaluation._ranking import ALL_FRACTIONS, Order, cells_removed, check_fractions, removal_rank
from xattn.evaluation._scores import SCORES, Score, batched_logits, call_logits, resolve_class, score_of
from xattn.evaluation._shapes import (
    Statistics,
    check_choice,
    check_forward,
    check_images,
    constant_maps,
    patch_map,
    sum_channels,
)
from xattn.evaluation._shared import recalled, unshared
from xattn.evaluation._token_ops import hidden_keys, only_tokens
from xattn.evaluation._tokens import Tokens, find_tokens
from xattn.evaluation.fill import Fill
from xattn.evaluation.perturbation import Forward, Removal, perturbation_curves
from xattn.layout import TokenLayout, check_layout

How: TypeAlias = Literal["fill", "drop", "attention"]


def token_masking(
    forward: Forward,
    inputs: Tensor,
    relevance: Tensor,
    target: Target = None,
    *,
    how: How = "fill",
    order: Order = "positive",
    fractions: Sequence[float] | Tensor | None = None,
    score: Score = "probability",
    grid: tuple[int, int] | None = None,
    fill: Fill = "black",
    mean: Statistics = None,
    std: Statistics = None,
    layout: TokenLayout | None = None,
    seed: int = 0,
    batch_size: int = 32,
) -> Curve:
    """Take away round(p * h * w) tokens by relevance and follow the score of the target.

    Prefix tokens (class, registers) always stay. Equal relevance goes row by row from the top left.

    Args:
        forward: Module or callable from images to logits; nothing is left on it.
        inputs: (B, C, H, W) images as the model gets them.
        relevance: (B, h, w) of the tokens' grid, or per pixel, then summed over each token's pixels.
        target: int, list or tensor (B,); None is the predicted class of the clean image.
        how: "fill": the token's pixels are replaced by `fill`. "drop": the token leaves the sequence before the first
            block, its position embedding with it. "attention": no query of any layer sees the token as a key; where a
            model averages all tokens, masked ones still enter that average.
        order: "positive" takes the most relevant first (a small area is good), "negative" the least relevant.
        fractions: Increasing fractions in 0..1; None is 0, 0.1 ... 1, without 1 where nothing would be left: for
            "drop" and "attention" in models without prefix tokens.
        score: "probability", "accuracy", "logit" or "log_odds" of the target.
        grid: (h, w) of the tokens; None reads it off the model where that is needed.
        fill: For "fill", see `perturbation`.
        mean: For "fill", see `perturbation`.
        std: For "fill", see `perturbation`.
        layout: Roles of the tokens where they cannot be found.
        seed: Of the fill's noise.
        batch_size: Largest number of rows of one forward call; no influence on the result.

    Returns:
        A `Curve` with values (B, S).

    Raises:
        ArgumentError: If an argument is out of range or shapes do not fit.
        UnsupportedModelError: If tokens cannot be taken out of this model that way.
    """
    check_choice("how", how, get_args(How))
    check_choice("score", score, SCORES)
    check_forward(forward)
    check_images(inputs)
    check_layout(layout)
    if how == "fill":
        grid = grid or (layout.grid if layout else None)
        chosen = ALL_FRACTIONS if fractions is None else fractions
        removal = Removal(order, chosen, fill, "patch", grid, seed=seed)
        curve = perturbation_curves(
            forward, inputs, relevance, target, removal, (score,), mean=mean, std=std, batch_size=batch_size
        )[score]
        return replace(curve, settings={**curve.settings, "how": how, "unit": "token"})

    # Without tokens the model is another network: it must run, also on clean pictures.
    model = unshared(forward)
    found = find_tokens(model, inputs, layout)
    layout = found.layout
    if grid is not None and grid != layout.grid:
        raise ArgumentError(f"grid: the model's tokens lie on {layout.grid}, got {grid}")
    maps = patch_map(relevance, inputs, layout.grid)
    nominal = _fractions(fractions, layout)
    counts = cells_removed(nominal, layout.num_patches)
    if counts[-1] == layout.num_patches and not layout.num_prefix:
        raise ArgumentError(f'fractions: how="{how}" leaves no token at {nominal[-1]} in a model without prefix tokens')
    with torch.no_grad(), undisturbed(forward):
        clean = batched_logits(forward, inputs, batch_size)
        index = resolve_class(clean, target)
        rank = removal_rank(maps, order)

        def without(count: int) -> Tensor:
            compute = partial(_step, model, inputs, rank, count, found, how, batch_size)
            # Which token went first no longer matters once all are gone.
            gone = count == layout.num_patches
            return recalled(forward, inputs, (how, layout, batch_size), compute) if gone else compute()

        steps = [without(count) if count else clean for count in counts]

    nan = maps.flatten(1).isnan().any(1)
    values = score_of(score, torch.stack(steps, 1), index, clean).masked_fill(nan.unsqueeze(1), torch.nan)
    return Curve(
        values.new_tensor([k / layout.num_patches for k in counts]),
        values,
        nominal=values.new_tensor(nominal),
        undefined=nan,
        constant=constant_maps(maps),
        target=index,
        settings={"how": how, "order": order, "unit": "token", "score": score},
        higher_is_better=order == "negative",
    )


def control_maps(relevance: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Maps that any explanation must beat, in the shape (B, h, w) of the given one.

    Args:
        relevance: (B, h, w) or (B, C, h, w).
        seed: Of the random map, one map for all samples.

    Returns:
        "random": uniform noise. "centre": falling with the distance from the centre. "inverse": the given map with
        its sign changed.
    """
    maps = sum_channels(relevance)
    height, width = maps.shape[-2:]
    noise = torch.rand((height, width), generator=torch.Generator().manual_seed(seed)).to(maps)
    y, x = ((2 * torch.arange(n).to(maps) + 1) / n - 1 for n in (height, width))
    centre = -(y[:, None] ** 2 + x**2)
    return {"random": noise.expand_as(maps), "centre": centre.expand_as(maps), "inverse": -maps}


def _fractions(fractions: Sequence[float] | Tensor | None, layout: TokenLayout) -> list[float]:
    if fractions is None:
        fractions = ALL_FRACTIONS if layout.num_prefix else ALL_FRACTIONS[:-1]
    return check_fractions(fractions)


def _step(
    forward: Forward,
    inputs: Tensor,
    rank: Tensor,
    count: int,
    tokens: Tokens,
    how: How,
    batch_size: int,
) -> Tensor:
    """Logits (B, C) without the first `count` tokens; rows of one step have one length."""
    parts = []
    for images, order in zip(inputs.split(batch_size), rank.split(batch_size), strict=True):
        with _without(order < count, tokens, how):
            parts.append(_call(forward, images, how))
    return torch.cat(parts)


def _without(removed: Tensor, tokens: Tokens, how: How) -> AbstractContextManager[None]:
    hidden = torch.nn.functional.pad(removed, (tokens.layout.num_prefix, 0))
    if how == "attention":
        return hidden_keys(hidden, tokens.layers)
    kept = (~hidden).nonzero()[:, 1].view(len(hidden), -1)
    return only_tokens(tokens.blocks, kept, tokens.layout.num_tokens, tokens.roots)


def _call(forward: Forward, images: Tensor, how: How) -> Tensor:
    try:
        return call_logits(forward, images.clone())  # a model may work in place, and these are the caller's
    except RuntimeError as error:
        if how == "drop":
            raise UnsupportedModelError(
                'how: "drop" made the model fail: it probably adds positions inside its blocks (rotary or relative), '
                f'which then no longer fit; use how="attention" or how="fill". It said: {error}'
            ) from error
        raise
