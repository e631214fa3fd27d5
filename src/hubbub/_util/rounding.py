"""Rounding of what is stated: a privacy number may be high, never low."""

import math

# Of numbers made by a dozen roundings, each of half an ulp.
_ERROR = 2.0**-49
# Half of what a float has.
_SHORT = 2.0**26


def no_lower(number: float, *made_of: float) -> float:
    """A computed number of at least 0, or a few ulps above it, so that the rounding of its formula cannot make it too low.

    Where it and what it was made of have at most 26 binary digits, such as 2 or 0.375, it stays: what was rounded has 53.

    Example:
        >>> no_lower(2.0), no_lower(math.sqrt(3)), no_lower(3 / 0.3, 0.3)
        (2.0, 1.7320508075688803, 10.000000000000018)
    """
    exact = all(_short(part) for part in (number, *made_of))
    return number if exact else number * (1 + _ERROR)


def _short(number: float) -> bool:
    digits = math.frexp(number)[0] * _SHORT
    return not math.isfinite(number) or digits == int(digits)
