"""Sums of inverses of narrow banded matrices, in time linear in the rounds: the heart of the dense optimum.

Letters: L = A⁻¹·diag(scale) lower banded, P = L·Lᵀ, V the diagonal matrix of weights v ≥ 0, s shifts and c weights of the
poles, F and G the Schur complements of P + s·V on a window of rounds from which all earlier, or all later, rounds were
eliminated.

With M = Aᵀ·W·A the matrix X = V^(−1/2)·(V^(1/2)·M·V^(1/2))^(1/2)·V^(−1/2) is Σ c_q·(P + s_q·V)⁻¹ for P = M⁻¹, and P has one
diagonal beside the main one (two with momentum). On a window as wide as that, the inverse is that of F + G − (P + s·V).
"""

import math

import numpy as np
from scipy.linalg import lapack

from hubbub._checks import Array
from hubbub.factorization.poles import Poles

__all__ = ["column_gram", "inverse_diagonal", "pivots", "rounding", "row_gram", "unshifted"]

EPSILON = float(np.finfo(np.float64).eps)
# For one diagonal beside the main one and for two, relative to that of float64, the root of the rounds and the condition
# max P_ii·(P⁻¹)_ii: at least three times what was measured against extended precision.
_ROUNDING = {2: 0.3, 3: 3.0}
# Poles are taken together until their arrays no longer fit the processor's cache.
_TOGETHER = 8_000


def row_gram(bands: Array, scale: Array) -> Array:
    """The bands of P = L·diag(scale)·Lᵀ for lower banded L; ``[d, j]`` is the entry in row j + d and column j."""
    width, n = bands.shape
    gram = np.zeros((width, n))
    for d in range(width):
        for m in range(width - d):
            # Column j − m of L meets both row j and row j + d there.
            gram[d, m:] += bands[m, : n - m] * bands[m + d, : n - m] * scale[: n - m]
    return gram


def column_gram(bands: Array, scale: Array) -> Array:
    """The bands of Lᵀ·diag(scale)·L for lower banded L, laid out as those of :func:`row_gram`."""
    width, n = bands.shape
    gram = np.zeros((width, n))
    for d in range(width):
        for m in range(width - d):
            # Row j + d + m of L meets both column j and column j + d there.
            count = n - d - m
            gram[d, :count] += bands[m + d, :count] * bands[m, d : d + count] * scale[d + m :]
    return gram


def inverse_diagonal(gram: Array, v: Array, poles: Poles) -> Array:
    """The diagonal of Σ c_q·(P + s_q·V)⁻¹, ``(n,)``; ``gram`` holds the two or three bands of P."""
    n = gram.shape[1]
    total = np.zeros(n)
    step = max(1, _TOGETHER // n)
    solve = _diagonals_of_one if len(gram) == 2 or n == 1 else _diagonals_of_two
    for first in range(0, len(poles.shifts), step):
        part = slice(first, first + step)
        total += poles.weights[part] @ solve(gram, np.multiply.outer(poles.shifts[part], v))
    return total


def rounding(gram: Array) -> float:
    """By what relative part rounding usually moves the trace of V·Σ c_q·(P + s_q·V)⁻¹ at most: an estimate, no proof."""
    with np.errstate(all="ignore"):
        conditions = gram[0] * unshifted(gram)
    # What rounding made negative says that nothing is left of it.
    condition = float(conditions.max()) if (conditions > 0).all() else math.inf
    return _ROUNDING[len(gram)] * EPSILON * math.sqrt(gram.shape[1]) * condition


def unshifted(gram: Array) -> Array:
    """The diagonal of P⁻¹, ``(n,)``."""
    return inverse_diagonal(gram, np.zeros(gram.shape[1]), Poles(np.zeros(1), np.ones(1)))


def pivots(gram: Array, shifted: Array, *, backwards: bool) -> Array:
    """Of each tridiagonal P + s·V the pivots of its elimination from the first round or from the last, ``(poles, n)``.

    All poles go into one call as blocks of one long matrix.
    """
    main, beside = gram[0] + shifted, np.broadcast_to(gram[1], shifted.shape)
    if backwards:
        main, beside = main[:, ::-1], np.roll(beside[:, ::-1], -1, axis=1)
    # Column n − 1 of a band is 0, which is what parts one block from the next.
    found, _, info = lapack.dpttrf(main.ravel(), beside.ravel()[: max(1, main.size - 1)], overwrite_d=True)
    if info:
        raise ArithmeticError("the workload is too ill-conditioned for float64: lower the number of rounds")
    found = found.reshape(shifted.shape)
    return np.asarray(found[:, ::-1] if backwards else found)


def _diagonals_of_one(gram: Array, shifted: Array) -> Array:
    window = pivots(gram, shifted, backwards=False)
    window += pivots(gram, shifted, backwards=True)
    window -= gram[0] + shifted
    return np.asarray(1 / window)


def _diagonals_of_two(gram: Array, shifted: Array) -> Array:
    first, last, between = (
        forward + backward - own
        for forward, backward, own in zip(
            _windows(gram, shifted, backwards=False),
            _windows(gram, shifted, backwards=True),
            (gram[0, :-1] + shifted[:, :-1], gram[0, 1:] + shifted[:, 1:], gram[1, :-1]),
            strict=True,
        )
    )
    determinant = first * last - np.square(between)
    return np.concatenate([last / determinant, (first / determinant)[:, -1:]], axis=1)


def _windows(gram: Array, shifted: Array, *, backwards: bool) -> tuple[Array, Array, Array]:
    """The Schur complements on each two neighboring rounds: both diagonal entries and the one between, ``(poles, n − 1)``."""
    bands = np.empty((*shifted.shape, 3))
    for d in range(3):
        band = np.roll(gram[d, ::-1], -d) if backwards else gram[d]
        bands[:, :, d] = band
    bands[:, :, 0] += shifted[:, ::-1] if backwards else shifted
    factor, info = lapack.dpbtrf(bands.reshape(-1, 3).T, lower=1, overwrite_ab=True)
    if info:
        raise ArithmeticError("the workload is too ill-conditioned for float64: lower the number of rounds")
    L = factor.T.reshape(bands.shape)
    first = np.square(L[:, :-1, 0])
    between = L[:, :-1, 0] * L[:, :-1, 1]
    last = np.square(L[:, :-1, 1]) + np.square(L[:, 1:, 0])
    if not backwards:
        return first, last, between
    return last[:, ::-1], first[:, ::-1], between[:, ::-1]
