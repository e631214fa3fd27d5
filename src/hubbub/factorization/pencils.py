"""Inverse square roots of large banded matrices, as sums of inverses in O(rounds) time.

Letters: s shifts, c weights, r(x) = Σ c_q / (x + s_q) ≈ x^(−1/2) on [lowest, highest], N poles, K′ the complete elliptic
integral of the complementary modulus; L = A⁻¹·diag(scale) lower banded, P = L·Lᵀ, V the diagonal matrix of weights v ≥ 0, F and
G the Schur complements of P + s·V on a window of rounds from which all earlier, or all later, rounds were eliminated.

For a symmetric positive T, Σ c_q·(T + s_q·I)⁻¹ has the trace of r(T). The r made here is never above x^(−1/2), for any x > 0
and not only in the interval: so tr r(T) is a lower bound on tr T^(−1/2) for any spectrum of T. It lies below outside of the
interval, too, because √x·r(x) has at most 2N − 1 extrema on x > 0 (its derivative has a numerator of degree
2N − 1 in x), which are the N maxima of equal height and N − 1 minima within the interval; it falls to 0 on both sides.

With M = Aᵀ·W·A the matrix X = V^(−1/2)·(V^(1/2)·M·V^(1/2))^(1/2)·V^(−1/2) is Σ c_q·(P + s_q·V)⁻¹ for P = M⁻¹, and P has one
diagonal next to the main one (two with momentum). On a window as wide as that, the inverse is that of F + G − (P + s·V).
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack
from scipy.special import ellipj, ellipkm1

from hubbub._util.checks import Array

# Ripples are evaluated on this many points each, which finds their height to 0.1 %.
_POINTS = 40
_LEAST_RATIO = 1e-22


class Poles(NamedTuple):
    """Shifts and weights, ``(poles,)`` each: Σ weights / (x + shifts) is at most x^(−1/2) for every x > 0."""

    shifts: Array
    weights: Array


def inverse_root_poles(lowest: float, highest: float, tolerance: float) -> Poles:
    """The fewest poles that give x^(−1/2) within a relative ``tolerance`` on the interval, and never too much.

    Args:
        lowest: Lower end of the interval, above 0.
        highest: Its upper end. A quotient above 1e22 is cut there: beyond the interval the sum only falls further below.
        tolerance: Relative, by which the sum may be too small within the interval; from about 1e-10.

    Example:
        >>> poles = inverse_root_poles(1.0, 1e4, 1e-8)
        >>> len(poles.shifts)
        13
        >>> bool(0 <= 100**-0.5 - (poles.weights / (100 + poles.shifts)).sum() < 1e-9)
        True

    Source: Hale, Higham and Trefethen 2008, "Computing A^α, log(A), and related matrix functions by contour integrals",
    method 3, https://doi.org/10.1137/070700607.
    """
    ratio = max(lowest / highest, _LEAST_RATIO) if highest > lowest else 1 - 1e-9
    period = float(ellipkm1(ratio))
    # The ripple is 4·exp(−π²·N/K′) to both sides, so that twice it is what rescaling costs.
    poles = max(2, math.ceil(period / math.pi**2 * math.log(8 / tolerance)))
    left = (np.arange(1, poles + 1) - 0.5) / poles
    # Only the first half of the period is evaluated: functions near its end follow by symmetry without cancellation.
    near = left <= 0.5
    sn, cn, dn, _ = ellipj(np.minimum(left, 1 - left) * period, 1 - ratio)
    shifts = lowest * np.where(near, np.square(sn / cn), np.square(cn / sn) / ratio)
    weights = np.where(near, dn / np.square(cn), dn / np.square(sn) / math.sqrt(ratio))
    weights *= 2 * period * math.sqrt(lowest) / (math.pi * poles)
    grid = lowest * np.exp(np.linspace(0.0, -math.log(ratio), _POINTS * poles))
    values = np.sqrt(grid) * (1 / np.add.outer(grid, shifts) @ weights)
    excess = float(values.max()) - 1
    return Poles(shifts, weights / (1 + excess + 0.01 * abs(excess) + 4e-16 * poles))


EPSILON = float(np.finfo(np.float64).eps)
# For one diagonal next to the main one and for two, relative to that of float64, the root of the rounds and the condition
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
    return _backwards(row_gram(_backwards(bands), scale[::-1]))


def _backwards(bands: Array) -> Array:
    """The bands of Lᵀ with the order of rows and columns reversed: again lower banded; of a symmetric P, those below it."""
    return np.stack([np.roll(band[::-1], -d) for d, band in enumerate(bands)])


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
    """The usual relative rounding error of the trace of V·Σ c_q·(P + s_q·V)⁻¹, at most: an estimate, not proved."""
    with np.errstate(all="ignore"):
        conditions = gram[0] * unshifted(gram)
    # A value that rounding made negative has no digits left.
    condition = float(conditions.max()) if (conditions > 0).all() else math.inf
    return _ROUNDING[len(gram)] * EPSILON * math.sqrt(gram.shape[1]) * condition


def unshifted(gram: Array) -> Array:
    """The diagonal of P⁻¹, ``(n,)``."""
    return inverse_diagonal(gram, np.zeros(gram.shape[1]), Poles(np.zeros(1), np.ones(1)))


def pivots(gram: Array, shifted: Array, *, backwards: bool) -> Array:
    """The pivots of each tridiagonal P + s·V, eliminated from the first round or from the last, ``(poles, n)``.

    All poles go into one call as blocks of one long matrix.
    """
    main, beside = gram[0] + shifted, np.broadcast_to(gram[1], shifted.shape)
    if backwards:
        main, beside = main[:, ::-1], np.roll(beside[:, ::-1], -1, axis=1)
    # Column n − 1 of a band is 0, which separates the blocks.
    found, _, info = lapack.dpttrf(main.ravel(), beside.ravel()[: max(1, main.size - 1)], overwrite_d=True)
    if info:
        raise ArithmeticError("the workload is too ill-conditioned for float64: lower the number of rounds")
    found = found.reshape(shifted.shape)
    return np.asarray(found[:, ::-1] if backwards else found)


def _diagonals_of_one(gram: Array, shifted: Array) -> Array:
    window = pivots(gram, shifted, backwards=False) + pivots(gram, shifted, backwards=True) - (gram[0] + shifted)
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
    bands[:] = (_backwards(gram) if backwards else gram).T
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
