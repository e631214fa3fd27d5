"""Where a decreasing function is 0, and the next place from which something holds."""

import math
from collections.abc import Callable

__all__ = ["pushed", "root"]

# One more of Newton's steps squares what is left.
_QUADRATIC = 1e-8


def root(excess: Callable[[float], tuple[float, float]], start: float) -> float:
    """The positive place where a decreasing function is 0, to rounding, by Newton's steps between places of known sign.

    Args:
        excess: The function and its slope.
        start: Not below the root, but for rounding.
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


def pushed(value: float, suffices: Callable[[float], bool]) -> float:
    """The value, or the next above it that suffices, to about an ulp of it doubled as often as needed."""
    step = 0.0
    while not suffices(value + step):
        step = max(2 * step, math.ulp(value))
    return value + step
