"""From one way to state a guarantee to another: Rényi DP, zCDP, and a noise that pays for two queries.

Letters: a the order, r(a) the Rényi bound at a, ρ zCDP, z noise multiplier. Every answer is an upper bound, rounded upwards.

Source: Canonne, Kamath and Steinke 2020, "The Discrete Gaussian for Differential Privacy", Proposition 12,
https://arxiv.org/abs/2004.00010: for every order a, δ ≤ e^{(a−1)(r − ε)}·(1 − 1/a)^{a−1}/a. Near ε = 0 the total variation is
smaller, at most √(1 − e^{−r}) (Bretagnolle and Huber 1979), as the Kullback-Leibler divergence is at most r at any order.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from hubbub._util.checks import Array, non_negative, numbers_within, open_unit, scale
from hubbub._util.roots import bracket, grown

# A smaller ρ counts as this one: its square root still is a number of full precision.
_LEAST_RHO = 1e-290

_ULPS = 8 * 2.0**-52
_LEAST_DELTA = 5e-324
# Every order is sound: one that is not told from 1, or beyond float64, gives way to these.
_LEAST_ORDER, _MOST_ORDER = 1 + 2.0**-50, 1e300


def require_orders(orders: npt.ArrayLike) -> Array:
    """Rényi orders as an array, each a number above 1 and at most 1e9, ``(orders,)``.

    Raises:
        TypeError: No sequence of numbers.
        ValueError: An order out of range, or none at all.
    """
    return numbers_within("orders", orders, "above 1 and at most 1e9", lambda order: 1 < order <= 1e9)


def _require_curve(orders: npt.ArrayLike, rdp: npt.ArrayLike) -> tuple[Array, Array]:
    """Orders and their bounds; an infinite bound says nothing and may stand."""
    a = require_orders(orders)
    try:
        r = np.array(rdp, dtype=np.float64)
    except OverflowError:
        raise ValueError("rdp: holds a whole number beyond the floats; write it as infinity, which says nothing") from None
    if r.shape != a.shape:
        raise ValueError(f"rdp has shape {r.shape}: must have one value for each of {len(a)} orders")
    bad = np.flatnonzero(~(r >= 0))
    if bad.size:
        raise ValueError(f"rdp[{bad[0]}] = {r[bad[0]]}: must not be negative or nan, or the answer would be no bound")
    return a, r


def epsilon_from_rdp(orders: Sequence[float] | Array, rdp: Sequence[float] | Array, delta: float) -> float:
    """The least epsilon that Rényi bounds give at a delta; an upper bound.

    Args:
        orders: Each above 1, not necessarily whole.
        rdp: The bound at each order; infinity if there is no bound.
        delta: Strictly between 0 and 1.

    Raises:
        ValueError: A number out of range, nan among them.

    Example:
        >>> round(epsilon_from_rdp(orders=(2, 8, 32), rdp=(1.0, 4.0, 16.0), delta=1e-5), 4)
        5.2141

    Source: Canonne, Kamath and Steinke 2020, Proposition 12, https://arxiv.org/abs/2004.00010.
    """
    a, r = _require_curve(orders, rdp)
    return _epsilon(a, r, math.log(open_unit("delta", delta)))


def _epsilon(a: Array, r: Array, log_delta: float) -> float:
    if -math.expm1(-float(r.min())) * (1 + _ULPS) <= math.exp(2 * log_delta) * (1 - _ULPS):
        return 0.0
    # ln(1 − 1/a) as a difference, which does not cancel next to a = 1.
    parts = r, np.log(a - 1), -np.log(a), -(log_delta + np.log(a)) / (a - 1)
    rounding = _ULPS * (sum(np.abs(part) for part in parts) + (abs(log_delta) + np.log(a)) / (a - 1))
    return max(0.0, _least(sum(parts) + rounding))


def _least(bounds: Array) -> float:
    """The least bound; what is no number bounds nothing, and must not pass for little in a minimum or a maximum."""
    return float(np.where(np.isnan(bounds), np.inf, bounds).min())


def delta_from_rdp(orders: Sequence[float] | Array, rdp: Sequence[float] | Array, epsilon: float) -> float:
    """The least delta that Rényi bounds give at an epsilon; an upper bound, at most 1.

    Args:
        orders: Each above 1, not necessarily whole.
        rdp: The bound at each order; infinity if there is no bound.
        epsilon: At least 0.

    Raises:
        ValueError: A number out of range, nan among them.

    Example:
        >>> round(delta_from_rdp(orders=(2, 8, 32), rdp=(1.0, 4.0, 16.0), epsilon=5.0), 8)
        4.476e-05

    Source: Canonne, Kamath and Steinke 2020, Proposition 12, https://arxiv.org/abs/2004.00010.
    """
    a, r = _require_curve(orders, rdp)
    return _delta(a, r, non_negative("epsilon", epsilon))


def _delta(a: Array, r: Array, epsilon: float) -> float:
    # What overflows is told from a number below, and bounds nothing.
    with np.errstate(over="ignore", invalid="ignore"):
        parts = (a - 1) * (r - epsilon), (a - 1) * (np.log(a - 1) - np.log(a)), -np.log(a)
        rounding = _ULPS * ((a - 1) * (r + epsilon) + sum(np.abs(part) for part in parts[1:]))
        logs = np.where(np.isfinite(r), sum(parts) + rounding, np.inf)
    total_variation = math.sqrt(-math.expm1(-float(r.min()))) * (1 + _ULPS)
    # What underflows is not 0.
    return min(1.0, total_variation, max(math.exp(min(0.0, _least(logs))) * (1 + _ULPS), _LEAST_DELTA))


def epsilon_from_zcdp(zcdp_rho: float, delta: float) -> float:
    """The least epsilon that ρ-zCDP gives at a delta, over all real orders; an upper bound.

    A mechanism of which only ρ is known costs this. One that is Gaussian costs less: ``accounting.epsilon`` says how much.

    Args:
        zcdp_rho: At least 0.
        delta: Strictly between 0 and 1.

    Raises:
        ValueError: A number out of range or not finite.

    Example:
        >>> round(epsilon_from_zcdp(zcdp_rho=0.15, delta=1e-10), 4)
        3.5738

    Source: Canonne, Kamath and Steinke 2020, Corollary 13, https://arxiv.org/abs/2004.00010.
    """
    rho, log_delta = non_negative("zcdp_rho", zcdp_rho), math.log(open_unit("delta", delta))
    if rho == 0:
        return 0.0
    rho = max(rho, _LEAST_RHO)
    # At the optimum ρ(a − 1)² + ln(δa) = 0; with d = a − 1 the left side grows, and is at least 0 at d = √(−ln δ/ρ).
    d = _root(lambda d: rho * d * d + log_delta + math.log1p(d), math.sqrt(-log_delta / rho))
    a = np.array([max(1 + d, _LEAST_ORDER)])
    return _epsilon(a, rho * a, log_delta)


def delta_from_zcdp(zcdp_rho: float, epsilon: float) -> float:
    """The least delta that ρ-zCDP gives at an epsilon, over all real orders; an upper bound, at most 1.

    Args:
        zcdp_rho: At least 0.
        epsilon: At least 0.

    Raises:
        ValueError: A number out of range or not finite.

    Example:
        >>> f"{delta_from_zcdp(zcdp_rho=0.15, epsilon=3.5738) :.2e}"
        '1.00e-10'

    Source: Canonne, Kamath and Steinke 2020, Corollary 13, https://arxiv.org/abs/2004.00010.
    """
    rho, eps = non_negative("zcdp_rho", zcdp_rho), non_negative("epsilon", epsilon)
    if rho == 0:
        return 0.0

    # At the optimum (2a − 1)ρ − ε + ln(1 − 1/a) = 0; the left side grows with d = a − 1.
    def slope(d: float) -> float:
        return (2 * d + 1) * rho - eps + math.log(d) - math.log1p(d)

    high = grown(lambda d: slope(d) >= 0 or d >= _MOST_ORDER, 1.0, 1.0)[1]
    a = np.array([max(1 + _root(slope, high), _LEAST_ORDER)])
    total_variation = math.sqrt(-math.expm1(-rho)) * (1 + _ULPS)
    return min(total_variation, _delta(a, rho * a, eps))


def _root(growing: Callable[[float], float], high: float) -> float:
    """The d > 0 at which a growing function of it is 0, to 1e-15 of itself; it is not negative at ``high``."""
    above, below = grown(lambda d: growing(d) <= 0 or d <= 1e-300, high, high, factor=0.25)
    return bracket(lambda d: growing(d) >= 0, fails_at=below, holds_at=above)[1]


def bun_steinke_epsilon_from_zcdp(zcdp_rho: float, delta: float) -> float:
    """ρ + 2√(ρ·ln 1/δ), the bound of zCDP's first paper, for comparison; :func:`epsilon_from_zcdp` is below it.

    Args:
        zcdp_rho: ρ, from 0.
        delta: Strictly between 0 and 1.

    Raises:
        ValueError: A number out of range.

    Example:
        >>> round(bun_steinke_epsilon_from_zcdp(zcdp_rho=0.15, delta=1e-10), 4)
        3.8669

    Source: Bun and Steinke 2016, Proposition 1.3, https://arxiv.org/abs/1605.02065.
    """
    rho = non_negative("zcdp_rho", zcdp_rho)
    return (rho + 2 * math.sqrt(-rho * math.log(open_unit("delta", delta)))) * (1 + _ULPS)


def split_noise_multiplier(noise_multiplier: float, count_stddev: float) -> float:
    """The noise multiplier of the updates, where a noisy count for adaptive clipping is to be paid as well.

    Both releases together cost what one of ``noise_multiplier`` does: z_Δ = (z⁻² − (2σ_b)⁻²)^(−1/2), rounded up. The count is
    Σ (b_i − 1/2), which one unit moves by at most 1/2: without that centring its sensitivity is 1, and the cost four times
    as high.

    Args:
        noise_multiplier: z, of the whole.
        count_stddev: σ_b, the standard deviation of the noise on the centred count; 2σ_b > z.

    Raises:
        ValueError: A number out of range, or a count that alone costs all there is.

    Example:
        >>> round(split_noise_multiplier(noise_multiplier=1.0, count_stddev=5.0), 6)
        1.005038

    Source: Andrew, Thakkar, McMahan and Ramaswamy 2021, Theorem 1, https://arxiv.org/abs/1905.03871.
    """
    z, stddev = scale("noise_multiplier", noise_multiplier), scale("count_stddev", count_stddev)
    ratio = z / (2 * stddev)
    if ratio >= 1:
        raise ValueError(
            f"count_stddev = {count_stddev!r}: must be above noise_multiplier/2 = {z / 2:g}, or the count alone costs "
            f"more than the whole; a twentieth of the expected cohort is usual"
        )
    return z / math.sqrt((1 - ratio) * (1 + ratio)) * (1 + _ULPS / (1 - ratio))
