"""What the generated data sets ask of their arguments."""

from collections.abc import Collection

from xattn.errors import ArgumentError, ArgumentTypeError


def check_split(split: str, n: int, seed: int, splits: Collection[str]) -> None:
    """Refuse a split that does not exist, and numbers that are none.

    Raises:
        ArgumentError: If there is no such split, n is below 1 or the seed negative.
        ArgumentTypeError: If n or the seed is no int.
    """
    if split not in splits:
        raise ArgumentError(f"split must be one of {', '.join(splits)}; got {split!r}.")
    if not isinstance(n, int) or not isinstance(seed, int):
        raise ArgumentTypeError(f"n and seed must be int; got {type(n).__name__} and {type(seed).__name__}.")
    if n < 1 or seed < 0:
        raise ArgumentError(f"n must be at least 1 and seed at least 0; got n={n}, seed={seed}.")
