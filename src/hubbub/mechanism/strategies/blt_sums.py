"""Sums of geometric series behind the error of a buffered linear Toeplitz strategy, with momentum and without.

A pole r = 1 − δ is known by δ: where δ is 1e-9, r itself has lost half of its digits.

Letters: n a number of terms or rounds, b_i = Σ_l w_l·r_l^i the coefficients of A·C⁻¹ for prefix sums, m_i = β·m_{i−1} + b_i
those with momentum β. Partial fractions of the generating function of m divide by r_l − β, which may be 0. Here everything
follows from the recursion of m, summed: for u_l = Σ_i b_i·r_l^i, K_l = Σ_i m_i·r_l^i and E = Σ_i m_i² over i < n, with
m = m_{n−1},

    (1 − β·r_l)·K_l = u_l − β·r_l^n·m        (1 − β²)·E = Σ_l w_l·u_l + 2β·Σ_l w_l·(r_l·K_l − r_l^n·m) − β²·m²

and the same once more, summed over n, for the mean. Derivatives are taken backwards through these lines.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hubbub._util.checks import Array

__all__ = [
    "Problem",
    "binomial_sums",
    "responses",
    "squared_error_with_momentum",
    "squared_errors",
    "squared_sensitivity",
    "toeplitz_bound",
]


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
    is distinguished from one that forgets nothing.

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


def squared_error_with_momentum(n: int, momentum: float, mean: bool, logs: Array, weights: Array) -> tuple[float, Array, Array]:
    """Σ_{i<n} m_i², or Σ_{i<n} (n − i)·m_i²/n if ``mean``, with its derivatives by w and by 1 − r.

    Args:
        n: At least 1.
        momentum: β in (0, 1).
        mean: Which of the two.
        logs: log r, ``(poles,)``.
        weights: w, ``(poles,)``.

    Returns:
        The value, and two arrays ``(poles,)``.
    """
    beta, w, r = momentum, weights, np.exp(logs)
    G, G_slope = binomial_sums(n, 1, np.add.outer(logs, logs))
    power, power_slope = np.exp(n * logs), n * np.exp((n - 1) * logs)
    D, D_slope = _divided_powers(n, beta, logs)
    u, m, rest, share = G @ w, float(w @ D), 1 - beta * r, 1 / (1 - beta**2)
    K = (u - beta * power * m) / rest
    value = share * float(w @ u + 2 * beta * (w @ (r * K - m * power)) - beta**2 * m**2)
    by_value, by_w, by_r, by_K, by_delta = 1.0, np.zeros_like(w), np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
    if mean:
        # Summed over n: U of u, K of m_{n−1}·r^{n−1}, and KK of K.
        H, H_slope = binomial_sums(n + 1, 2, np.add.outer(logs, logs))
        U = H @ w
        KK = (U - beta * r * K) / rest
        value = share / n * float(w @ U + 2 * beta * (w @ (r * (KK - K))) - beta**2 * value)
        own = share / n
        by_KK = 2 * beta * own * w * r
        by_w = 2 * beta * own * r * (KK - K)
        by_r = 2 * beta * own * w * (KK - K) + by_KK * beta * (KK - K) / rest
        by_K = -by_KK * (1 + beta * r / rest)
        left = by_KK / rest + own * w
        by_w += H @ left + own * U
        by_delta = _by_delta(H_slope, r, left, w)
        by_value = -(beta**2) * own
    own = share * by_value
    by_w += 2 * beta * own * (r * K - m * power)
    by_K += 2 * beta * own * w * r
    by_r += 2 * beta * own * w * (K - m * power_slope) + by_K * beta * (K - power_slope * m) / rest
    by_m = -2 * beta**2 * own * m - 2 * beta * own * float(w @ power) - beta * float(by_K @ (power / rest))
    left = by_K / rest + own * w
    by_w += G @ left + own * u + by_m * D
    by_delta += _by_delta(G_slope, r, left, w)
    return value, by_w, by_delta - by_r - by_m * w * D_slope


def _by_delta(slope: Array, r: Array, left: Array, right: Array) -> Array:
    """The derivative of leftᵀ·T·right by 1 − r, where T_ab is a function of r_a·r_b with the given slope by 1 − r_a·r_b."""
    gradient: Array = left * (slope @ (r * right)) + right * (slope @ (r * left))
    return gradient


def _divided_powers(n: int, beta: float, logs: Array) -> tuple[Array, Array]:
    """(r^n − β^n)/(r − β) = Σ_{i<n} r^i·β^(n−1−i) and its derivative by r, to full precision where r is near β."""
    log_beta = float(np.log(beta))
    sums, slopes = binomial_sums(n, 1, -np.abs(logs - log_beta))
    larger = np.exp((n - 1) * np.maximum(logs, log_beta))
    grows = (n - 1) * np.exp((n - 2) * logs) * sums + np.exp((n - 3) * logs) * beta * slopes
    return larger * sums, np.where(logs >= log_beta, grows, -np.exp((n - 2) * log_beta) * slopes)


@dataclass(frozen=True)
class Problem:
    """What a strategy is good for.

    Args:
        rounds: n.
        separation: b: how many rounds lie between one participation and the next.
        participations: k, with (k − 1)·b < n.
        mean: The mean of the squared errors over rounds, rather than the last and largest.
        momentum: β in [0, 1) of the workload with the generating function 1/((1 − x)·(1 − βx)).
    """

    rounds: int
    separation: int
    participations: int
    mean: bool
    momentum: float = 0.0


def squared_sensitivity(problem: Problem, logs: Array, omega: Array) -> tuple[float, Array, Array]:
    """The squared norm of the sum of the columns 0, b, …, (k − 1)·b of C, and its derivatives by ω and by δ.

    Between two participations each buffer only decays, and after the last one too: k stretches, of which each is a geometric
    sum. The columns overlap; a sum of their squared norms would leave out the cross terms.

    Args:
        problem: n, b and k.
        logs: log θ, ``(buffers,)``.
        omega: ``(buffers,)``.

    Returns:
        The value, and two arrays ``(buffers,)``.
    """
    b, k, n = problem.separation, problem.participations, problem.rounds
    theta = np.exp(logs)[:, None]
    m = np.arange(k)
    earlier = np.exp(np.multiply.outer(b * logs, m))
    earlier[:, 0] = 0.0
    held = np.cumsum(earlier, axis=1)  # what a buffer keeps of the participations before, over its scale
    held_slope = np.cumsum(m * earlier, axis=1) * (-b / theta)
    peaks = 1 + omega @ (held / theta)
    W = omega[:, None] * (1 + held)
    by_W = np.empty_like(W)
    value = float(peaks @ peaks)
    by_delta = omega * ((held_slope / theta + held / theta**2) @ (2 * peaks))
    for part, length in ((slice(0, k - 1), b), (slice(k - 1, k), n - (k - 1) * b)):
        if part.start == part.stop:
            continue
        own = W[:, part]
        sums, slopes = binomial_sums(length - 1, 1, logs[:, None] + logs)
        image = sums @ own
        value += float(np.vdot(own, image))
        by_W[:, part] = 2 * image
        by_delta += 2 * ((own @ own.T) * slopes) @ theta[:, 0]
    by_omega = (by_W * (1 + held)).sum(axis=1) + (held / theta) @ (2 * peaks)
    return value, by_omega, by_delta + omega * (by_W * held_slope).sum(axis=1)
