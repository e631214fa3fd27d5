"""Which matrix has the least error, and a proof of how near it is: one family a file, each with ``optimize``."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hubbub.factorization import banded, banded_inverse, blt, dense, normalized_toeplitz, semiseparable, toeplitz
    from hubbub.factorization.bounds import lower_bound
    from hubbub.factorization.optimized import Objective, Optimized

__all__ = [
    "Objective",
    "Optimized",
    "banded",
    "banded_inverse",
    "blt",
    "dense",
    "lower_bound",
    "normalized_toeplitz",
    "semiseparable",
    "toeplitz",
]

# Whoever makes a strategy in closed form loads no optimizer.
_HOMES = {"Objective": "optimized", "Optimized": "optimized", "lower_bound": "bounds"}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_HOMES.get(name, name)}")
    return getattr(home, name) if name in _HOMES else home
