"""A small Markov chain as a graph: states as discs, strong transitions as arrows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch
from matplotlib.path import Path
from matplotlib.patheffects import withStroke

from xattn.errors import ArgumentError
from xattn.viz._lines import COLOURS
from xattn.viz._panels import figure_of, single
from xattn.viz._reading import Array, as_array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = 40  # states; beyond them arrows are a thicket
_BEND = 0.18  # of an arrow, so that both directions are seen
_WRITTEN = 20  # arrows that bear their probability without being asked
_ROOM = 0.12  # radius of a disc that holds its name
_LEAST = 0.2  # radius of a state without mass, as a share of the largest
_PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
_HALO: dict[str, Any] = {"path_effects": [withStroke(linewidth=2.5, foreground="white")]}


def chain_graph(
    chain: object,
    labels: Sequence[str] | None = None,
    *,
    threshold: float = 0.05,
    mass: object | None = None,
    groups: object | None = None,
    positions: object | None = None,
    probabilities: bool | None = None,
    ax: "Axes | None" = None,
    title: str | None = None,
) -> Figure:
    """States on a circle, their area the stationary mass, and an arrow for every strong transition.

    Arrows are thicker and darker the more probable they are; a state's arrow to itself stands outside of the circle.
    A state without mass is dashed.

        viz.chain_graph(A, ["cat", "tail", "sky"], groups=markov.diagnose(A).metastable)

    Args:
        chain: (N, N) attention of at most 40 states, rows sum to one; cleaned as by `xattn.markov.as_chain`.
        labels: (N,) names of the states; None numbers them.
        threshold: Transitions of smaller probability are not drawn; the caption counts them.
        mass: (N,) sizes of the states; None takes the stationary distribution, the limit alpha -> 1 of TokenRank.
        groups: (N,) whole numbers or booleans: states of a group have one colour, such as metastable sets.
        positions: (N, 2) places (x, y) of the states; None puts them on a circle, clockwise from the top.
        probabilities: Whether the probability is written on each arrow; None does where there are at most 20.
        ax: Where to draw; None makes a new figure.
        title: Written above.

    Raises:
        ArgumentError: If an argument has another shape, `threshold` is not in 0..1, or there are too many states.
    """
    matrix = _matrix(chain)
    count = len(matrix)
    if not 0 <= threshold <= 1:
        raise ArgumentError(f"threshold: expected a number in 0..1, got {threshold}")
    names = [str(i) for i in range(count)] if labels is None else list(labels)
    if len(names) != count:
        raise ArgumentError(f"labels: expected one per state ({count}), got {len(names)}")
    weights = _stationary(matrix) if mass is None else _per_state(mass, count, "mass")
    if not np.isfinite(weights).all() or weights.min() < 0 or weights.sum() <= 0:
        raise ArgumentError("mass: expected finite, non-negative numbers, not all zero")
    colours = _colours(groups, count)
    places, radius = _places(positions, count)
    radii = radius * np.sqrt(np.maximum(weights / weights.max(), _LEAST**2))
    ax = single(ax, (5.2, 5.4))
    discs = []
    for place, size, colour, weight in zip(places, radii, colours, weights, strict=True):
        empty = weight < 1e-9 * weights.max()
        look = {"facecolor": "white", "linestyle": "--"} if empty else {"facecolor": colour}
        discs.append(Circle((place[0], place[1]), size, edgecolor="black", linewidth=1, zorder=3, **look))
        ax.add_patch(discs[-1])
    drawn = (matrix >= threshold) & (matrix > 0)
    written = drawn.sum() <= _WRITTEN if probabilities is None else probabilities
    middle = places.mean(0)
    for i, j in np.argwhere(drawn):
        arrow = _loop if i == j else _arrow
        arrow(ax, discs[i], discs[j], middle, float(matrix[i, j]), bool(written))
    for i, (name, weight) in enumerate(zip(names, weights / weights.sum(), strict=True)):
        x, y = places[i]
        if radii[i] < _ROOM:  # the name stands beside the disc, beyond the loop
            x, y = places[i] + (radii[i] + (0.45 if drawn[i, i] else 0.14)) * _unit(_away(places[i], middle))
        label = f"{name}\n{weight:.2f}".replace("$", r"\$")
        ax.text(x, y, label, ha="center", va="center", fontsize=9, zorder=5, **_HALO)
    _frame(ax, places, radius, title, threshold, int(((matrix > 0) & ~drawn).sum()))
    return figure_of(ax)


def _matrix(chain: object) -> Array:
    import torch

    from xattn.markov import as_chain

    values = as_array(chain, "chain")
    if values.ndim != 2 or values.shape[0] != values.shape[1] or not 0 < len(values) <= _MOST:
        raise ArgumentError(f"chain: expected (N, N) with 1 <= N <= {_MOST}, got shape {values.shape}")
    matrix: Array = as_chain(torch.from_numpy(values.copy())).matrix.numpy()
    return matrix


def _stationary(matrix: Array) -> Array:
    import torch

    from xattn.markov import stationary

    mass: Array = stationary(torch.from_numpy(matrix.copy()), alpha=1.0).distribution.numpy()
    return mass


def _per_state(values: object, count: int, argument: str) -> Array:
    array = as_array(values, argument)
    if array.shape != (count,):
        raise ArgumentError(f"{argument}: expected one number per state ({count},), got shape {array.shape}")
    return array


def _colours(groups: object | None, count: int) -> list[str]:
    if groups is None:
        return ["#9ecae1"] * count
    numbers = _per_state(groups, count, "groups")
    order = list(dict.fromkeys(numbers.tolist()))
    palette = ["#9ecae1", "#fdae6b", *COLOURS[2:]]
    return [palette[order.index(number) % len(palette)] for number in numbers.tolist()]


def _places(positions: object | None, count: int) -> tuple[Array, float]:
    """(N, 2) places and the radius of the largest state."""
    if positions is None:
        angles = np.pi / 2 - 2 * np.pi * np.arange(count) / count
        places: Array = np.stack([np.cos(angles), np.sin(angles)], 1) if count > 1 else np.zeros((1, 2))
    else:
        places = as_array(positions, "positions")
        if places.shape != (count, 2) or not np.isfinite(places).all():
            raise ArgumentError(f"positions: expected finite ({count}, 2), got shape {places.shape}")
    if count == 1:
        return places, 0.3
    distances = np.linalg.norm(places[:, None] - places[None], axis=-1)
    nearest = float(distances[~np.eye(count, dtype=bool)].min())
    if nearest == 0:
        raise ArgumentError("positions: expected different places, two states have the same")
    return places, min(0.24 * nearest, 0.3 * float(distances.max()) / 2)


def _ink(probability: float) -> dict[str, Any]:
    shade = 0.65 * (1 - probability)
    return {
        "linewidth": 0.6 + 3.4 * probability, "color": str(shade), "arrowstyle": "-|>",
        "mutation_scale": 9 + 9 * probability, "zorder": 2, "joinstyle": "miter",
    }  # fmt: skip


def _arrow(ax: "Axes", start: Circle, stop: Circle, _: Array, probability: float, written: bool) -> None:
    """A bent arrow between two states; it bends to its left, so the way back is another one."""
    (x1, y1), (x2, y2) = start.center, stop.center
    ends: dict[str, Any] = {"patchA": start, "patchB": stop, "shrinkA": 0, "shrinkB": 0}
    ax.add_patch(FancyArrowPatch((x1, y1), (x2, y2), connectionstyle=f"arc3,rad={_BEND}", **ends, **_ink(probability)))
    if written:  # half-way along the bend
        _write(ax, (x1 + x2 + _BEND * (y2 - y1)) / 2, (y1 + y2 + _BEND * (x1 - x2)) / 2, probability)


def _loop(ax: "Axes", state: Circle, _: Circle, middle: Array, probability: float, written: bool) -> None:
    """An arrow from a state to itself, on the side that looks away from the others."""
    place, radius = np.array(state.center), float(state.radius)
    angle = _away(place, middle)
    edge = [place + radius * _unit(angle + turn) for turn in (0.5, -0.5)]
    reach = 0.16 + radius
    outer = [place + reach * 1.6 * _unit(angle + turn) for turn in (0.45, -0.45)]
    path = Path([edge[0], outer[0], outer[1], edge[1]], [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
    ax.add_patch(FancyArrowPatch(path=path, **_ink(probability)))
    if written:
        x, y = (edge[0] + 3 * outer[0] + 3 * outer[1] + edge[1]) / 8
        _write(ax, x, y, probability)


def _away(place: Array, middle: Array) -> float:
    """Direction from the middle to a place; upwards in the middle itself."""
    x, y = place - middle
    return float(np.arctan2(y, x)) if max(abs(x), abs(y)) > 1e-9 else np.pi / 2


def _unit(angle: float) -> npt.NDArray[np.float64]:
    return np.array([np.cos(angle), np.sin(angle)])


def _write(ax: "Axes", x: float, y: float, probability: float) -> None:
    ax.text(x, y, f"{probability:.2g}", ha="center", va="center", fontsize=8, zorder=4, bbox=_PAPER)


def _frame(ax: "Axes", places: Array, radius: float, title: str | None, threshold: float, left_out: int) -> None:
    room = radius * 1.6 + 0.3 if radius > _ROOM else radius + 0.75  # loops, or loops and names
    (left, bottom), (right, top) = places.min(0) - room, places.max(0) + room
    ax.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    if title:
        ax.set_title(title, fontsize=11)
    caption = "area and number in a disc: stationary mass; arrows: probability of the step"
    if left_out:
        caption += f"\n{left_out} steps below {threshold:g} are not drawn"
    ax.set_xlabel(caption, fontsize=8, color="0.35")
