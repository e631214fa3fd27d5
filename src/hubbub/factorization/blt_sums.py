"""Sums of geometric series and responses of linear recursions, to full precision where their poles come near 1.

A pole r = 1 − δ is known by δ: where δ is 1e-9, r itself has lost half of its digits. Letters: n a number of terms.
"""

import math
from functools import lru_cache

import numpy as np

from hubbub._checks import Array

__all__ = ["binomial_sums", "responses", "squared_errors", "toeplitz_bound"]

# Below n·δ = 1 the closed forms cancel; there the terms of the series fall at least as fast as 1/q!, so that these reach 1e-17.
_TERMS = 19
# Of a sum, for each of its terms: a few units in the last place.
_ROUNDING = 1e-14


def binomial_sums(n: int, order: int, logs: Array) -> tuple[Array, Array]:
    """T = Σ_{i<n} C(n−1−i, order−1)·r^i and dT/dδ for each r = 1 − δ, given as log r ≤ 0.

    Order 1 is Σ_{i<n} r^i; order 2 is Σ_{i<n} (n−1−i)·r^i. In powers of δ, T = Σ_q C(n, q + order)·(−δ)^q, from which follows
    δ·T_order = C(n, order−1) − T_{order−1} with T_0 = r^n.

    Args:
        n: At least 0.
        order: 1 or more.
        logs: log r, of any shape; 0 for r = 1.

    Returns:
        T and its derivative by δ, both of the shape of ``logs``.

    Example:
        >>> binomial_sums(3, 1, np.log([0.5, 1.0]))
        (array([1.75, 3.  ]), array([-2., -3.]))
    """
    if n < order:
        return np.zeros_like(logs), np.zeros_like(logs)
    small = logs > -1 / n
    if small.all():
        return _near_one(n, order, logs)
    log_r = np.where(small, -1.0, logs)
    delta = -np.expm1(log_r)
    total, slope = -np.expm1(n * log_r) / delta, -n * np.exp((n - 1) * log_r)
    slope = -(total + slope) / delta
    for j in range(2, order + 1):
        total = (math.comb(n, j - 1) - total) / delta
        slope = -(total + slope) / delta
    if small.any():
        total[small], slope[small] = _near_one(n, order, logs[small])
    return total, slope


def _near_one(n: int, order: int, logs: Array) -> tuple[Array, Array]:
    """:func:`binomial_sums` by their power series, where n·δ is at most 1."""
    powers = (n * np.expm1(logs))[..., None] ** np.arange(_TERMS)
    both = powers @ _series(n, order)
    return both[..., 0], both[..., 1]


@lru_cache(maxsize=64)
def _series(n: int, order: int) -> Array:
    """The coefficients of T and dT/dδ as power series in −n·δ, ``(terms, 2)``."""
    factors = [max(0.0, (n - j) / (j + 1) / n) for j in range(order + _TERMS)]
    binomials = np.cumprod(factors)[order - 1 :]  # C(n, q + order)/n^(q + order)
    slopes = -np.arange(1, _TERMS + 1) * binomials[1:] * float(n) ** (order + 1)
    return np.stack([binomials[:-1] * float(n) ** order, slopes], axis=1)


def responses(change: Array, start: Array, output: Array, count: int) -> Array:
    """output·(I + change)^i·start for i < ``count``, ``(count,)``, in O(count·states) and no loop over i.

    Powers are kept as their difference from I, by (I + E)² = I + (2E + E²), so that a state that forgets 1e-12 of itself
    is told from one that forgets nothing.

    Args:
        change: One step of the recursion, less I, ``(states, states)``.
        start: ``(states,)``.
        output: ``(states,)``.
        count: At least 1.

    Example:
        >>> responses(np.array([[-0.5]]), np.array([1.0]), np.array([3.0]), 4)
        array([3.   , 1.5  , 0.75 , 0.375])
    """
    rows, columns = output[None, :], start[:, None]
    while rows.shape[0] * columns.shape[1] < count:
        if rows.shape[0] ** 2 < count:
            rows = np.vstack([rows, rows + rows @ change])
        else:
            columns = np.hstack([columns, columns + change @ columns])
        change = 2 * change + change @ change
    values: Array = (columns.T @ rows.T).ravel()[:count]
    return values


def squared_errors(forgetting: Array, output_scales: Array, momentum: float, count: int) -> Array:
    """The squared errors of the first ``count`` rounds for learning rate 1 and unit noise, ``(count,)``.

    Of any buffers, stable or not: where the noise grows beyond float64, the errors are infinite or not a number.
    """
    d = len(forgetting)
    # The states are the buffers, the sum so far and, after it, momentum: how each changes in a round in which z is 0.
    change = np.zeros((d + 2, d + 2))
    change[:, :d] = -output_scales
    change[range(d), range(d)] -= forgetting
    change[d + 1, d:] = [1.0, momentum - 1]
    output = np.zeros(d + 2)
    output[d + 1 if momentum else d] = 1.0
    with np.errstate(all="ignore"):
        return np.asarray(np.cumsum(np.square(responses(change, np.ones(d + 2), output, count))))


def toeplitz_bound(root: Array, separation: int, participations: int, mean: bool) -> float:
    """Below the error of every lower-triangular Toeplitz strategy, at sensitivity 1 and learning rate 1; in O(rounds).

    Let s be the square root of the workload's series: its coefficients are positive and do not increase, so that s, cut after
    i, has no zero in the unit disc. By Landau's argument the squared error of row i times c_0² + … + c_i² is then at least
    (s_0² + … + s_i²)². The squared sensitivity is at least its mean over the signs of a client's contributions: a sum of
    squared norms of columns, of which as many reach c_i as start i + 1 rounds or more before the end.

    Args:
        root: s, ``(rounds,)``.
        separation: b.
        participations: k.
        mean: Over rows, rather than the largest.

    Example:
        >>> toeplitz_bound(np.array([1.0, 0.5]), 1, 1, mean=False)
        1.5624999999999687

    Source: for prefix sums and one participation Dvijotham et al. 2024, https://arxiv.org/abs/2404.16706.
    """
    n = len(root)
    rows = np.square(np.cumsum(np.square(root)))
    if participations > 1:
        rows *= np.minimum(participations, np.arange(n)[::-1] // separation + 1)
    return float(rows.mean() if mean else rows.max()) * (1 - n * _ROUNDING)
