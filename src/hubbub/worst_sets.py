"""Which rounds of one client move C·x the most: the largest Σ X_ij over sets of rounds that are far enough apart.

Letters: X a symmetric matrix ``(n, n)``, the Gram matrix CᵀC or its magnitudes; π a set of at most k rounds, any two at least
b apart. Every function gives the largest Σ_{i,j∈π} X_ij over such sets, or a bound from above that says so.
"""

import math
from collections.abc import Iterator

import numpy as np

from hubbub._checks import Array

__all__ = [
    "best_of_banded",
    "best_of_columns",
    "best_of_pairs",
    "best_of_rows",
    "best_of_triples",
    "count_sets",
    "every_set",
    "is_balanced",
    "width",
]

# Entries that are added up in about a second.
_MOST_ADDITIONS = 300_000_000
_MOST_TAILS = 2_000
_MOST_STEPS = 150_000


def best_of_columns(values: Array, separation: int, most: int) -> float:
    """The largest sum of at most ``most`` of the values whose indices are ``separation`` apart, which is X diagonal.

    F_m[i] = max(F_m[i+1], c_i + F_{m-1}[i+b]): O(n·k) time, O(n) memory, no recursion.
    """
    n = len(values)
    separation = min(separation, n)
    best = np.zeros(n + separation)
    for _ in range(min(most, -(-n // separation))):
        taken = values + best[separation:]
        best[:n] = np.maximum.accumulate(taken[::-1])[::-1]
    return float(best[0])


def best_of_pairs(X: Array, separation: int) -> float:
    """For at most two rounds; O(n²)."""
    diagonal = np.diag(X)
    pairs = diagonal[:, None] + diagonal[None, :] + 2 * X
    first, second = np.triu_indices(len(X), separation)
    return max(float(pairs[first, second].max(initial=-np.inf)), float(diagonal.max()))


def best_of_triples(X: Array, separation: int) -> float | None:
    """For at most three rounds, by all values of the middle one; ``None`` where that costs more than about a second."""
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
    """For X_ij = 0 where |i − j| ≥ ``bands``, by a dynamic programme; ``None`` where it would take more than about seconds.

    Its state is the last round and how far back those lie that a next one can still meet, its tail: at most
    ⌈bands / separation⌉ − 2 of them.
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
    """Every way in which at most ``longest`` earlier rounds lie less than ``reach`` back; ``None`` if there are too many."""
    tails: list[tuple[int, ...]] = [()]
    for tail in tails:
        if len(tail) < longest:
            tails.extend((*tail, back) for back in range((tail[-1] if tail else 0) + separation, reach))
        if len(tails) > _MOST_TAILS:
            return None
    return tails


def best_of_rows(X: Array, separation: int, most: int) -> float:
    """A bound from above for X without negative entries; O(n²·k), and O(n²) where only the separation limits the rounds.

    Each X_ij is counted in the best set of row i, which need not be the common one.
    """
    if separation == 1:
        chosen = np.sort(X, axis=1)[:, -most:].sum(axis=1)
    else:
        # As many rows at a time as stay in the processor's cache.
        chosen = np.concatenate([_best_of_each(rows, separation, most) for rows in np.array_split(X, -(-len(X) // 32))])
    return best_of_columns(chosen, separation, most)


def _best_of_each(rows: Array, separation: int, most: int) -> Array:
    """:func:`best_of_columns` of each row."""
    n = rows.shape[1]
    separation = min(separation, n)
    best = np.zeros((len(rows), n + separation))
    if most >= -(-n // separation):
        for i in reversed(range(n)):
            np.maximum(best[:, i + 1], rows[:, i] + best[:, i + separation], out=best[:, i])
        return best[:, 0]
    for _ in range(most):
        taken = rows + best[:, separation:]
        best[:, :n] = np.maximum.accumulate(taken[:, ::-1], axis=1)[:, ::-1]
    return best[:, 0]


def width(X: Array) -> int:
    """The number of diagonals from the main one to the last that is not 0."""
    return max((d for d in range(len(X)) if np.diagonal(X, d).any()), default=0) + 1


def is_balanced(X: Array) -> bool:
    """Whether changing the signs of some rows and columns leaves no negative entry: a client of those signs reaches Σ|X_ij|."""
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
    """How many sets of at most ``most`` indices below n are pairwise at least ``separation`` apart."""
    return sum(math.comb(max(n - (m - 1) * (separation - 1), 0), m) for m in range(1, most + 1))


def every_set(n: int, separation: int, most: int) -> Iterator[list[int]]:
    """Every set of at most ``most`` indices below n that are pairwise at least ``separation`` apart."""
    stack: list[list[int]] = [[i] for i in range(n)]
    while stack:
        rounds = stack.pop()
        yield rounds
        if len(rounds) < most:
            stack.extend([*rounds, j] for j in range(rounds[-1] + separation, n))
