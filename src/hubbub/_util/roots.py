"""Roots: brackets of a condition that changes once, Newton's method, and the least integer that meets a target.

Every returned value except that of :func:`newton` was evaluated: a caller takes the side of a bracket that is safe.

:func:`first` finds the least integer in few evaluations of a cost, such as epsilon. The cost is read on a gauge: a function of
the cost that is nearly a line in the searched coordinate, so that secants need about six evaluations. Costs fall only to the
tolerance of their accountant; so the answer is never what a line says: it was evaluated and met the budget, and its neighbor
was evaluated and did not.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


def first(cost: Callable[[int], float], target: float, gauge: Callable[[float], float], grid: Grid, start: int) -> int | None:
    """The first index whose cost is at most the target; at the index before it, the cost is more.

    ``None`` where not even the grid's last index meets the target. The cost falls, but for an accountant's tolerance; it is
    infinite where it cannot be said. Its gauge is about the coordinate that has it, up to a constant.

    Example:
        >>> first(lambda n: 1 / n, 0.01, lambda cost: 1 / cost, Grid(1, 10**6, float, math.ceil), start=7)
        100
    """
    wanted, points = gauge(target), list[tuple[float, float]]()
    low, high = grid.lowest - 1, grid.highest + 1
    here, stride = min(max(start, grid.lowest), grid.highest), 1
    while high - low > 1:
        value = cost(here)
        points.append((gauge(value) - wanted, grid.coordinate(here)))
        low, high = (low, here) if value <= target else (here, high)
        if len(points) < _PATIENCE or len(points) % 2:
            there = grid.index(_crossing(points))
        else:
            # The line does not find it soon, because of the accountant's mesh: every second step bisects.
            there = (low + high) // 2 if low >= grid.lowest and high <= grid.highest else low
        if low < there < high:
            stride = 1 if len(points) < _PATIENCE else stride
            here = there
            continue
        # The answer is near this end of the bracket, or, if that is the end of the grid, far from the other.
        here = low + stride if high > grid.highest or (there <= low and low >= grid.lowest) else high - stride
        stride *= 4
        here = min(max(here, low + 1), high - 1)
    return high if high <= grid.highest else None


def _crossing(points: Sequence[tuple[float, float]]) -> float:
    """The coordinate of gauge 0 on the line through the nearest point and the next one apart from it, or of slope 1."""
    (value, coordinate), *others = sorted(points, key=lambda point: abs(point[0]))
    slope = next(((at - coordinate) / (other - value) for other, at in others if abs(other - value) > _APART), 1.0)
    return coordinate - min(max(slope, 1 / _STEEPEST), _STEEPEST) * value
