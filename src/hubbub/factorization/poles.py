"""Inverse square roots of large matrices as short sums of inverses, safe for bounds.

Letters: s shifts, c weights, r(x) = Σ c_q / (x + s_q) ≈ x^(−1/2) on [lowest, highest], N poles, K′ the complete elliptic
integral of the complementary modulus.

For a symmetric positive T, Σ c_q·(T + s_q·I)⁻¹ has the trace of r(T). The r made here is never above x^(−1/2), for any x > 0
and not only in the interval: so tr r(T) is a bound from below on tr T^(−1/2) whatever the spectrum of T is. That it lies below
outside of the interval, too, is since √x·r(x) has at most 2N − 1 extrema on x > 0 (its derivative has a numerator of degree
2N − 1 in x), which are the N maxima of equal height and N − 1 minima within the interval; it falls to 0 on both sides.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.special import ellipj, ellipkm1

from hubbub._checks import Array

__all__ = ["Poles", "inverse_root_poles"]

# Ripples are looked at on this many points each; the highest of them is missed by less than 0.1 % of its height.
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
