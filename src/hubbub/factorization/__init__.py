"""Strategies of least error with proved lower bounds: one family a file, each with ``optimize``."""

from typing import TYPE_CHECKING

from hubbub._util import lazily

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

# A strategy in closed form loads no optimizer.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "optimized": ("Objective", "Optimized"),
        "bounds": ("lower_bound",),
        **dict.fromkeys(("banded", "banded_inverse", "blt", "dense", "normalized_toeplitz", "semiseparable", "toeplitz"), ()),
    },
)
