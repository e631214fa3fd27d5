"""How far one client can move C·x: exact or a bound, and labelled as which.

Letters: C strategy ``(rows, rounds)``, X = CᵀC its Gram matrix, π a set of rounds that one client may join, b the minimum
separation, k the number of participations. A client that joins the rounds π contributes vectors u_i of norm at most 1;
the squared sensitivity is the largest Σ_{i,j∈π} X_ij ⟨u_i, u_j⟩. It is at most Σ |X_ij|, and equal to that where π has at
most two rounds or no X_ij is negative (Choquette-Choo et al. 2023, https://arxiv.org/abs/2211.06530). Dropping the absolute
values where X has negative entries would understate it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hubbub._checks import Array, real_array
from hubbub.participation import (
    FixedEpochs,
    FixedSizeSampling,
    MinSeparation,
    Participation,
    PoissonSampling,
    SingleParticipation,
    every_round,
)

__all__ = ["Sensitivity", "of_columns", "of_matrix", "of_sets"]

# Below this many sets of rounds, trying each costs less than a second.
_ENUMERABLE = 20_000


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
    c = real_array("squared_norms", squared_norms, ndim=1)
    if (c < 0).any():
        raise ValueError(f"squared_norms holds {c.min()}: must not be negative")
    match participation:
        case SingleParticipation():
            squared = float(c.max())
        case FixedEpochs(epochs, rounds_per_epoch):
            squared = max(
                math.fsum(c[r : epochs * rounds_per_epoch : rounds_per_epoch]) for r in range(min(rounds_per_epoch, len(c)))
            )
        case MinSeparation(min_separation, max_participations):
            squared = _separated_maximum(c, min_separation, max_participations)
        case PoissonSampling() | FixedSizeSampling():
            squared = math.fsum(c)
    return Sensitivity(math.sqrt(squared), exact=True, source="column norms, Choquette-Choo et al. 2023, Algorithm 5")


def _separated_maximum(values: Array, separation: int, most: int) -> float:
    """The largest sum of at most ``most`` of the values whose indices are ``separation`` apart; exactly rounded sums."""
    n = len(values)
    separation = min(separation, n)
    best = np.zeros(n + separation)
    for _ in range(min(most, -(-n // separation))):
        taken = values + best[separation:]
        best[:n] = np.maximum.accumulate(taken[::-1])[::-1]
    return float(best[0])


def of_matrix(C: npt.ArrayLike, participation: Participation) -> Sensitivity:
    """The L2 sensitivity of C·x when one client takes part as ``participation`` allows.

    Exact for one participation, for columns that do not overlap, for at most two participations, and where the worst set of
    rounds has no negative inner product; otherwise a bound from above.

    Args:
        C: ``(rows, rounds)``; need not be square.
        participation: What one client may join. Random participation allows every round.

    Raises:
        ValueError: An entry is not finite, or C has not two axes.

    Example:
        >>> of_matrix([[1, 0, 0], [0.5, 1, 0], [0, 0.5, 1]], MinSeparation(min_separation=2, max_participations=2))
        Sensitivity(value=1.5, exact=True, source='column norms, Choquette-Choo et al. 2023, Algorithm 5')

    Source: Choquette-Choo et al. 2023, https://arxiv.org/abs/2211.06530 and https://arxiv.org/abs/2306.08153 (Theorem 2).
    """
    strategy = real_array("C", C, ndim=2)
    X = strategy.T @ strategy
    match participation:
        case SingleParticipation():
            return of_columns(np.diag(X), participation)
        case FixedEpochs(epochs, rounds_per_epoch):
            return _fixed_epochs(X, epochs, rounds_per_epoch)
        case MinSeparation(min_separation, max_participations):
            return _min_separation(X, MinSeparation(min_separation, max_participations))
        case PoissonSampling() | FixedSizeSampling():
            return _min_separation(X, every_round(len(X)))


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
    """The largest Σ|X_ij| over the given sets of rounds; exact if a set of that value has no negative entry."""
    worst, exact = 0.0, True
    for rounds in sets:
        block = X[np.ix_(rounds, rounds)]
        total = float(np.abs(block).sum())
        attained = len(rounds) <= 2 or bool((block >= 0).all())
        if total > worst or (total == worst and attained):
            worst, exact = total, attained
    return Sensitivity(math.sqrt(worst), exact, "every set of rounds, Choquette-Choo et al. 2023, Theorem 2")


def _fixed_epochs(X: Array, epochs: int, rounds_per_epoch: int) -> Sensitivity:
    n = len(X)
    last = min(n, epochs * rounds_per_epoch)
    return _worst(X, (list(range(r, last, rounds_per_epoch)) for r in range(min(rounds_per_epoch, n))))


def _min_separation(X: Array, pattern: MinSeparation) -> Sensitivity:
    n, b = len(X), pattern.min_separation
    k = min(pattern.max_participations, -(-n // b))
    if k == 1 or not np.triu(X, b).any():
        return of_columns(np.diag(X), pattern)
    if k == 2:
        diagonal = np.diag(X)
        pairs = diagonal[:, None] + diagonal[None, :] + 2 * np.abs(X)
        return Sensitivity(
            math.sqrt(max(float(np.triu(pairs, b).max()), float(diagonal.max()))),
            exact=True,
            source="every pair of rounds",
        )
    if _count_sets(n, b, k) <= _ENUMERABLE:
        return _worst(X, _sets(n, b, k))
    rows = np.array([_separated_maximum(row, b, k) for row in np.abs(X)])
    # Each |X_ij| is counted in a row's own best set, which need not be the common one: never too small.
    return Sensitivity(
        math.sqrt(_separated_maximum(rows, b, k)), exact=False, source="row-wise bound, Choquette-Choo et al. 2023"
    )


def _count_sets(n: int, b: int, k: int) -> int:
    """How many sets of at most k indices below n are pairwise at least b apart."""
    return sum(math.comb(max(n - (m - 1) * (b - 1), 0), m) for m in range(1, k + 1))


def _sets(n: int, b: int, k: int) -> Iterator[list[int]]:
    """Every set of at most k indices below n that are pairwise at least b apart."""
    stack: list[list[int]] = [[i] for i in range(n)]
    while stack:
        rounds = stack.pop()
        yield rounds
        if len(rounds) < k:
            stack.extend([*rounds, j] for j in range(rounds[-1] + b, n))
