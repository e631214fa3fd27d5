"""Banded noise: a lower-triangular C of few diagonals, with coefficients of its own in each round.

Letters: C strategy, b bands, n rounds.

Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", https://arxiv.org/abs/2306.08153; McKenna 2024,
https://arxiv.org/abs/2405.15913.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hubbub._util.checks import Array, Rebuilt, real_array
from hubbub.mechanism.participation import Participation, covering, worst_rounds
from hubbub.mechanism.sensitivity import Sensitivity, of_columns, of_matrix, summed
from hubbub.mechanism.strategies.matrices import require_invertible
from hubbub.mechanism.strategies.strategy import Description, Draw, Memory, Row, require_dense, require_round, substituted


@dataclass(frozen=True, eq=False)
class Banded(Rebuilt):
    """A lower-triangular C given by its diagonals.

    Args:
        diagonals: ``(bands, rounds)``; entry [d, j] is that of row j + d and column j of C, 0 where there is no such row.

    Raises:
        ValueError: More bands than rounds, a zero on the main diagonal, an entry beyond the last round, or a number that is
            not finite.

    Example:
        >>> Banded([[1.0, 1.0, 2.0], [0.5, 0.25, 0.0]]).matrix()
        array([[1.  , 0.  , 0.  ],
               [0.5 , 1.  , 0.  ],
               [0.  , 0.25, 2.  ]])
    """

    diagonals: npt.ArrayLike

    def __post_init__(self) -> None:
        diagonals = real_array("diagonals", self.diagonals, ndim=2)
        bands, rounds = diagonals.shape
        if bands > rounds:
            raise ValueError(f"diagonals has shape {diagonals.shape}: must have at most as many bands as rounds")
        require_invertible("diagonals[0, {0}]", diagonals[0])
        for d in range(1, bands):
            for j in (rounds - d + np.flatnonzero(diagonals[d, rounds - d :])).tolist():
                raise ValueError(f"diagonals[{d}, {j}] = {diagonals[d, j]}: must be 0, as C has no row {j + d}")
        object.__setattr__(self, "diagonals", diagonals)

    @property
    def _stored(self) -> Array:
        return np.asarray(self.diagonals)

    @property
    def rounds(self) -> int:
        """Number of rounds n."""
        return len(self._stored[0])

    @property
    def bands(self) -> int:
        """b, the number of diagonals that may be other than 0, the main one counted."""
        return len(self._stored)

    @property
    def description(self) -> Description:
        """Words, bands and sources, for statements and reports."""
        return Description(f"banded, {self.bands} bands", self.bands, ("choquettechoo2023amplified", "mckenna2025scaling"))

    @property
    def memory_rows(self) -> int:
        """The most rows that :meth:`step` remembers."""
        return self.bands - 1

    def matrix(self) -> Array:
        """C as a dense matrix, ``(rounds, rounds)``."""
        require_dense(self.rounds)
        C = np.zeros((self.rounds, self.rounds))
        for d, diagonal in enumerate(self._stored):
            np.fill_diagonal(C[d:], diagonal[: self.rounds - d])
        return C

    def leading(self, rounds: int) -> "Banded":
        """The first ``rounds`` rounds."""
        part = self._stored[:rounds, :rounds].copy()
        for d in range(1, len(part)):
            part[d, rounds - d :] = 0.0
        return Banded(part)

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """How far one client can move C·x: exact while the bands are no more than the separation.

        With more bands than that, or for random cohorts, the inner products of columns are needed: O(rounds²) memory.
        """
        separation, participations = worst_rounds(covering(participation, self.rounds), self.rounds)
        if self.bands <= separation or participations == 1:
            return of_columns(np.square(self._stored).sum(axis=0) * summed(1.0, self.bands), participation)
        return of_matrix(self.matrix(), participation)

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """Row ``round_index`` of C⁻¹z, by forward substitution over the last ``bands`` − 1 rows."""
        require_round(round_index, self.rounds)
        back = np.arange(min(round_index, self.bands - 1), -1, -1)
        return substituted(self._stored[back, round_index - back], draw(round_index), memory, self.bands)
