"""How noise is correlated over rounds: one family of C a file, siblings independent of one another."""

from hubbub.strategies.banded import Banded
from hubbub.strategies.banded_inverse import BandedInverse
from hubbub.strategies.blt import BufferedLinearToeplitz
from hubbub.strategies.dense import Dense
from hubbub.strategies.fourier import Fourier
from hubbub.strategies.identity import Identity
from hubbub.strategies.matrix_only import Columns, Described
from hubbub.strategies.normalized_toeplitz import NormalizedToeplitz
from hubbub.strategies.semiseparable import Semiseparable
from hubbub.strategies.stamped import Stamped
from hubbub.strategies.strategy import Strategy
from hubbub.strategies.toeplitz import BandedToeplitz
from hubbub.strategies.tree import BinaryTree

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
