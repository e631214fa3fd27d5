"""Shared tools that know nothing of privacy: checks, files, JSON, roots of equations, pseudorandom bits."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["__version__", "lazily"]

__version__ = "0.1.0"


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
