"""How far one client can move C·x: exact or a bound, and labelled as which.

Letters: C strategy ``(rows, rounds)``, X = CᵀC its Gram matrix, π a set of rounds that one client may join, b the minimum
separation, k the number of participations. A client that joins the rounds π contributes vectors u_i of norm at most 1;
the squared sensitivity is the largest Σ_{i,j∈π} X_ij ⟨u_i, u_j⟩. It is at most Σ |X_ij|, and equal to that where signs of the
u_i make every term positive, as for at most two rounds or no negative X_ij (Choquette-Choo et al. 2023,
https://arxiv.org/abs/2211.06530). Dropping the absolute values where X has negative entries would understate it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hubbub._checks import Array, real_array
from hubbub.participation import (
    FixedEpochs,
    MinSeparation,
    Participation,
    SingleParticipation,
    covering,
    require_participation,
)
from hubbub.worst_sets import (
    best_of_banded,
    best_of_columns,
    best_of_pairs,
    best_of_rows,
    best_of_triples,
    count_sets,
    every_set,
    is_balanced,
    width,
)

__all__ = ["Sensitivity", "of_columns", "of_matrix", "of_sets"]

# Below this many sets of rounds, trying each costs less than a second; so do the eigenvalues of this many rounds.
_ENUMERABLE = 20_000
# The square of the largest entry that a matrix may have.
_LARGEST_SQUARE = 1e200
_MOST_EIGEN = 1000
# Relative, and well above that of LAPACK at this size: a bound must err on the high side.
_EIGEN_ERROR = 1e-11
# Two sums of the same numbers in another order.
_ROUNDING = 1e-13


@dataclass(frozen=True)
class Sensitivity:
    """An L2 sensitivity that knows its standing: never below the truth, equal to it where ``exact``."""

    value: float
    exact: bool
    source: str


def of_columns(squared_norms: npt.ArrayLike, participation: Participation) -> Sensitivity:
    """The sensitivity of a strategy whose columns are orthogonal within every set of rounds that one client may join.

    That holds for a strategy of at most b bands at a minimum separation of b. Dynamic programme over the best value of
    the rounds from i on with at most m participations, F_m[i] = max(F_m[i+1], c_i + F_{m-1}[i+b]): O(rounds · k) time,
    O(rounds) memory, no recursion.

    Args:
        squared_norms: ``(rounds,)``, the squared L2 norm of each column.
        participation: What one client may join.

    Raises:
        ValueError: A squared norm is negative or not finite.

    Example:
        >>> of_columns([0.2] * 2000, MinSeparation(min_separation=485, max_participations=3)).value ** 2
        0.6000000000000001

    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", Algorithms 3 and 5,
    https://arxiv.org/abs/2306.08153.
    """
    require_participation(participation)
    c = real_array("squared_norms", squared_norms, ndim=1, at_most=_LARGEST_SQUARE)
    if (c < 0).any():
        raise ValueError(f"squared_norms holds {c.min()}: must not be negative")
    match covering(participation, len(c)):
        case SingleParticipation():
            squared = float(c.max())
        case FixedEpochs(epochs, rounds_per_epoch):
            squared = max(
                math.fsum(c[r : epochs * rounds_per_epoch : rounds_per_epoch]) for r in range(min(rounds_per_epoch, len(c)))
            )
        case MinSeparation(min_separation, max_participations):
            squared = best_of_columns(c, min_separation, max_participations)
    return Sensitivity(math.sqrt(squared), exact=True, source="column norms, Choquette-Choo et al. 2023, Algorithm 5")


def of_matrix(C: npt.ArrayLike, participation: Participation) -> Sensitivity:
    """The L2 sensitivity of C·x when one client takes part as ``participation`` allows.

    Exact where the worst set of rounds can be found and signs make all of its inner products positive. It can be found for
    rounds exactly b apart, for columns that do not overlap or overlap few others, for a client of every round, for up to three
    participations (of up to about 1200 rounds), and where there are few sets. Otherwise a bound from above, and says so.

    Args:
        C: ``(rows, rounds)``; need not be square.
        participation: What one client may join. Random cohorts may give it every round, or every round of its slot.

    Raises:
        ValueError: An entry is not finite, or C has not two axes.

    Example:
        >>> of_matrix([[1, 0, 0], [0.5, 1, 0], [0, 0.5, 1]], MinSeparation(min_separation=2, max_participations=2))
        Sensitivity(value=1.5, exact=True, source='column norms, Choquette-Choo et al. 2023, Algorithm 5')

    Source: Choquette-Choo et al. 2023, https://arxiv.org/abs/2211.06530 and https://arxiv.org/abs/2306.08153 (Theorem 2).
    """
    require_participation(participation)
    strategy = real_array("C", C, ndim=2)
    X = strategy.T @ strategy
    match covering(participation, len(X)):
        case SingleParticipation():
            return of_columns(np.diag(X), SingleParticipation())
        case FixedEpochs(epochs, rounds_per_epoch):
            return _fixed_epochs(X, epochs, rounds_per_epoch)
        case MinSeparation(min_separation, max_participations):
            return _min_separation(X, MinSeparation(min_separation, max_participations))


def of_sets(C: npt.ArrayLike, sets: Iterable[Sequence[int]]) -> Sensitivity:
    """The L2 sensitivity of C·x to clients that took part in exactly these sets of rounds, such as a record names them.

    Args:
        C: ``(rows, rounds)``.
        sets: Of each client the rounds that it joined.

    Example:
        >>> of_sets([[1, 0], [1, 1]], [[0], [0, 1]]).value ** 2
        5.000000000000001
    """
    strategy = real_array("C", C, ndim=2)
    return _worst(strategy.T @ strategy, (list(rounds) for rounds in sets))


def _worst(X: Array, sets: Iterator[list[int]]) -> Sensitivity:
    """The largest bound of the given sets of rounds; exact if a set of that value attains it."""
    worst, exact = 0.0, True
    for rounds in sets:
        block = X[np.ix_(rounds, rounds)]
        total = float(np.abs(block).sum())
        if total < worst:
            continue
        attained = is_balanced(block)
        if not attained:
            total = min(total, _spectral(block, len(rounds)))
        if total > worst or (total == worst and attained):
            worst, exact = total, attained
    return Sensitivity(math.sqrt(worst), exact, "every set of rounds, Choquette-Choo et al. 2023, Theorem 2")


def _spectral(X: Array, participations: int) -> float:
    """At most k times the largest eigenvalue: a bound from above that can beat Σ|X_ij| where signs differ."""
    return math.inf if len(X) > _MOST_EIGEN else float(np.linalg.eigvalsh(X)[-1]) * participations * (1 + _EIGEN_ERROR)


def _fixed_epochs(X: Array, epochs: int, rounds_per_epoch: int) -> Sensitivity:
    n = len(X)
    last = min(n, epochs * rounds_per_epoch)
    return _worst(X, (list(range(r, last, rounds_per_epoch)) for r in range(min(rounds_per_epoch, last))))


def _min_separation(X: Array, pattern: MinSeparation) -> Sensitivity:
    n, b = len(X), pattern.min_separation
    k = min(pattern.max_participations, -(-n // b))
    if k == 1 or not np.triu(X, b).any():
        return of_columns(np.diag(X), pattern)
    if k == 2:
        return Sensitivity(math.sqrt(best_of_pairs(np.abs(X), b)), exact=True, source="every pair of rounds")
    if k == n:
        return _worst(X, iter([list(range(n))]))
    if count_sets(n, b, k) <= _ENUMERABLE:
        return _worst(X, every_set(n, b, k))
    magnitude = np.abs(X)
    far = np.triu(X, b)
    balanced = is_balanced(far + far.T)
    if (found := _searched(magnitude, b, k)) is not None:
        value, source = found
        # Where no signs suit all rounds, the worst set may still need none: then its inner products themselves add up to it.
        exact = balanced or _attained(X, b, k, value)
        return Sensitivity(math.sqrt(value), exact, source)
    rows = Sensitivity(
        math.sqrt(best_of_rows(magnitude, b, k)), exact=False, source="row-wise bound, Choquette-Choo et al. 2023"
    )
    if balanced:
        return rows
    spectral = Sensitivity(math.sqrt(_spectral(X, k)), exact=False, source="spectral bound, Choquette-Choo et al. 2023")
    return min(rows, spectral, key=lambda answer: answer.value)


def _searched(X: Array, separation: int, most: int) -> tuple[float, str] | None:
    """The largest Σ X_ij over the sets of a minimum separation, if it can be found in about a second."""
    if most == 3 and (triples := best_of_triples(X, separation)) is not None:
        return triples, "every triple of rounds"
    banded = best_of_banded(X, width(X), separation, most)
    return None if banded is None else (banded, "every set of rounds, by their overlaps")


def _attained(X: Array, separation: int, most: int, value: float) -> bool:
    found = _searched(X, separation, most)
    return found is not None and found[0] >= value * (1 - _ROUNDING)
