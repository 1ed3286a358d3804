"""Which token is what: class token, registers, patches on their grid, words."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from xattn.errors import ArgumentError, ArgumentTypeError, LayoutError

Pooling = Literal["token", "avg", "map", "last", "unknown"]

# Names of the learned tokens that vision transformers put before the patches, in their order in the sequence.
_PREFIX_PARAMETERS = (
    ("cls", re.compile(r"^(cls_token|class_token|class_embedding|cls_embedding)$")),
    ("dist", re.compile(r"^(dist_token|distillation_token)$")),
    ("register", re.compile(r"^(reg_tokens?|register_tokens?|registers|storage_tokens)$")),
)

# Bidirectional text encoders whose first token is a word like the others, and how their answer is read.
_WITHOUT_CLASS_TOKEN: tuple[tuple[re.Pattern[str], Pooling], ...] = (
    (re.compile(r"siglip", re.IGNORECASE), "last"),
    (re.compile(r"(u?m|long|switch_?)?t5", re.IGNORECASE), "avg"),
)


@dataclass(frozen=True)
class TokenLayout:
    """The roles of a sequence's tokens, in model order: prefix tokens, then patches row by row, or words.

    Attributes:
        prefix: Roles of the leading tokens: "cls", "dist", "register", in order.
        grid: (h, w) patches of an image; None for text and other sequences.
        words: Number of tokens after the prefix where there is no grid.
        pooling: How the model reads its answer off the tokens: "token" (the class token), "avg" (mean of the
            patches), "map" (attention pooling), "last" (last token of a causal model), or "unknown".

    Raises:
        ArgumentError: If neither or both of `grid` and `words` are given, or one of the values is none of these.
        ArgumentTypeError: If `prefix` is no tuple of strings.
    """

    prefix: tuple[str, ...] = ()
    grid: tuple[int, int] | None = None
    words: int = 0
    pooling: Pooling = "unknown"

    def __post_init__(self) -> None:
        if (self.grid is None) == (self.words == 0):
            raise ArgumentError(
                f"layout: expected either grid=(h, w) or words=n, got grid={self.grid}, words={self.words}"
            )
        if self.grid is not None and not is_size(self.grid):
            raise ArgumentError(f"layout: grid must be two positive integers (h, w), got {self.grid!r}")
        if not isinstance(self.words, int) or self.words < 0:
            raise ArgumentError(f"layout: words must be a positive integer, got {self.words!r}")
        if not isinstance(self.prefix, tuple) or not all(isinstance(role, str) for role in self.prefix):
            raise ArgumentTypeError(f"layout: prefix must be a tuple of roles such as ('cls',), got {self.prefix!r}")
        if self.pooling not in get_args(Pooling):
            raise ArgumentError(f"layout: pooling must be one of {', '.join(get_args(Pooling))}, got {self.pooling!r}")

    @property
    def num_prefix(self) -> int:
        """Number of tokens before the first patch or word."""
        return len(self.prefix)

    @property
    def num_patches(self) -> int:
        """Number of patches or words."""
        return self.words if self.grid is None else self.grid[0] * self.grid[1]

    @property
    def num_tokens(self) -> int:
        """Length of the sequence."""
        return self.num_prefix + self.num_patches

    @property
    def cls_index(self) -> int | None:
        """Position of the class token, None without one."""
        return self.prefix.index("cls") if "cls" in self.prefix else None

    @property
    def is_image(self) -> bool:
        """Whether the tokens lie on a grid."""
        return self.grid is not None

    def patches(self, tokens: Tensor) -> Tensor:
        """(..., N) relevance of tokens to (..., h, w) of patches, or (..., words)."""
        body = tokens[..., self.num_prefix :]
        return body if self.grid is None else body.unflatten(-1, self.grid)

    def tokens(self, patches: Tensor) -> Tensor:
        """(..., h*w) or (..., words) relevance of patches to (..., N) of tokens; prefix tokens get 0."""
        return torch.nn.functional.pad(patches, (self.num_prefix, 0))

    def token_at(self, y: int, x: int, image_size: tuple[int, int]) -> int:
        """Position of the token that covers pixel (y, x) of an image of size (H, W).

        Raises:
            LayoutError: Without a grid.
            ArgumentError: If the pixel lies outside the image.
        """
        if self.grid is None:
            raise LayoutError(f"start: a pixel position needs tokens on a grid, this layout is {self}")
        if not (0 <= y < image_size[0] and 0 <= x < image_size[1]):
            raise ArgumentError(f"start: pixel (y={y}, x={x}) lies outside the image of size {image_size}")
        row, column = y * self.grid[0] // image_size[0], x * self.grid[1] // image_size[1]
        return self.num_prefix + row * self.grid[1] + column


def check_layout(layout: object) -> None:
    """Refuse anything but a layout or None.

    Raises:
        ArgumentTypeError: For another thing.
    """
    if layout is not None and not isinstance(layout, TokenLayout):
        raise ArgumentTypeError(f"layout: expected a TokenLayout or None, got {type(layout).__name__}")


def is_size(value: object) -> bool:
    """Whether it is (height, width), two positive integers."""
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(n, int) and n > 0 for n in value)


def find_image_layout(
    num_tokens: int, grid: tuple[int, int] | None, tower: nn.Module | None, image_size: tuple[int, int]
) -> TokenLayout:
    """Layout of an image model from what was seen while it ran.

    The grid is the output of the model's own patch convolution, never guessed from N; prefix tokens are the learned
    tokens that the tower owns.

    Args:
        num_tokens: N of the attention matrices.
        grid: (h, w) of the convolution's output.
        tower: Module that holds the convolution and the attention.
        image_size: (H, W) of the input, for the message.

    Raises:
        LayoutError: If no convolution ran, or N is not the number of prefix tokens and patches.
    """
    seen = f"the attention has N={num_tokens} tokens for an input of {image_size[0]}x{image_size[1]} pixels"
    advice = "pass layout=TokenLayout(prefix=('cls', ...), grid=(h, w)) to the method"
    if grid is None:
        raise LayoutError(f"layout: {seen}, but no convolution made them, so their grid is unknown; {advice}")
    prefix = _prefix_roles(tower) if tower is not None else ()
    patches = grid[0] * grid[1]
    if num_tokens == patches:  # class tokens that join after these layers (as in CaiT) are not in the matrices
        prefix = ()
    if num_tokens != len(prefix) + patches:
        raise LayoutError(
            f"layout: {seen}; expected {len(prefix)} prefix tokens {prefix} + {grid[0]}x{grid[1]} patches = "
            f"{len(prefix) + patches}; {advice}"
        )
    return TokenLayout(prefix=prefix, grid=grid, pooling=_pooling(tower, prefix))


def find_text_layout(num_tokens: int, causal: bool, has_cls: bool, family: str = "") -> TokenLayout:
    """Layout of a sequence of word pieces: the first is the class token of most bidirectional text encoders.

    Args:
        num_tokens: N of the attention matrices.
        causal: Whether tokens see earlier ones alone; the last then knows all.
        has_cls: Whether the tokenizer's own tokens are among them, which embeddings do not tell.
        family: Class name of the attention, by which encoders without a class token are known.
    """
    pooling = next((pooling for pattern, pooling in _WITHOUT_CLASS_TOKEN if pattern.match(family)), None)
    if pooling is not None and not causal:
        return TokenLayout(words=num_tokens, pooling=pooling)
    if causal:
        return TokenLayout(words=num_tokens, pooling="last")
    if has_cls and num_tokens > 1:
        return TokenLayout(prefix=("cls",), words=num_tokens - 1, pooling="token")
    return TokenLayout(words=num_tokens, pooling="avg")


def _prefix_roles(tower: nn.Module) -> tuple[str, ...]:
    counts: Counter[str] = Counter()
    for name, parameter in tower.named_parameters():
        leaf = name.rpartition(".")[2]
        for role, pattern in _PREFIX_PARAMETERS:
            if pattern.match(leaf):
                counts[role] += parameter.shape[-2] if parameter.ndim > 1 else 1
    return tuple(role for role, _ in _PREFIX_PARAMETERS for _ in range(counts[role]))


def _pooling(tower: nn.Module | None, prefix: Sequence[str]) -> Pooling:
    declared = str(getattr(tower, "global_pool", "") or "")
    if "cls" in prefix and not declared.startswith("avg"):
        return "token"
    return "avg"
