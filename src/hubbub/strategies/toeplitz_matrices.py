"""Lower-triangular Toeplitz C by its first column: the matrix, the root of a workload, and how far one client moves C·x."""

import math

import numpy as np
import numpy.typing as npt
from scipy import linalg

from hubbub._checks import Array, real_array, rounds_count
from hubbub.participation import (
    FixedEpochs,
    MinSeparation,
    Participation,
    RandomParticipation,
    SingleParticipation,
    covering,
    require_participation,
)
from hubbub.sensitivity import Sensitivity, of_columns, of_matrix
from hubbub.strategies.power_series import binomial, correlate, multiply
from hubbub.workloads import Workload

__all__ = [
    "columns_at",
    "columns_at_transposed",
    "first_column",
    "matrix",
    "require_equal_rates",
    "root_series",
    "sensitivity",
    "worst_rounds",
]

# The inverse would overflow below this.
_LEAST_DIAGONAL = 1e-100
# Up to this many rounds the bounds from the Gram matrix, O(rounds²·participations) time, are worth trying too.
_DENSE = 512
# Relative to the largest coefficient: what rounding does to a series that is computed.
_ROUNDING = 1e-13
# Of a sum of squares: what rounding may take from it before it is added up another way.
_LOST = 1e-12


def root_series(momentum: float, length: int, power: float = 0.5) -> Array:
    """The first coefficients of the workload's series to a power: 1/2 is its square root, −1/2 the inverse of that.

    At a learning rate of 1 the workload is 1/((1 − x)·(1 − βx)) for momentum β. At 1/2 they are positive and do not increase.

    Example:
        >>> root_series(0.0, 4)
        array([1.    , 0.5   , 0.375 , 0.3125])
    """
    series = binomial(1.0, -power, length)
    return multiply(series, binomial(momentum, -power, length), length) if momentum else series


def worst_rounds(participation: Participation, rounds: int) -> tuple[int, int]:
    """d and r: of non-negative c that does not increase, the worst rounds of one client are 0, d, …, (r − 1)·d.

    Raises:
        ValueError: Participation is random, which is no pattern.
    """
    require_participation(participation)
    if isinstance(participation, RandomParticipation):
        raise ValueError(
            f"participation = {participation!r}: random cohorts have no separation to optimize for; optimize for a "
            "pattern, such as SingleParticipation(), and calibrate the noise for the random cohorts"
        )
    match participation:
        case SingleParticipation():
            return rounds, 1
        case FixedEpochs(r, d) | MinSeparation(d, r):
            d = min(d, rounds)
            r = min(r, -(-rounds // d))
            return (d, r) if r > 1 else (rounds, 1)


def first_column(name: str, values: npt.ArrayLike, rounds: int) -> tuple[float, ...]:
    """The first column of a Toeplitz matrix or of its inverse, checked: at most ``rounds`` finite numbers, the first not 0."""
    rounds_count(rounds)
    column = real_array(name, values, ndim=1)
    if len(column) > rounds:
        raise ValueError(f"{name} has {len(column)} bands: must be at most rounds = {rounds}")
    if abs(column[0]) < _LEAST_DIAGONAL:
        raise ValueError(f"{name}[0] = {column[0]}: the diagonal of C must not be 0, or C has no inverse")
    return tuple(column.tolist())


def require_equal_rates(workload: Workload) -> None:
    """Refuse a workload that is not Toeplitz."""
    if not workload.toeplitz:
        raise ValueError(
            "workload.learning_rates differ: a Toeplitz strategy is for equal ones; use banded.optimize, which takes any"
        )


def matrix(column: npt.ArrayLike, rounds: int) -> Array:
    """``(rounds, rounds)``, lower triangular with this first column."""
    padded = np.zeros(rounds)
    padded[: len(np.atleast_1d(column))] = column
    return np.tril(linalg.toeplitz(padded))


def columns_at(c: Array, rounds: int, separation: int, participations: int) -> Array:
    """v, ``(rounds,)``: the sum of the columns 0, d, …, (r − 1)·d of C."""
    v = np.zeros(-(-rounds // separation) * separation)
    v[: len(c)] = c
    v = np.cumsum(v.reshape(-1, separation), axis=0)
    v[participations:] -= v[:-participations].copy()
    return v.ravel()[:rounds]


def columns_at_transposed(v: Array, bands: int, separation: int, participations: int) -> Array:
    """``(bands,)``: the transpose of :func:`columns_at`, which carries a gradient back."""
    return columns_at(v[::-1], len(v), separation, participations)[::-1][:bands]


def sensitivity(c: Array, rounds: int, participation: Participation) -> Sensitivity:
    """How far one client can move C·x, for C with the coefficients c along its diagonals.

    Exact while the bands are no more than the separation, for coefficients that are not negative and do not increase and, at
    fixed epochs, for all that are not negative; otherwise the least of several bounds.

    Source: Kalinin and Lampert 2024, Theorem 2, https://arxiv.org/abs/2405.13763.
    """
    pattern = covering(participation, rounds)
    separation, participations = worst_rounds(pattern, rounds)
    if participations == 1 or len(c) <= separation:
        # Later columns run out of rounds: none is longer than an earlier one.
        lengths = np.minimum(rounds - separation * np.arange(participations), len(c))
        squares = np.square(c)
        squared = math.fsum(np.cumsum(squares)[lengths - 1])
        # One after the other, 10⁵ numbers lose digits; summed in pairs, they do not.
        reached = np.cumsum(np.bincount(lengths, minlength=len(c) + 1)[::-1])[-2::-1]
        paired = float((squares * reached).sum())
        squared = squared if squared >= paired * (1 - _LOST) else paired * (1 + _ROUNDING)
        return Sensitivity(math.sqrt(squared), True, "column norms, Choquette-Choo et al. 2023, Algorithm 5")
    magnitude = np.abs(c)
    rounding = _ROUNDING * float(magnitude.max())
    exact = bool(c.min() >= -rounding)
    if isinstance(pattern, FixedEpochs):
        return _stacked(magnitude, rounds, separation, participations, exact)
    majorant = np.maximum.accumulate(magnitude[::-1])[::-1]
    exact = exact and bool((majorant <= magnitude + rounding).all())
    answers = [_stacked(majorant, rounds, separation, participations, exact)]
    if not exact:
        answers.append(_row_wise(magnitude, separation, participations))
        if rounds <= _DENSE:
            answers.append(of_matrix(matrix(c, rounds), participation))
    return min(answers, key=lambda answer: (answer.value, not answer.exact))


def _stacked(magnitude: Array, rounds: int, separation: int, participations: int, exact: bool) -> Sensitivity:
    v = columns_at(magnitude, rounds, separation, participations)
    return Sensitivity(math.sqrt(float(v @ v)), exact, "Kalinin and Lampert 2024, Theorem 2")


def _row_wise(magnitude: Array, separation: int, participations: int) -> Sensitivity:
    """The most that the inner products of one column with others can sum to, for each participation.

    An inner product is at most that of whole columns at the same distance. The best choice of m rounds on one side is concave
    in m, so that the best split of the others between the two sides is the even one.
    """
    products = correlate(magnitude, magnitude, len(magnitude))
    beside = np.maximum(products[separation:], 0.0)
    others = participations - 1
    sides = [of_columns(beside, MinSeparation(separation, m)).value ** 2 for m in (others // 2, others - others // 2) if m]
    squared = participations * (float(products[0]) + math.fsum(sides))
    return Sensitivity(math.sqrt(squared), False, "row-wise bound, Choquette-Choo et al. 2023")
