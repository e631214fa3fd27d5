"""Banded Toeplitz noise: each column of C is the previous one, shifted by a round.

Letters: c coefficients (the first column of C, up to a factor), b bands, n rounds.

Source: Choquette-Choo et al. 2023, https://arxiv.org/abs/2306.08153; McKenna 2024, https://arxiv.org/abs/2405.15913.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hubbub._util.checks import Array, Rebuilt, integer, plain_numbers, rounds_count
from hubbub.mechanism.participation import MinSeparation, Participation, covering, worst_rounds
from hubbub.mechanism.sensitivity import Sensitivity, of_columns, of_matrix, summed
from hubbub.mechanism.strategies import matrices
from hubbub.mechanism.strategies.strategy import Description, Draw, Memory, Row, require_dense, require_round, substituted
from hubbub.mechanism.workloads import Workload

__all__ = ["BandedToeplitz", "NormalizedToeplitz", "square_root", "square_root_of"]

# Up to this many rounds a bound from the matrix costs less than a second.
_DENSE = 512


@dataclass(frozen=True)
class _Coefficients(Rebuilt):
    """The fields of both families, checked."""

    rounds: int
    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        plain_numbers(self, rounds=rounds_count)
        object.__setattr__(self, "coefficients", matrices.first_column("coefficients", self.coefficients, self.rounds))

    @property
    def bands(self) -> int:
        """b, the number of diagonals that may be other than 0, the main one counted."""
        return len(self.coefficients)

    @property
    def memory_rows(self) -> int:
        """The most rows that :meth:`step` remembers."""
        return self.bands - 1

    def matrix(self) -> Array:
        """C as a dense matrix, ``(rounds, rounds)``."""
        require_dense(self.rounds)
        return matrices.matrix(self.coefficients, self.rounds)

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """Row ``round_index`` of C⁻¹z, by forward substitution over the last ``bands`` − 1 rows."""
        require_round(round_index, self.rounds)
        return substituted(np.array(self.coefficients[::-1]), draw(round_index), memory, self.bands)


@dataclass(frozen=True)
class BandedToeplitz(_Coefficients):
    """C with ``coefficients`` along its diagonals and zeros below the last band.

    Args:
        rounds: n, at least 1.
        coefficients: c, from the main diagonal down; at most n, the first not 0. Scale is free: a mechanism's noise
            multiplier is relative to the largest column norm.

    Raises:
        ValueError: More bands than rounds, a zero on the diagonal, or a number that is not finite.

    Example:
        >>> BandedToeplitz(rounds=3, coefficients=(1.0, 0.5)).matrix()
        array([[1. , 0. , 0. ],
               [0.5, 1. , 0. ],
               [0. , 0.5, 1. ]])
    """

    @property
    def description(self) -> Description:
        """Words, bands and sources, for statements and reports."""
        sources = ("kalinin2024banded", "mckenna2025scaling")
        return Description(f"banded Toeplitz, {self.bands} bands", self.bands, sources, toeplitz=True)

    def leading(self, rounds: int) -> "BandedToeplitz":
        """The first ``rounds`` rounds."""
        return BandedToeplitz(rounds, self.coefficients[:rounds])

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """How far one client can move C·x.

        Exact while the bands are no more than the separation, and for coefficients that are positive and do not increase;
        otherwise a bound.

        Source: Kalinin and Lampert 2024, Theorem 2, https://arxiv.org/abs/2405.13763.
        """
        return matrices.sensitivity(np.array(self.coefficients), self.rounds, participation)


@dataclass(frozen=True)
class NormalizedToeplitz(_Coefficients):
    """A banded Toeplitz matrix with each column divided by its norm.

    Every column has norm 1, also the last ones, which run out of rounds: their noise is smaller than without, and the error
    falls by 1 to 5 percent. The first rounds are no such matrix, so there is no ``leading`` part.

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

    @property
    def description(self) -> Description:
        """Words, bands and sources, for statements and reports."""
        return Description(f"banded Toeplitz with columns of norm 1, {self.bands} bands", self.bands, ("kalinin2025back",))

    @cached_property
    def column_norms(self) -> Array:
        """``(bands,)``, read-only: norms of Toeplitz columns with 1, 2, … rounds left; the last is that of all others."""
        norms: Array = np.sqrt(np.cumsum(np.square(self.coefficients)))
        norms.setflags(write=False)
        return norms

    def matrix(self) -> Array:
        """C as a dense matrix, ``(rounds, rounds)``."""
        left = np.minimum(np.arange(self.rounds, 0, -1), self.bands)
        C: Array = super().matrix() / self.column_norms[left - 1]
        return C

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """How far one client can move C·x: exact while the bands are no more than the separation, otherwise a bound."""
        separation, participations = worst_rounds(covering(participation, self.rounds), self.rounds)
        if self.bands <= separation or participations == 1:
            return of_columns(np.full(self.rounds, summed(1.0, self.bands)), MinSeparation(separation, participations))
        if self.rounds <= _DENSE:
            return of_matrix(self.matrix(), participation)
        return Sensitivity(participations * summed(1.0, self.bands), False, "sum of the column norms: columns overlap")

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """Row ``round_index`` of C⁻¹z: that of the Toeplitz matrix, times the norm of its column."""
        row, kept = super().step(round_index, draw, memory)
        left = min(self.rounds - round_index, self.bands)
        return float(self.column_norms[left - 1]) * row, kept


def square_root(rounds: int, bands: int) -> BandedToeplitz:
    """The square root of the prefix sum, cut to ``bands`` diagonals.

    The full root is the Toeplitz strategy of least maximum error for prefix sums; the cut one makes columns of rounds that
    are ``bands`` apart orthogonal.

    Args:
        rounds: n, at least 1.
        bands: b, from 1 to n.

    Raises:
        ValueError: More bands than rounds.

    Example:
        >>> square_root(rounds=4, bands=3).coefficients
        (1.0, 0.5, 0.375)

    Source: Fichtenberger et al. 2023, https://arxiv.org/abs/2202.11205; Dvijotham et al. 2024,
    https://arxiv.org/abs/2404.16706.
    """
    return square_root_of(Workload(rounds), bands)


def square_root_of(workload: Workload, bands: int) -> BandedToeplitz:
    """The square root of a workload with momentum, cut to ``bands`` diagonals: the banded square root.

    Args:
        workload: A, of equal learning rates, whose value is left out: the scale of C is free.
        bands: b, from 1 to n.

    Raises:
        ValueError: More bands than rounds, or learning rates that differ.

    Example:
        >>> from hubbub.mechanism.workloads import momentum
        >>> square_root_of(momentum(rounds=4, momentum=0.5), bands=3).coefficients
        (1.0, 0.75, 0.59375)

    Source: Kalinin and Lampert 2024, Theorem 1, https://arxiv.org/abs/2405.13763.
    """
    matrices.require_equal_rates(workload)
    bands = integer("bands", bands, at_least=1, at_most=workload.rounds)
    return BandedToeplitz(workload.rounds, tuple(matrices.root_series(workload.momentum, bands).tolist()))
