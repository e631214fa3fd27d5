"""Differences of the Mills ratio R(x) = Φ(−x)/φ(x), to full relative precision, as scalars and fast.

R falls, and so do its derivatives in size: |R⁽ⁿ⁾(x)| = ∫ sⁿ e^(−xs − s²/2) ds. Their ratios r_n = |R⁽ⁿ⁾| / |R⁽ⁿ⁻¹⁾| obey
r_n = n / (x + r_{n+1}), which is Laplace's continued fraction of R = 1 / (x + r_1). Run from the far end it only adds positive
numbers, so that one pass yields R and as many derivatives as a Taylor series needs, none with any cancellation.

Source: Abramowitz and Stegun 1964, 26.2.14 (the continued fraction), 7.2.10 (the recurrence).
"""

import math

from scipy.special import erfcx

__all__ = ["mills_ratio", "mills_ratio_and_difference"]

_ROOT_HALF = math.sqrt(0.5)
_ROOT_HALF_PI = math.sqrt(math.pi / 2)
# From here on a series is made from the fraction: below it converges slowly, above it 1 − x·R loses digits.
_FRACTION_FROM = 2.5
# Steps wider than this need no series: R(x) and R(x + h) are far enough apart, while x is not large.
_SMALL_STEP = 0.5
_LARGE = 8.0
# Terms of a series in half a step, at most a quarter: what follows is below the last bit of the sum.
_TERMS = 16


def mills_ratio(x: float) -> float:
    """R(x)."""
    return _ROOT_HALF_PI * float(erfcx(x * _ROOT_HALF))


def mills_ratio_and_difference(x: float, h: float) -> tuple[float, float]:
    """R(x + h), and R(x) − R(x + h), for x ≥ −1 and h > 0."""
    if h < _SMALL_STEP:
        middle = x + h / 2
        even, odd = _ratios(middle, h / 2) if middle >= _FRACTION_FROM else _recurrence(middle, h / 2)
        return even - odd, 2 * odd
    if x < _LARGE:
        after = mills_ratio(x + h)
        return after, mills_ratio(x) - after
    near, far = _first_ratio(x), _first_ratio(x + h)
    after = 1 / (x + h + far)
    # 1/R(x + h) − 1/R(x), times both; near − far is far below h, so that little cancels.
    return after, (h - (near - far)) * after / (x + near)


def _start(x: float) -> tuple[int, float]:
    """The level from which the fraction is right to the last bit (measured), and about its value there: r = n / (x + r)."""
    level = 5 + int(130 / x)
    return level, 2 * level / (x + math.sqrt(x * x + 4 * level))


def _first_ratio(x: float) -> float:
    level, ratio = _start(x)
    for n in range(level - 1, 0, -1):
        ratio = n / (x + ratio)
    return ratio


def _ratios(middle: float, half: float) -> tuple[float, float]:
    """Σ |R⁽ⁿ⁾(middle)| halfⁿ/n! over even and over odd n, where |R⁽ⁿ⁾|/n! = R · Π 1/(middle + r_{j+1}) over j ≤ n."""
    level, ratio = _start(middle)
    # A term is at most half/middle of the one before it.
    terms = min(_TERMS, 3 + int(37 / math.log(middle / half)))
    for n in range(max(level, terms + 2) - 1, terms, -1):
        ratio = n / (middle + ratio)
    steps = []
    for n in range(terms, 0, -1):
        step = 1 / (middle + ratio)
        steps.append(half * step)
        ratio = n * step
    term = 1 / (middle + ratio)
    sums = [term, 0.0]
    for n, step in enumerate(reversed(steps), 1):
        term *= step
        sums[n % 2] += term
    return sums[0], sums[1]


def _recurrence(middle: float, half: float) -> tuple[float, float]:
    """The same from R itself, by |R⁽ⁿ⁺¹⁾| = n |R⁽ⁿ⁻¹⁾| − middle |R⁽ⁿ⁾|, which keeps its digits below 2.5."""
    before = mills_ratio(middle)
    size = 1 - middle * before
    even, odd, weight = before, half * size, half
    for n in range(1, _TERMS if half > 1e-3 else 5, 2):
        before, size = size, n * before - middle * size
        weight *= half / (n + 1)
        even += weight * size
        before, size = size, (n + 1) * before - middle * size
        weight *= half / (n + 2)
        odd += weight * size
    return even, odd
