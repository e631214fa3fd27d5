"""Banded noise: each round's noise takes back part of that of the last few rounds, with a share of its own for each round.

Letters: C strategy, b bands, n rounds.

Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", https://arxiv.org/abs/2306.08153; McKenna 2024,
https://arxiv.org/abs/2405.15913.
"""

import contextlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hubbub._checks import Array, integer, one_of, open_unit, real_array
from hubbub.factorization.bounds import lower_bound
from hubbub.factorization.certificate import MOST_ROUNDS
from hubbub.factorization.multilevel import least_error, least_largest_error
from hubbub.factorization.threads import on_one_thread
from hubbub.factorization.toeplitz import worst_rounds
from hubbub.participation import (
    FixedEpochs,
    Participation,
    SingleParticipation,
    covering,
)
from hubbub.sensitivity import Sensitivity, of_columns, of_matrix
from hubbub.strategies.optimized import Objective, Optimized
from hubbub.strategies.strategy import Draw, Memory, Row, require_dense, require_round
from hubbub.strategies.substitution import substituted
from hubbub.utility import squared_errors
from hubbub.workloads import Workload

__all__ = ["Banded", "from_matrix", "optimize"]

# The inverse would overflow below this.
_LEAST_DIAGONAL = 1e-100
# Up to this much work (n·b²) for an evaluation of the error, a near exact answer costs a second or two.
_SMALL = 6e6
# Entries of C: a search holds some ten times as many.
_MOST_ENTRIES = 5e7
# relative_gap where none is asked for: of the mean for small and large problems, and of the maximum.
_TIGHT, _USUAL = 1e-7, 1e-4


@dataclass(frozen=True, eq=False)
class Banded:
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
        zero = np.flatnonzero(np.abs(diagonals[0]) < _LEAST_DIAGONAL)
        if zero.size:
            raise ValueError(
                f"diagonals[0, {zero[0]}] = {diagonals[0, zero[0]]}: the diagonal of C must not be 0, or C has no inverse"
            )
        for d in range(1, bands):
            beyond = np.flatnonzero(diagonals[d, rounds - d :])
            if beyond.size:
                j = rounds - d + int(beyond[0])
                raise ValueError(f"diagonals[{d}, {j}] = {diagonals[d, j]}: must be 0, as C has no row {j + d}")
        object.__setattr__(self, "diagonals", diagonals)

    @property
    def _stored(self) -> Array:
        diagonals: Array = self.diagonals  # type: ignore[assignment] # the constructor made it an array
        return diagonals

    @property
    def rounds(self) -> int:
        """Number of rounds n."""
        return len(self._stored[0])

    @property
    def bands(self) -> int:
        """b, the number of diagonals that may be other than 0, the main one counted."""
        return len(self._stored)

    @property
    def memory_rows(self) -> int:
        """The most rows that :meth:`step` carries."""
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
        pattern = covering(participation, self.rounds)
        separation, participations = worst_rounds(pattern, self.rounds)
        if self.bands <= separation or participations == 1:
            return of_columns(np.square(self._stored).sum(axis=0), pattern)
        return of_matrix(self.matrix(), pattern)

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """Row ``round_index`` of C⁻¹z, by forward substitution over the last ``bands`` − 1 rows."""
        require_round(round_index, self.rounds)
        back = np.arange(min(round_index, self.bands - 1), -1, -1)
        return substituted(self._stored[back, round_index - back], draw(round_index), memory, self.bands)


def from_matrix(C: npt.ArrayLike, bands: int | None = None) -> Banded:
    """A lower-triangular banded matrix by its diagonals.

    Args:
        C: ``(rounds, rounds)``.
        bands: How many diagonals; by default up to the last that is not 0.

    Raises:
        ValueError: C is not square, or has an entry other than 0 above its diagonal or below its last band.

    Example:
        >>> from_matrix([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.0, 0.5, 1.0]]).bands
        2
    """
    matrix = real_array("C", C, ndim=2)
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"C has shape {matrix.shape}: must be square, one row and one column a round")
    rows, columns = np.nonzero(matrix)
    widest = int((rows - columns).max(initial=0)) + 1
    kept = widest if bands is None else integer("bands", bands, at_least=1, at_most=len(matrix))
    for i, j in zip(rows.tolist(), columns.tolist(), strict=True):
        if not 0 <= i - j < kept:
            raise ValueError(f"C[{i}, {j}] = {matrix[i, j]}: must be 0 in a lower-triangular C of {kept} bands")
    diagonals = np.zeros((kept, len(matrix)))
    for d in range(kept):
        diagonals[d, : len(matrix) - d] = np.diagonal(matrix, -d)
    return Banded(diagonals)


@on_one_thread
def optimize(
    workload: Workload,
    bands: int,
    *,
    participation: Participation = SingleParticipation(),  # noqa: B008 # a frozen value
    objective: Objective = "mean",
    weights: npt.ArrayLike | None = None,
    relative_gap: float | None = None,
) -> Optimized[Banded]:
    """The strategy of least error among all of ``bands`` diagonals, with a proof of how near it is.

    Its columns have norm 1. 2000 rounds and 400 bands take a few seconds. Beyond 5000 rounds the proof would take minutes and
    gigabytes: the bound is then that of every strategy, banded or not, which is lower.

    Args:
        workload: A, with any momentum and learning rates.
        bands: b, from 1 to n, at most the separation of ``participation``.
        participation: What one client may join.
        objective: ``"mean"`` of the squared errors, or their ``"max"``.
        weights: ``(rounds,)``, not negative, not all 0: the mean is Σ w·errors / Σ w. By default all are 1.
        relative_gap: How near the bound to stop. By default 1e-7 for the mean of small problems, 1e-4 for large ones and for
            the maximum. What rounding forbids is not reached: some 1e-7 for 2000 rounds.

    Raises:
        ValueError: More bands than rounds or than the separation, random participation, or weights for the maximum.

    Example:
        >>> from hubbub.workloads import prefix_sum
        >>> result = optimize(prefix_sum(rounds=64), bands=16)
        >>> round(result.squared_error, 6), result.relative_gap < 1e-7
        (5.256097, True)

    Source: McKenna 2024, https://arxiv.org/abs/2405.15913, for the problem.
    """
    rounds = workload.rounds
    integer("bands", bands, at_least=1, at_most=rounds)
    one_of("objective", objective, ("mean", "max"))
    separation, participations = worst_rounds(participation, rounds)
    if bands > separation and participations > 1:
        raise ValueError(
            f"bands = {bands}: must be at most {separation}, the separation of {participation!r}, or columns of one client "
            f"overlap and cost more than their norms; use bands = {separation}, or dense.optimize"
        )
    if rounds * bands > _MOST_ENTRIES:
        raise ValueError(
            f"bands = {bands}: {rounds:,} rounds of so many are {rounds * bands:,} numbers, more than {_MOST_ENTRIES:,.0f}; "
            "use fewer bands, or toeplitz.optimize"
        )
    shares = _shares(weights, rounds, objective)
    small = rounds <= MOST_ROUNDS and rounds * bands**2 <= _SMALL and objective == "mean"
    gap = (_TIGHT if small else _USUAL) if relative_gap is None else open_unit("relative_gap", relative_gap)
    found = least_error(workload, shares, bands, gap) if objective == "mean" else least_largest_error(workload, bands, gap)
    strategy = Banded(found.C.T)
    _require_sound(workload, strategy, found.errors)
    # Columns have norm 1 but for rounding: what is left of it is in the sensitivity.
    squared = strategy.sensitivity(participation).value ** 2
    # A column that nobody may join could be of any norm.
    unused = isinstance(participation, FixedEpochs) and participation.epochs * participation.rounds_per_epoch < rounds
    equal = " with columns of equal norm" if participations > 1 or unused else ""
    bound, family = found.lower_bound * squared, f"every strategy of at most {bands} bands{equal}"
    if weights is None:
        with contextlib.suppress(ArithmeticError):
            bound, family = max((bound, family), (lower_bound(workload, participation, objective), "every strategy"))
    return Optimized(strategy, workload, participation, objective, found.value * squared, bound, family, found.evaluations)


def _require_sound(workload: Workload, strategy: Banded, errors: Array) -> None:
    """Refuse an answer that rounding has spoilt, which uneven learning rates may do."""
    sound = bool(np.isfinite(errors).all())
    if sound and workload.learning_rates and workload.rounds <= MOST_ROUNDS:
        sound = bool(np.allclose(squared_errors(workload, strategy), errors, rtol=1e-6, atol=0.0))
    if not sound:
        rates = workload.learning_rates or (1.0,)
        raise ValueError(
            f"workload: its learning rates, from {min(rates):g} to {max(rates):g}, are too uneven for float64 with momentum "
            f"{workload.momentum:g}; use dense.optimize, or toeplitz.optimize for equal ones"
        )


def _shares(weights: npt.ArrayLike | None, rounds: int, objective: str) -> Array:
    """Weights with the sum 1, ``(rounds,)``."""
    if weights is None:
        return np.full(rounds, 1 / rounds)
    if objective == "max":
        raise ValueError("weights: must be None for objective = 'max', where the largest error counts alone; use 'mean'")
    w = real_array("weights", weights, ndim=1)
    if len(w) != rounds:
        raise ValueError(f"weights has {len(w)} entries: must have one for each of {rounds} rounds")
    if (w < 0).any() or not w.any():
        raise ValueError(f"weights holds {w.min()} to {w.max()}: must not be negative, and not all 0")
    shares: Array = w / w.sum()
    return shares
