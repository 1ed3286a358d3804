"""What a benchmark returns: numbers with names, of which the better direction is known."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Row:
    """One measured number.

    Attributes:
        benchmark: Name of the file.
        case: What was run.
        metric: What was measured, with its unit.
        value: The number.
        better: Which direction is an improvement; None for a description.
    """

    benchmark: str
    case: str
    metric: str
    value: float
    better: Literal["lower", "higher"] | None = "lower"

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells a number from the others of its run."""
        return self.benchmark, self.case, self.metric


def seconds(function: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def fastest(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Shortest time of each, one after the other in every round, so that a busy moment hits all alike."""
    for function in functions.values():
        function()
    rounds = [{name: seconds(function) for name, function in functions.items()} for _ in range(repeats)]
    return {name: min(each[name] for each in rounds) for name in functions}
