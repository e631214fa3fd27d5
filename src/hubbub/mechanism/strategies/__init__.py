"""Strategies: how noise is correlated over rounds. One family of C a file, independent of the others."""

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from hubbub._util import lazily
from hubbub.mechanism.strategies.strategy import Description, Strategy

if TYPE_CHECKING:
    from hubbub.mechanism.strategies.banded import Banded
    from hubbub.mechanism.strategies.banded_inverse import BandedInverse
    from hubbub.mechanism.strategies.blt import BufferedLinearToeplitz
    from hubbub.mechanism.strategies.dense import Dense
    from hubbub.mechanism.strategies.fourier import Fourier
    from hubbub.mechanism.strategies.identity import Identity
    from hubbub.mechanism.strategies.matrix_only import Columns, Described
    from hubbub.mechanism.strategies.semiseparable import Semiseparable
    from hubbub.mechanism.strategies.stamped import Stamped
    from hubbub.mechanism.strategies.toeplitz import BandedToeplitz, NormalizedToeplitz
    from hubbub.mechanism.strategies.tree import BinaryTree

__all__ = [
    "OWN",
    "Banded",
    "BandedInverse",
    "BandedToeplitz",
    "BinaryTree",
    "BufferedLinearToeplitz",
    "Columns",
    "Dense",
    "Described",
    "Fourier",
    "Identity",
    "NormalizedToeplitz",
    "Semiseparable",
    "Stamped",
    "Strategy",
    "own",
]

# The file of each family.
_FAMILIES = {
    "Banded": "banded",
    "BandedInverse": "banded_inverse",
    "BandedToeplitz": "toeplitz",
    "BinaryTree": "tree",
    "BufferedLinearToeplitz": "blt",
    "Columns": "matrix_only",
    "Dense": "dense",
    "Fourier": "fourier",
    "Identity": "identity",
    "NormalizedToeplitz": "toeplitz",
    "Semiseparable": "semiseparable",
    "Stamped": "stamped",
}


class _Families:
    """The classes of the families. The file of a family is loaded when its class is first needed."""

    names = tuple(_FAMILIES)

    def __contains__(self, kind: type) -> bool:
        # Compares the class itself, since anybody can copy its name. Until its file is loaded, no object of it exists.
        module = sys.modules.get(f"{__name__}.{_FAMILIES.get(kind.__name__)}")
        return module is not None and getattr(module, kind.__name__, None) is kind

    def __iter__(self) -> Iterator[type]:
        return (getattr(import_module(f"{__name__}.{file}"), name) for name, file in _FAMILIES.items())


# Families of this package: plain numbers and arrays describe each completely, and its stated sensitivity is computed from
# those. The sensitivity of any other class is recomputed from its matrix.
OWN = _Families()


def own(strategy: Strategy) -> Description | None:
    """The description of a strategy of this package; ``None`` for any other class, whose statements are not trusted.

    Example:
        >>> from hubbub.mechanism.strategies import BandedToeplitz
        >>> own(BandedToeplitz(rounds=4, coefficients=(1.0, 0.5))).words
        'banded Toeplitz, 2 bands'
    """
    described: Description | None = getattr(strategy, "description", None) if type(strategy) in OWN else None
    return described


# A run with one kind of noise loads no other.
_FILES = {**_FAMILIES, "Described": "matrix_only"}
__getattr__, __dir__ = lazily(
    __name__, {file: tuple(name for name in _FILES if _FILES[name] == file) for file in _FILES.values()}
)
