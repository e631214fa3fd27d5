"""Strategies: how noise is correlated over rounds. One family of C a file, independent of the others."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from hubbub._util import lazily
from hubbub._util.checks import Array, one_of
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

# A run with one kind of noise loads the file of no other.
_FILES = {
    "banded": ("Banded",),
    "banded_inverse": ("BandedInverse",),
    "blt": ("BufferedLinearToeplitz",),
    "dense": ("Dense",),
    "fourier": ("Fourier",),
    "identity": ("Identity",),
    "matrix_only": ("Columns", "Described"),
    "semiseparable": ("Semiseparable",),
    "stamped": ("Stamped",),
    "toeplitz": ("BandedToeplitz", "NormalizedToeplitz"),
    "tree": ("BinaryTree",),
}
__getattr__, __dir__ = lazily(__name__, _FILES)
_OWN = [name for names in _FILES.values() for name in names if name != "Described"]


class _Families:
    """The classes of the families; the file of each is loaded when it is asked for."""

    def __contains__(self, kind: type) -> bool:
        # Compares the class itself, since anybody can copy its name.
        return kind.__name__ in _OWN and __getattr__(kind.__name__) is kind

    def __iter__(self) -> Iterator[type]:
        return map(__getattr__, _OWN)


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


# A strategy as plain numbers and arrays, for ledgers and files, and back. Nothing that a record names is imported.


def strategy_arrays(strategy: Strategy) -> dict[str, Array]:
    """The arrays of a strategy: its coefficients or its matrix; for a class of others, the matrix."""
    if type(strategy) not in OWN:
        return {"C": np.ascontiguousarray(strategy.matrix(), dtype=np.float64)}
    return {name: np.asarray(v, dtype=np.float64) for name, v in _values(strategy).items() if isinstance(v, tuple | np.ndarray)}


def strategy_numbers(strategy: Strategy) -> dict[str, Any]:
    """The class name and the plain numbers of a strategy; for a class of others, its name as origin."""
    kind = type(strategy)
    if kind not in OWN:
        from hubbub.mechanism.strategies.matrix_only import Described

        origin = strategy.origin if isinstance(strategy, Described) else f"{kind.__module__}.{kind.__qualname__}"
        return {"name": "Described", "origin": origin, "rounds": int(strategy.rounds)}
    plain = {name: v for name, v in _values(strategy).items() if not isinstance(v, tuple | np.ndarray)}
    return {"name": kind.__name__, **plain}


def from_parts(parts: Mapping[str, Any]) -> Strategy:
    """The strategy of a name and its fields, checked by its constructor."""
    values = dict(parts)
    strategy: Strategy = __getattr__(one_of("strategy.name", values.pop("name", None), [*_OWN, "Described"]))(**values)
    return strategy


def _values(strategy: Strategy) -> dict[str, Any]:
    return {part.name: getattr(strategy, part.name) for part in fields(strategy)}  # type: ignore[arg-type] # dataclasses
