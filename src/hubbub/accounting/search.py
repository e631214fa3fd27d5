"""Where a cost meets a budget, in few evaluations: the least noise, the most rounds.

A cost, such as epsilon, is read on a gauge: a function of the cost that is nearly a line in the searched coordinate, so that a
secant needs about six evaluations. Costs fall only to the tolerance of their accountant; so the answer is never what a line
says: it was evaluated and met the budget, and its neighbor was evaluated and did not.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Grid", "Line", "first"]

# Points that lie nearer tell more about an accountant's mesh than about its cost.
_APART = 1e-4
_STEEPEST = 50.0
_PATIENCE = 10


@dataclass(frozen=True)
class Grid:
    """The coordinates at which a cost may be evaluated, by their indices; the cost falls as the index grows.

    Args:
        lowest: The first index.
        highest: The last.
        coordinate: Of an index, growing with it.
        index: The first index of this coordinate, or behind it.
    """

    lowest: int
    highest: int
    coordinate: Callable[[int], float]
    index: Callable[[float], int]

    def clamped(self, index: int) -> int:
        """The nearest index of the grid."""
        return min(max(index, self.lowest), self.highest)


@dataclass
class Line:
    """The searched coordinate as a line in the gauge, through what was evaluated.

    Args:
        gauge: Of a cost: about the coordinate that has it, up to a constant; ``None`` where it says nothing.
        target: The cost that is searched.
    """

    gauge: Callable[[float], float | None]
    target: float
    points: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.wanted = self.gauge(self.target)

    def learn(self, coordinate: float, cost: float) -> None:
        """Take note of an evaluation."""
        value = self.gauge(cost) if cost > 0 and math.isfinite(cost) else None
        if value is not None and self.wanted is not None:
            self.points.append((value - self.wanted, coordinate))
            self.points.sort(key=lambda point: abs(point[0]))

    def guess(self) -> float | None:
        """Where the target is met, if anything is known about it."""
        if not self.points:
            return None
        value, coordinate = self.points[0]
        slopes = [(other[1] - coordinate) / (other[0] - value) for other in self.points[1:] if abs(other[0] - value) > _APART]
        slope = min(max(slopes[0], 1 / _STEEPEST), _STEEPEST) if slopes else 1.0
        return coordinate - slope * value


def first(cost: Callable[[int], float], line: Line, grid: Grid, start: int) -> int | None:
    """The first index whose cost is at most the target; at the index before it, the cost is more.

    Args:
        cost: Of an index; it falls, but for an accountant's tolerance. Infinite where it cannot be said.
        line: Learns from the evaluations; its target is what must be met.
        grid: Where to evaluate.
        start: A first guess.

    Returns:
        ``None`` where not even the grid's last index meets the target.
    """
    low, high = grid.lowest - 1, grid.highest + 1
    here, stride, evaluations = grid.clamped(start), 1, 0
    while high - low > 1:
        value = cost(here)
        line.learn(grid.coordinate(here), value)
        low, high = (low, here) if value <= line.target else (here, high)
        evaluations += 1
        # A line that does not find it soon, for all that an accountant's mesh does to it, is helped by bisection.
        guess = line.guess() if evaluations < _PATIENCE or evaluations % 2 else None
        bracketed = low >= grid.lowest and high <= grid.highest
        wanted = grid.index(guess) if guess is not None else (low + high) // 2 if bracketed else low
        if low < wanted < high:
            stride = 1 if evaluations < _PATIENCE else stride
            here = wanted
            continue
        # The answer is near this end of what is known, or, where that is the grid's own, far from the other.
        here = low + stride if high > grid.highest or (wanted <= low and low >= grid.lowest) else high - stride
        stride *= 4
        here = min(max(here, low + 1), high - 1)
    return high if high <= grid.highest else None
