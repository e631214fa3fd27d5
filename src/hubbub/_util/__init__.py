"""Shared tools that know nothing of privacy: checks, files, JSON, roots of equations, pseudorandom bits."""

import math
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["__version__", "lazily", "no_lower"]

__version__ = "0.1.0"

# Of numbers made by a dozen roundings, each of half an ulp.
_ERROR = 2.0**-49
# Half of what a float has.
_SHORT = 2.0**26


def lazily(package: str, homes: Mapping[str, tuple[str, ...]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package, so that it loads only what is used of it.

    Args:
        package: Its ``__name__``.
        homes: Modules below it, and which names of theirs it offers; without names it offers the module itself.

    Example:
        >>> get, _ = lazily("json", {"decoder": ("JSONDecoder",), "scanner": ()})
        >>> get("JSONDecoder").__name__, get("scanner").__name__
        ('JSONDecoder', 'json.scanner')
    """
    home_of = {name: home for home, names in homes.items() for name in names or (home,)}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{home_of[name]}")
        return getattr(module, name) if homes[home_of[name]] else module

    return get, lambda: sorted({*vars(sys.modules[package]), *home_of})


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
