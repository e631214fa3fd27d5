"""Shared tools that know nothing of privacy: checks, files, JSON, roots of equations, pseudorandom bits."""

import dis
import math
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from importlib import import_module
from typing import Any

__all__ = ["__version__", "lazily", "least_float", "least_root", "no_lower"]

__version__ = "0.1.0"

# The relative error of a dozen roundings of half an ulp each.
_ERROR = 2.0**-49


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package that load a name's module when the name is first asked for.

    The names and their modules are the imports under ``if TYPE_CHECKING:``, which type checkers read, too, as the package's
    compiled code has them: there may be no source, as in a zip file of compiled modules.

    Example:
        >>> get, names = lazily("hubbub.ledger")
        >>> get("compose_runs").__module__, "run_charges" in names()
        ('hubbub.ledger.multi_run', True)
    """

    @cache
    def homes() -> dict[str, str]:
        loader: Any = getattr(sys.modules[package].__spec__, "loader", None)
        module, found = "", dict[str, str]()
        for step in dis.get_instructions(loader.get_code(package)):
            if step.opname == "IMPORT_NAME":
                module = step.argval
            elif step.opname == "IMPORT_FROM":
                found[step.argval] = module
        return found

    def get(name: str) -> Any:
        if name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes()[name]
        return import_module(f"{package}.{name}") if home == package else getattr(import_module(home), name)

    return get, lambda: sorted({*vars(sys.modules[package]), *homes()})


def no_lower(number: float) -> float:
    """A computed number of at least 0, or a few ulps above it, so that the rounding of its formula cannot make it too low.

    Example:
        >>> no_lower(math.sqrt(3))
        1.7320508075688803
    """
    return number * (1 + _ERROR)


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
