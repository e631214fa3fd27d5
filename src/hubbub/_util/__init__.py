"""Shared tools that know nothing of privacy: checks, files, JSON, roots of equations, pseudorandom bits."""

import math
import sys
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from fractions import Fraction
from importlib import import_module
from typing import Any

__all__ = ["__version__", "lazily", "least_float", "least_root", "no_lower", "to_digits"]

__version__ = "0.1.0"

# The relative error of a dozen roundings of half an ulp each.
_ERROR = 2.0**-49


def lazily(package: str, homes: Mapping[str, tuple[str, ...]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package, so that it loads only the modules in use.

    ``homes`` has its modules, each with the names that it exports; without names, the module itself.

    Example:
        >>> get, _ = lazily("json", {"decoder": ("JSONDecoder",), "scanner": ()})
        >>> get("JSONDecoder").__name__, get("scanner").__name__
        ('JSONDecoder', 'json.scanner')
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name in home_of:
            return getattr(import_module(f"{package}.{home_of[name]}"), name)
        if name in homes:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted({*vars(sys.modules[package]), *home_of, *(home for home, names in homes.items() if not names)})


def no_lower(number: float) -> float:
    """A computed number of at least 0, or a few ulps above it, so that the rounding of its formula cannot make it too low.

    Example:
        >>> no_lower(math.sqrt(3))
        1.7320508075688803
    """
    return number * (1 + _ERROR)


def to_digits(number: float, digits: int, rounding: str) -> Decimal:
    """A number with so many digits, rounded as :mod:`decimal` names it, whatever the program's own decimal context is."""
    exact, context = Decimal.from_float(number), Context(prec=60)
    return exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1, context), rounding, context)


def rounded_down(number: float, places: int) -> str:
    """A lower bound with so many decimals.

    Example:
        >>> rounded_down(1.8805999999999998, places=4), rounded_down(2.0, places=3)
        ('1.8805', '2.000')
    """
    return str(Decimal.from_float(number).quantize(Decimal(1).scaleb(-places), "ROUND_FLOOR", Context(prec=400)))


def least_float(number: Fraction) -> float:
    """The least float that is not below a fraction.

    Example:
        >>> least_float(Fraction(5, 4)), least_float(Fraction(1, 10)), least_float(Fraction(1, 5))
        (1.25, 0.1, 0.2)
    """
    try:
        nearest = float(number)
    except OverflowError:
        return math.inf
    return nearest if nearest >= number else math.nextafter(nearest, math.inf)


def least_root(square: Fraction | int) -> float:
    """The least float whose square is not below a fraction.

    Example:
        >>> least_root(4), least_root(3) ** 2 > 3
        (2.0, True)
    """
    root = math.sqrt(least_float(Fraction(square)))
    while math.isfinite(root) and Fraction(root) ** 2 < square:
        root = math.nextafter(root, math.inf)
    while math.isfinite(root) and (below := math.nextafter(root, 0.0)) < root and Fraction(below) ** 2 >= square:
        root = below
    return root
