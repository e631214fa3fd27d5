"""Sensitivities: how far one client can move C·x, exactly or as a bound, labelled as such.

Letters: C strategy ``(rows, rounds)``, X = CᵀC its Gram matrix ``(n, n)``, or its magnitudes; π a set of rounds that one client
may join, at most k of them, any two at least b apart. Who joins the rounds π contributes vectors u_i of norm at most 1; the
squared sensitivity is the largest Σ_{i,j∈π} X_ij ⟨u_i, u_j⟩. It is at most Σ |X_ij|, and equal to that where signs of the u_i
make every term positive, as for at most two rounds or no negative X_ij (Choquette-Choo et al. 2023,
https://arxiv.org/abs/2211.06530). Dropping the absolute values where X has negative entries would understate it.

Functions named ``best_of`` return the largest Σ X_ij over such sets, or a bound from above that says so.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from hubbub._util import least_root, no_lower
from hubbub._util.checks import Array, integer, real_array
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, Participation, covering, worst_rounds

__all__ = ["Sensitivity", "bands_of", "is_triangular", "of_columns", "of_matrix", "of_sets", "require_full_rank"]

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
    """An L2 sensitivity: never below the truth, and equal to it if ``exact``.

    Args:
        value: In units of the norm of one contribution.
        exact: Whether some client moves C·x this far.
        source: The theorem or the search behind it.
        square: The squared value, if it is a whole number by construction.

    Example:
        >>> from hubbub.mechanism.participation import MinSeparation
        >>> found = of_matrix(np.eye(4), MinSeparation(min_separation=1, max_participations=2))
        >>> found.value == 2**0.5, found.exact, found.stated() ** 2 >= 2
        (True, True, True)
    """

    value: float
    exact: bool
    source: str
    square: int | None = field(default=None, repr=False)

    def stated(self, factor: float = 1.0) -> float:
        """The value times a factor, rounded up."""
        if self.square is None:
            return no_lower(self.value * factor)
        return least_root(self.square * Fraction(factor) ** 2)


def summed(total: float, terms: int) -> float:
    """A sum of that many numbers of at least 0, no lower than the exact one; what states it allows for a few roundings."""
    return total * (1 + terms * 2.0**-52) if terms > 8 else total


def of_columns(squared_norms: npt.ArrayLike, participation: Participation) -> Sensitivity:
    """The sensitivity of a strategy whose columns are orthogonal within every set of rounds that one client may join.

    This includes every strategy of at most b bands at a minimum separation of b. O(rounds · k) time, O(rounds) memory.

    Args:
        squared_norms: ``(rounds,)``, the squared L2 norm of each column.
        participation: Which rounds one client may join.

    Raises:
        ValueError: A squared norm is negative or not finite.

    Example:
        >>> of_columns([0.2] * 2000, MinSeparation(min_separation=485, max_participations=3)).value ** 2
        0.6000000000000001

    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", Algorithms 3 and 5,
    https://arxiv.org/abs/2306.08153.
    """
    c = real_array("squared_norms", squared_norms, ndim=1, at_most=_LARGEST_SQUARE)
    if (c < 0).any():
        raise ValueError(f"squared_norms holds {c.min()}: must not be negative")
    match covering(participation, len(c)):
        case FixedEpochs(epochs, b):
            squared = max(math.fsum(c[r : epochs * b : b]) for r in range(min(b, len(c))))
        case pattern:
            squared = float(best_of_columns(c, *worst_rounds(pattern, len(c))))
    return Sensitivity(math.sqrt(squared), exact=True, source="column norms, Choquette-Choo et al. 2023, Algorithm 5")


def of_matrix(C: npt.ArrayLike, participation: Participation) -> Sensitivity:
    """The L2 sensitivity of C·x when one client takes part as ``participation`` allows.

    Exact if the worst set of rounds can be found and signs make all of its inner products positive. It can be found for
    rounds exactly b apart, for columns that do not overlap or overlap few others, for a client of every round, for up to three
    participations (of up to about 1200 rounds), and for few sets. Otherwise an upper bound, labelled as one.

    Args:
        C: ``(rows, rounds)``; need not be square.
        participation: Which rounds one client may join. Random cohorts can be every round, or every round of its bin.

    Raises:
        ValueError: An entry is not finite, or C has not two axes.

    Example:
        >>> of_matrix([[1, 0, 0], [0.5, 1, 0], [0, 0.5, 1]], MinSeparation(min_separation=2, max_participations=2))
        Sensitivity(value=1.5, exact=True, source='column norms, Choquette-Choo et al. 2023, Algorithm 5')

    Source: Choquette-Choo et al. 2023, https://arxiv.org/abs/2211.06530 and https://arxiv.org/abs/2306.08153 (Theorem 2).
    """
    strategy = real_array("C", C, ndim=2)
    pattern, n = covering(participation, strategy.shape[1]), strategy.shape[1]
    separation, most = worst_rounds(pattern, n)
    X = gram(strategy, most)
    match pattern:
        case FixedEpochs(epochs, b):
            last = min(n, epochs * b)
            return _worst(X, (range(r, last, b) for r in range(min(b, last))))
        case _:
            return _min_separation(X, separation, most)


def gram(C: Array, most: int) -> Array:
    """X, ``(rounds, rounds)``, so that no sum over up to ``most`` rounds is lower than the exact one by rounding."""
    X: Array = C.T @ C
    # Numbers of both signs cancel: an inner product is wrong by that part of two norms, and there are most² of them.
    X *= summed(1.0, len(C) * (1 if (C >= 0).all() else most))
    return X


def of_sets(C: npt.ArrayLike, sets: Iterable[Sequence[int]]) -> Sensitivity:
    """The L2 sensitivity of C·x to clients that took part in exactly these sets of rounds, such as those of a ledger.

    Args:
        C: ``(rows, rounds)``.
        sets: The rounds of each client.

    Example:
        >>> of_sets([[1, 0], [1, 1]], [[0], [0, 1]]).value ** 2
        5.000000000000001
    """
    strategy = real_array("C", C, ndim=2)
    n = strategy.shape[1]
    return _worst(gram(strategy, n), ([integer("round_index", r, at_least=0, at_most=n - 1) for r in one] for one in sets))


def _worst(X: Array, sets: Iterable[Sequence[int]]) -> Sensitivity:
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


def _min_separation(X: Array, b: int, k: int) -> Sensitivity:
    """The sensitivity to at most k rounds, any two at least b apart."""
    n = len(X)
    if k == 1 or not np.triu(X, b).any():
        return of_columns(np.diag(X), MinSeparation(b, k))
    if k == 2:
        return Sensitivity(math.sqrt(best_of_pairs(np.abs(X), b)), exact=True, source="every pair of rounds")
    if k == n:
        return _worst(X, [range(n)])
    if count_sets(n, b, k) <= _ENUMERABLE:
        return _worst(X, every_set(n, b, k))
    magnitude = np.abs(X)
    far = np.triu(X, b)
    balanced = is_balanced(far + far.T)
    if (found := _searched(magnitude, b, k)) is not None:
        value, source = found
        # No signs suit all rounds, but the worst set may need none: then its inner products themselves add up to the value.
        signed = None if balanced else _searched(X, b, k)
        exact = balanced or (signed is not None and signed[0] >= value * (1 - _ROUNDING))
        return Sensitivity(math.sqrt(value), exact, source)
    squares = {"row-wise": best_of_rows(magnitude, b, k), "spectral": math.inf if balanced else _spectral(X, k)}
    bound = min(squares, key=lambda name: squares[name])
    return Sensitivity(math.sqrt(squares[bound]), exact=False, source=f"{bound} bound, Choquette-Choo et al. 2023")


def _searched(X: Array, separation: int, most: int) -> tuple[float, str] | None:
    """The largest Σ X_ij over the sets of a minimum separation, or ``None`` if finding it takes more than about a second."""
    if most == 3 and (triples := best_of_triples(X, separation)) is not None:
        return triples, "every triple of rounds"
    banded = best_of_banded(X, bands_of(X), separation, most)
    return None if banded is None else (banded, "every set of rounds, by their overlaps")


# Entries that are added up in about a second.
_MOST_ADDITIONS = 300_000_000
_MOST_TAILS = 2_000
_MOST_STEPS = 150_000


def best_of_columns(values: Array, separation: int, most: int) -> Array:
    """The largest sum of at most ``most`` values along the last axis whose indices are ``separation`` apart: for diagonal X.

    F_m[i] = max(F_m[i+1], c_i + F_{m-1}[i+b]): O(n·k) time, O(n) memory, no recursion.
    """
    n = values.shape[-1]
    separation = min(separation, n)
    places = -(-n // separation)
    count = min(most, places)
    up = summed(1.0, count)
    best = np.zeros((*values.shape[:-1], n + separation))
    if values.ndim > 1 and count == places:
        # Many rows at once: O(n) however many participations there are.
        for i in reversed(range(n)):
            np.maximum(best[:, i + 1], values[:, i] + best[:, i + separation], out=best[:, i])
        return np.asarray(best[:, 0] * up)
    for _ in range(count):
        taken = values + best[..., separation:]
        best[..., :n] = np.maximum.accumulate(taken[..., ::-1], axis=-1)[..., ::-1]
    return np.asarray(best[..., 0] * up)


def best_of_pairs(X: Array, separation: int) -> float:
    """The largest sum for at most two rounds; O(n²)."""
    diagonal = np.diag(X)
    pairs = diagonal[:, None] + diagonal[None, :] + 2 * X
    first, second = np.triu_indices(len(X), separation)
    return max(float(pairs[first, second].max(initial=-np.inf)), float(diagonal.max()))


def best_of_triples(X: Array, separation: int) -> float | None:
    """The largest sum for at most three rounds, over all middle rounds; ``None`` if that takes more than about a second."""
    n, b = len(X), separation
    if max(0, n - 2 * b) ** 3 / 6 > _MOST_ADDITIONS:
        return None
    diagonal = np.diag(X)
    outer = diagonal[:, None] + diagonal[None, :] + 2 * X
    best = best_of_pairs(X, b)
    for middle in range(b, n - b):
        before, after = slice(0, middle - b + 1), slice(middle + b, n)
        sums = outer[before, after] + 2 * X[before, middle, None]
        sums += 2 * X[middle, after]
        best = max(best, float(sums.max()) + float(diagonal[middle]))
    return best


def best_of_banded(X: Array, bands: int, separation: int, most: int) -> float | None:
    """The largest sum for banded X, by dynamic programming; ``None`` if that takes more than some seconds.

    The state is the last round and its tail: the distances back to the at most ⌈bands / separation⌉ − 2 earlier rounds whose
    columns a next one can still overlap.
    """
    n, b = len(X), separation
    bands = min(max(bands, b), n)
    gaps = range(b, bands)
    tails = _tails(bands - b, b, min(-(-bands // b), most) - 2)
    steps = len(tails or ()) * len(gaps) * (most - 1)
    if tails is None or steps > _MOST_STEPS or steps * n > _MOST_ADDITIONS:
        return None
    index = {tail: i for i, tail in enumerate(tails)}
    longest = max(map(len, tails))
    meets = np.zeros((bands, n))
    for back in gaps:
        meets[back, back:] = 2 * np.diagonal(X, -back)
    value = np.full((len(tails), n), -np.inf)
    value[index[()]] = np.diag(X)
    best = float(value.max())
    for _ in range(most - 1):
        after = np.full_like(value, -np.inf)
        after[index[()], bands:] = np.maximum.accumulate(value.max(axis=0))[: n - bands]
        for tail, i in index.items():
            for gap in gaps:
                met = meets[gap, gap:] + sum(meets[gap + back, gap:] for back in tail if gap + back < bands)
                line = after[index[tuple(back for back in (gap, *(gap + t for t in tail)) if back < bands - b)[:longest]]]
                np.maximum(line[gap:], value[i, : n - gap] + met, out=line[gap:])
        value = after + np.diag(X)
        best = max(best, float(value.max()))
    return best


def _tails(reach: int, separation: int, longest: int) -> list[tuple[int, ...]] | None:
    """All tails of at most ``longest`` earlier rounds less than ``reach`` back; ``None`` if there are too many."""
    tails: list[tuple[int, ...]] = [()]
    for tail in tails:
        if len(tail) < longest:
            tails.extend((*tail, back) for back in range((tail[-1] if tail else 0) + separation, reach))
        if len(tails) > _MOST_TAILS:
            return None
    return tails


def best_of_rows(X: Array, separation: int, most: int) -> float:
    """An upper bound for X without negative entries; O(n²·k), and O(n²) if only the separation limits the rounds.

    Each X_ij is counted in the best set of row i, which need not be the common one.
    """
    if separation == 1:
        chosen = np.sort(X, axis=1)[:, -most:].sum(axis=1)
    else:
        # In blocks of rows that fit the processor's cache.
        chosen = np.concatenate([best_of_columns(rows, separation, most) for rows in np.array_split(X, -(-len(X) // 32))])
    return float(best_of_columns(chosen, separation, most))


def bands_of(C: Array) -> int:
    """The number of diagonals from the main one down to the last that is not 0, of a square matrix."""
    return max((d for d in range(len(C)) if np.diagonal(C, -d).any()), default=0) + 1


def is_balanced(X: Array) -> bool:
    """Whether some signs of rows and columns make all entries positive: a client with those signs reaches Σ|X_ij|."""
    if (X >= 0).all():
        return True
    signs = np.zeros(len(X))
    for root in range(len(X)):
        if signs[root]:
            continue
        signs[root] = 1
        reached = [root]
        while reached:
            i = reached.pop()
            wanted = signs[i] * np.sign(X[i])
            new = (signs == 0) & (wanted != 0)
            if (wanted * signs < 0).any():
                return False
            signs[new] = wanted[new]
            reached.extend(np.flatnonzero(new).tolist())
    return True


def count_sets(n: int, separation: int, most: int) -> int:
    """The number of sets of at most ``most`` indices below n that are pairwise at least ``separation`` apart."""
    return sum(math.comb(max(n - (m - 1) * (separation - 1), 0), m) for m in range(1, most + 1))


def every_set(n: int, separation: int, most: int) -> Iterator[list[int]]:
    """Every set of at most ``most`` indices below n that are pairwise at least ``separation`` apart."""
    stack: list[list[int]] = [[i] for i in range(n)]
    while stack:
        rounds = stack.pop()
        yield rounds
        if len(rounds) < most:
            stack.extend([*rounds, j] for j in range(rounds[-1] + separation, n))


def require_full_rank(name: str, C: Array) -> Array:
    """C, ``(rows, rounds)``; refused if a round has no noise of its own, so that no stream inverts C.

    Raises:
        ValueError: C has not full column rank.
    """
    full = np.diag(C).all() if is_triangular(C) else np.linalg.matrix_rank(C) == C.shape[1]
    if not full:
        raise ValueError(f"{name}: has not full column rank: some round has no noise of its own; give C a row for each round")
    return C


def is_triangular(C: Array) -> bool:
    """Whether C is square and lower triangular."""
    return C.shape[0] == C.shape[1] and not np.triu(C, 1).any()
