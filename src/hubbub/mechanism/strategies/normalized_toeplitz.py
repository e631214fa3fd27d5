"""Banded Toeplitz noise with columns of equal norm, so that the last rounds hide as much as the first.

Letters: c coefficients (the first column of C, up to a factor), b bands, n rounds.

Source: McKenna 2024, https://arxiv.org/abs/2405.15913.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from hubbub._util.checks import Array
from hubbub.mechanism.participation import MinSeparation, Participation, covering, worst_rounds
from hubbub.mechanism.sensitivity import Sensitivity, of_columns, of_matrix
from hubbub.mechanism.strategies import matrices
from hubbub.mechanism.strategies.strategy import Draw, Memory, Row, require_dense, require_round, substituted

__all__ = ["NormalizedToeplitz"]

# Up to this many rounds a bound from the matrix costs less than a second.
_DENSE = 512


@dataclass(frozen=True)
class NormalizedToeplitz:
    """A banded Toeplitz matrix with each column divided by its norm: the last ones, which run out of rounds, weigh as much.

    Every column has norm 1, and the noise of the last rounds is smaller than without: the error falls by 1 to 5 percent. The
    first rounds of it are no such matrix, which is why it has no ``leading`` part.

    Args:
        rounds: n, at least 1.
        coefficients: c, from the main diagonal down, up to a common factor.

    Raises:
        ValueError: More bands than rounds, a zero on the diagonal, or a number that is not finite.

    Example:
        >>> NormalizedToeplitz(rounds=3, coefficients=(0.8, 0.6)).matrix().round(12)
        array([[0.8, 0. , 0. ],
               [0.6, 0.8, 0. ],
               [0. , 0.6, 1. ]])

    Source: McKenna 2024, https://arxiv.org/abs/2405.15913.
    """

    rounds: int
    coefficients: tuple[float, ...]

    sources: ClassVar[tuple[str, ...]] = ("kalinin2025back",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", matrices.first_column("coefficients", self.coefficients, self.rounds))

    @property
    def bands(self) -> int:
        """b, the number of diagonals that may be other than 0, the main one counted."""
        return len(self.coefficients)

    @property
    def words(self) -> str:
        """What it is, for a statement."""
        return f"banded Toeplitz with columns of norm 1, {self.bands} bands"

    @property
    def matrix_bands(self) -> int:
        """At most so many diagonals C has."""
        return self.bands

    @property
    def memory_rows(self) -> int:
        """The most rows that :meth:`step` carries."""
        return self.bands - 1

    @cached_property
    def column_norms(self) -> Array:
        """``(bands,)``: of the Toeplitz matrix, that of a column with 1, 2, … rounds left; the last is that of all others."""
        norms: Array = np.sqrt(np.cumsum(np.square(self.coefficients)))
        return norms

    def matrix(self) -> Array:
        """C as a dense matrix, ``(rounds, rounds)``."""
        left = np.minimum(np.arange(self.rounds, 0, -1), self.bands)
        require_dense(self.rounds)
        C: Array = matrices.matrix(self.coefficients, self.rounds) / self.column_norms[left - 1]
        return C

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """How far one client can move C·x: exact while the bands are no more than the separation, otherwise a bound."""
        pattern = covering(participation, self.rounds)
        separation, participations = worst_rounds(pattern, self.rounds)
        if self.bands <= separation or participations == 1:
            return of_columns(np.ones(self.rounds), MinSeparation(separation, participations))
        if self.rounds <= _DENSE:
            return of_matrix(self.matrix(), pattern)
        return Sensitivity(float(participations), False, "sum of the column norms: columns overlap")

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """Row ``round_index`` of C⁻¹z: that of the Toeplitz matrix, times the norm of its column."""
        require_round(round_index, self.rounds)
        row, kept = substituted(np.array(self.coefficients[::-1]), draw(round_index), memory, self.bands)
        left = min(self.rounds - round_index, self.bands)
        return float(self.column_norms[left - 1]) * row, kept
