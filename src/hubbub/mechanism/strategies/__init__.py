"""How noise is correlated over rounds: one family of C a file, siblings independent of one another."""

from typing import cast

from hubbub.mechanism.strategies.banded import Banded
from hubbub.mechanism.strategies.banded_inverse import BandedInverse
from hubbub.mechanism.strategies.blt import BufferedLinearToeplitz
from hubbub.mechanism.strategies.dense import Dense
from hubbub.mechanism.strategies.fourier import Fourier
from hubbub.mechanism.strategies.identity import Identity
from hubbub.mechanism.strategies.matrix_only import Columns, Described
from hubbub.mechanism.strategies.normalized_toeplitz import NormalizedToeplitz
from hubbub.mechanism.strategies.semiseparable import Semiseparable
from hubbub.mechanism.strategies.stamped import Stamped
from hubbub.mechanism.strategies.strategy import Own, Strategy
from hubbub.mechanism.strategies.toeplitz import BandedToeplitz
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

# Strategies whose stated sensitivity is computed by us from plain numbers and arrays, which describe them completely. Of all
# others the sensitivity is computed again from the matrix.
OWN: tuple[type, ...] = (
    Banded,
    BandedInverse,
    BandedToeplitz,
    BinaryTree,
    BufferedLinearToeplitz,
    Columns,
    Dense,
    Fourier,
    Identity,
    NormalizedToeplitz,
    Semiseparable,
    Stamped,
)


def own(strategy: Strategy) -> Own | None:
    """What a strategy of this package says of itself; ``None`` of a class of others, whose word does not count.

    Example:
        >>> own(BandedToeplitz(rounds=4, coefficients=(1.0, 0.5))).words
        'banded Toeplitz, 2 bands'
    """
    return cast(Own, strategy) if type(strategy) in OWN else None
