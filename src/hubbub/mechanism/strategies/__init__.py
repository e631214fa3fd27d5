"""Strategies: how noise is correlated over rounds. One family of C a file, independent of the others."""

from hubbub.mechanism.strategies.banded import Banded
from hubbub.mechanism.strategies.banded_inverse import BandedInverse
from hubbub.mechanism.strategies.blt import BufferedLinearToeplitz
from hubbub.mechanism.strategies.dense import Dense
from hubbub.mechanism.strategies.fourier import Fourier
from hubbub.mechanism.strategies.identity import Identity
from hubbub.mechanism.strategies.matrix_only import Columns, Described
from hubbub.mechanism.strategies.semiseparable import Semiseparable
from hubbub.mechanism.strategies.stamped import Stamped
from hubbub.mechanism.strategies.strategy import Description, Strategy
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

# Families of this package: plain numbers and arrays describe each completely, and its stated sensitivity is computed from
# those. The sensitivity of any other class is recomputed from its matrix.
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


def own(strategy: Strategy) -> Description | None:
    """The description of a strategy of this package; ``None`` for any other class, whose statements are not trusted.

    Example:
        >>> own(BandedToeplitz(rounds=4, coefficients=(1.0, 0.5))).words
        'banded Toeplitz, 2 bands'
    """
    described: Description | None = getattr(strategy, "description", None) if type(strategy) in OWN else None
    return described
