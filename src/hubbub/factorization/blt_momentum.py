"""The error of a buffered linear Toeplitz strategy for the workload of SGD with momentum.

Letters: b_i = Σ_l w_l·r_l^i the coefficients of A·C⁻¹ for prefix sums, m_i = β·m_{i−1} + b_i those with momentum β, n rounds.
Partial fractions of the generating function of m divide by r_l − β, which may be 0. Here everything follows from the recursion
of m, summed: for u_l = Σ_i b_i·r_l^i, K_l = Σ_i m_i·r_l^i and E = Σ_i m_i² over i < n, with m = m_{n−1},

    (1 − β·r_l)·K_l = u_l − β·r_l^n·m        (1 − β²)·E = Σ_l w_l·u_l + 2β·Σ_l w_l·(r_l·K_l − r_l^n·m) − β²·m²

and the same once more, summed over n, for the mean. Derivatives are taken backwards through these lines.
"""

import numpy as np

from hubbub._checks import Array
from hubbub.factorization.blt_sums import binomial_sums

__all__ = ["squared_error_with_momentum"]


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
