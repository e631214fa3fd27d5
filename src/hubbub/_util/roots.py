"""Roots: brackets of a condition that changes once, Newton's method, and the least integer that meets a target.

Every returned value except that of :func:`newton` was evaluated: a caller takes the side of a bracket that is safe.

:func:`first` finds the least integer in few evaluations of a cost, such as epsilon. The cost is read on a gauge: a function of
the cost that is nearly a line in the searched coordinate, so that secants need about five evaluations. Costs fall only to the
tolerance of their accountant; so the answer is never what a line says: it was evaluated and met the budget, and its neighbor
was evaluated and did not.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

# Points nearer than this show the accountant's mesh rather than its cost.
_APART = 1e-4
_STEEPEST = 50.0
_PATIENCE = 10
# One more Newton step squares the remaining error.
_QUADRATIC = 1e-8


def bracket(holds: Callable[[float], bool], fails_at: float, holds_at: float, within: float = 0.0) -> tuple[float, float]:
    """By bisection, the last evaluated place where a condition fails and the first where it holds, in this order.

    It changes once between ``fails_at`` and ``holds_at``, either of which may be the larger; both are not evaluated. ``within``
    is how far apart both may be at last, relative to the larger; at 0 no number lies between them.

    Example:
        >>> below, above = bracket(lambda x: x * x >= 2, fails_at=1.0, holds_at=2.0)
        >>> below < 2**0.5 <= above
        True
    """
    while abs(holds_at - fails_at) > within * max(abs(holds_at), abs(fails_at)):
        middle = (fails_at + holds_at) / 2
        if not min(fails_at, holds_at) < middle < max(fails_at, holds_at):
            break
        fails_at, holds_at = (fails_at, middle) if holds(middle) else (middle, holds_at)
    return fails_at, holds_at


def grown(
    holds: Callable[[float], bool], fails_at: float, start: float, factor: float = 2.0, at_most: float = math.inf
) -> tuple[float, float]:
    """The last place where a condition fails, and the first of ``start``, ``start``·factor, … where it holds.

    ``fails_at`` is where it is known to fail, ``start`` itself where nothing is known. Both places are for :func:`bracket`; the
    second is infinity where the condition holds nowhere up to ``at_most``.

    Example:
        >>> grown(lambda x: x >= 5, fails_at=0.0, start=1.0)
        (4.0, 8.0)
    """
    here = start
    while not holds(here):
        fails_at, here = here, here * factor
        if here > at_most:
            return fails_at, math.inf
    return fails_at, here


def newton(excess: Callable[[float], tuple[float, float]], start: float) -> float:
    """The positive place where a decreasing function is 0, to rounding, by Newton's steps between places of known sign.

    ``excess`` gives the function and its slope; ``start`` is not below the root, but for rounding.

    Example:
        >>> newton(lambda x: (4 / x**2 - 1, -8 / x**3), start=3.0)
        2.0
    """
    low, high, here = 0.0, math.inf, start
    for _ in range(200):
        value, slope = excess(here)
        if value > 0:
            low = here
        else:
            high = here
        step = value / slope if slope < 0 and math.isfinite(value) else math.inf
        there = here - step
        if abs(value) <= _QUADRATIC or abs(step) <= 2.0**-51 * here:
            return there
        if not low < there < high:
            there = (low + high) / 2 if math.isfinite(high) else 2 * here
        if there in (low, high):
            return there
        here = there
    return high


def pushed(value: float, suffices: Callable[[float], bool], at_most: float = math.inf) -> float:
    """The value, or one above it that suffices, to about an ulp of it doubled as often as needed; else infinity.

    Example:
        >>> pushed(1.0, lambda x: x > 1) == math.nextafter(1.0, 2.0)
        True
    """
    step = 0.0
    while value + step <= at_most:
        if suffices(value + step):
            return value + step
        step = max(2 * step, math.ulp(value))
    return math.inf


@dataclass(frozen=True)
class Grid:
    """The coordinates at which a cost may be evaluated, by their indices; the cost falls as the index grows.

    ``coordinate`` grows with its index; ``index`` is the first of this coordinate, or behind it.
    """

    lowest: int
    highest: int
    coordinate: Callable[[int], float]
    index: Callable[[float], int]


@dataclass
class Line:
    """The searched coordinate as a line in the gauge, through what was evaluated.

    The gauge of a cost is about the coordinate that has it, up to a constant; ``None`` where it says nothing.
    """

    gauge: Callable[[float], float | None]
    target: float
    points: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.wanted = self.gauge(self.target)

    def learn(self, coordinate: float, cost: float) -> None:
        """Add an evaluation."""
        value = self.gauge(cost) if cost > 0 and math.isfinite(cost) else None
        if value is not None and self.wanted is not None:
            self.points.append((value - self.wanted, coordinate))
            self.points.sort(key=lambda point: abs(point[0]))

    def guess(self) -> float | None:
        """The estimated coordinate of the target; ``None`` before any evaluation."""
        if not self.points:
            return None
        value, coordinate = self.points[0]
        others = [other for other in self.points[1:] if abs(other[0] - value) > _APART]
        slopes = [min(max((at - coordinate) / (v - value), 1 / _STEEPEST), _STEEPEST) for v, at in others[:2]] or [1.0]
        bend = 0.0
        if len(slopes) == 2 and abs(others[0][0] - others[1][0]) > _APART:
            # What the slopes of two secants say of the curve between them; no more than the line itself says.
            bend = value * others[0][0] * (slopes[1] - slopes[0]) / (others[1][0] - others[0][0])
            bend = math.copysign(min(abs(bend), abs(slopes[0] * value) / 2), bend)
        return coordinate - slopes[0] * value + bend


def first(cost: Callable[[int], float], line: Line, grid: Grid, start: int) -> int | None:
    """The first index whose cost is at most the line's target; at the index before it, the cost is more.

    ``None`` where not even the grid's last index meets the target. The cost falls, but for an accountant's tolerance; it is
    infinite where it cannot be said.

    Example:
        >>> line = Line(gauge=lambda cost: 1 / cost, target=0.01)
        >>> first(lambda n: 1 / n, line, Grid(1, 10**6, float, math.ceil), start=7)
        100
    """
    low, high = grid.lowest - 1, grid.highest + 1
    here, stride, evaluations = min(max(start, grid.lowest), grid.highest), 1, 0
    while high - low > 1:
        value = cost(here)
        line.learn(grid.coordinate(here), value)
        low, high = (low, here) if value <= line.target else (here, high)
        evaluations += 1
        # If the line does not find it soon, because of the accountant's mesh, every second step bisects.
        guess = line.guess() if evaluations < _PATIENCE or evaluations % 2 else None
        bracketed = low >= grid.lowest and high <= grid.highest
        wanted = grid.index(guess) if guess is not None else (low + high) // 2 if bracketed else low
        if low < wanted < high:
            stride = 1 if evaluations < _PATIENCE else stride
            here = wanted
            continue
        # The answer is near this end of the bracket, or, if that is the end of the grid, far from the other.
        here = low + stride if high > grid.highest or (wanted <= low and low >= grid.lowest) else high - stride
        stride *= 4
        here = min(max(here, low + 1), high - 1)
    return high if high <= grid.highest else None
