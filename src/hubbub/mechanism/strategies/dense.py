"""Dense noise: any lower-triangular C, such as a published or optimized matrix.

Letters: C strategy ``(rounds, rounds)``, X = CᵀC, n rounds.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy.typing as npt

from hubbub._util.checks import Array, Rebuilt
from hubbub.mechanism.participation import Participation
from hubbub.mechanism.sensitivity import Sensitivity, bands_of, of_matrix
from hubbub.mechanism.strategies.matrices import checked_triangular, triangular_form
from hubbub.mechanism.strategies.strategy import Description, Draw, Memory, Row, require_round, substituted


@dataclass(frozen=True, eq=False)
class Dense(Rebuilt):
    """A strategy given as a matrix.

    Args:
        C: ``(rounds, rounds)``, lower triangular, no zero on the diagonal. Copied.

    Raises:
        ValueError: C is not square, not lower triangular, has a zero on its diagonal, or an entry that is not finite; the
            message names row and column.

    Example:
        >>> Dense([[1.0, 0.0], [0.5, 1.0]]).rounds
        2
    """

    C: npt.ArrayLike

    def __post_init__(self) -> None:
        object.__setattr__(self, "C", checked_triangular(self.C))

    @property
    def rounds(self) -> int:
        """Number of rounds n."""
        return len(self.matrix())

    def matrix(self) -> Array:
        """C, ``(rounds, rounds)``, read-only."""
        C: Array = self.C  # type: ignore[assignment] # the constructor made it an array
        return C

    @cached_property
    def bands(self) -> int:
        """The number of diagonals up to the last that is not 0, the main one counted."""
        return bands_of(self.matrix())

    @property
    def description(self) -> Description:
        """Words, bands and sources, for statements and reports."""
        return Description("Dense", self.bands, ("choquettechoo2023multi",))

    @property
    def memory_rows(self) -> int:
        """The most rows that :meth:`step` remembers."""
        return self.bands - 1

    def leading(self, rounds: int) -> "Dense":
        """The first ``rounds`` rounds."""
        return Dense(self.matrix()[:rounds, :rounds])

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """How far one client can move C·x, computed from the matrix."""
        return of_matrix(self.matrix(), participation)

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """Row ``round_index`` of C⁻¹z, by forward substitution over the last ``bands`` − 1 rows."""
        require_round(round_index, self.rounds)
        return substituted(self.matrix()[round_index, : round_index + 1], draw(round_index), memory, self.bands)


def from_matrix(C: npt.ArrayLike) -> Dense:
    """The triangular strategy that is as private as C, tall or not, and as exact as the best decoder of C.

    Raises:
        ValueError: C has fewer rows than rounds, or not full column rank.

    Example:
        >>> from_matrix([[1, 0], [0, 1], [1, 1]]).matrix().round(3)
        array([[1.225, 0.   ],
               [0.707, 1.414]])
    """
    return Dense(triangular_form(C))


def load(path: str | Path) -> Dense:
    """A strategy from a file: a NumPy array (``.npy``) or a serialized TensorFlow ``TensorProto`` (any other name).

    Nothing that a file says about its sensitivity is used: a strategy computes it from the matrix.

    Raises:
        DataError: The file is missing or is not such a file.
        ValueError: The matrix is no strategy (see :class:`Dense`).
    """
    # Accounting reads no files.
    from hubbub._util.tensor_proto import read_tensor_proto

    matrix = read_tensor_proto(path)
    try:
        return Dense(matrix)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
