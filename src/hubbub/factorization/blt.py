"""Buffered linear Toeplitz strategies (BLT) of least error, by BFGS with exact gradients.

Letters: θ the decay of a buffer, ω its output scale, c_0 = 1 and c_i = Σ_l ω_l·θ_l^(i−1) the coefficients of C. The generating
function of c is ∏(1 − θ̂_l·x)/∏(1 − θ_l·x); where 1 > θ_1 > θ̂_1 > θ_2 > … > θ̂_d > 0 interlace, c is positive and decreases,
and the coefficients b_i = w_0 + Σ_l w_l·θ̂_l^i of B = A·C⁻¹ are sums of positive terms, so that no sum here cancels. All
computations use δ = 1 − θ and δ̂ = 1 − θ̂: near θ = 1, θ itself has lost their digits. The search is free in the variables p_0 =
logit δ_1 and p_i = the logarithm of the i-th of the 2d − 1 gaps between the logits of δ_1 < δ̂_1 < δ_2 < … < δ̂_d.

Source: Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024, https://arxiv.org/abs/2404.16706; McMahan, Xu and Zhang 2024,
https://arxiv.org/abs/2408.08868.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from hubbub._util.checks import Array, integer, one_of
from hubbub.factorization.bounds import lower_bound, toeplitz_bound
from hubbub.factorization.optimized import Objective, Optimized, on_one_thread
from hubbub.mechanism.participation import Participation, SingleParticipation, worst_rounds
from hubbub.mechanism.strategies import matrices
from hubbub.mechanism.strategies.blt import (
    MOST_STRETCHES,
    BufferedLinearToeplitz,
    binomial_sums,
    squared_errors,
    squared_sensitivity,
)
from hubbub.mechanism.workloads import Workload

__all__ = ["optimize"]

# More buffers find nothing: the first 6 come within 1% of the best Toeplitz strategy for 10⁷ rounds.
_MOST_BUFFERS = 12
# Up to this many rounds the errors are summed one by one; for more, the closed form is faster and more exact, and a bound for
# every strategy would take longer than the search.
_SUMMED = 10**5
_ONCE = SingleParticipation()

# Where the gradient of log(loss) by the free variables is this small, the loss has converged to about 1e-12.
_GRADIENT = 1e-7
_MOST_STEPS = 300
# A buffer that forgets e^−25 of itself over the whole run equals, to 1e-11 of the loss, one that forgets nothing.
_FORGETS_NOTHING = 25.0
# More buffers are kept only where they lower the loss by more than this part of it.
_GAIN = 1e-9
# A descent whose log(loss) falls by less than this over this many steps has a buffer on its way to no effect: the first limit
# is for each start, the second for the best of them.
_COARSE, _FINE, _STALL_STEPS = 3e-6, 1e-10, 25
# A pole and a zero whose logits are nearer cancel altogether, and a gap of 0 has no logarithm.
_NARROWEST = 1e-12
_LEAST, _EPSILON = 1e-300, float(np.finfo(np.float64).epsneg)


@dataclass(frozen=True)
class Problem:
    """What a strategy is optimized for.

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


def squared_error(problem: Problem, logs: Array, weights: Array) -> tuple[float, Array, Array]:
    """The squared error Σ_{i<n} b_i² of the last round, or the mean over rounds, with derivatives by w and by δ̂.

    ``logs`` are 0 and log θ̂; ``weights`` w of b_i = Σ_l w_l·θ̂_l^i for prefix sums; all are ``(1 + buffers,)``.
    """
    if problem.momentum:
        return squared_error_with_momentum(problem.rounds, problem.momentum, problem.mean, logs, weights)
    n, sums = problem.rounds, logs[:, None] + logs
    # The error of round t sums i ≤ t, so that the mean gives b_i² the weight (n − i)/n.
    total, slope = binomial_sums(n + 1, 2, sums) if problem.mean else binomial_sums(n, 1, sums)
    scale = 1 / n if problem.mean else 1.0
    image = total @ weights
    by_delta = 2 * weights * (slope @ (np.exp(logs) * weights))
    return scale * float(weights @ image), 2 * scale * image, scale * by_delta


def squared_error_with_momentum(n: int, momentum: float, mean: bool, logs: Array, weights: Array) -> tuple[float, Array, Array]:
    """Σ_{i<n} m_i², or Σ_{i<n} (n − i)·m_i²/n if ``mean``, with its derivatives by w and by 1 − r; arrays are ``(poles,)``.

    Partial fractions of the generating function of m divide by r_l − β, which may be 0. Here everything follows from the
    recursion m_i = β·m_{i−1} + b_i with b_i = Σ_l w_l·r_l^i, summed: for u_l = Σ_i b_i·r_l^i, K_l = Σ_i m_i·r_l^i and E = Σ_i
    m_i² over i < n, with m = m_{n−1},

        (1 − β·r_l)·K_l = u_l − β·r_l^n·m      (1 − β²)·E = Σ_l w_l·u_l + 2β·Σ_l w_l·(r_l·K_l − r_l^n·m) − β²·m²

    and the same once more, summed over n, for the mean. Derivatives are taken backwards through these lines.
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


def search(problem: Problem, buffers: int) -> tuple[Array, Array, float, int]:
    """δ and ω, ``(buffers,)``, of the best found of 1, 2, …, ``buffers`` buffers, its squared error, and how many were tried.

    With momentum the error has full precision only where n·(1 − β) is not small. Each number of buffers starts from the best
    strategy of one buffer less, with a buffer added where θ is near 0, in the widest gap, and, with many participations, where
    it forgets nothing at all: then the best θ_1 is often 1 itself, which no descent from inside reaches.
    """
    n = problem.rounds
    low = -math.log(n) - 1.0
    u = np.zeros(0)
    best, best_loss, evaluations = u, math.inf, 0
    for _ in range(buffers):
        ends = [_descend(start, problem, _COARSE) for start in _starts(u, low, problem)]
        end = _descend(min(ends, key=lambda end: end.log_loss).logits, problem, _FINE)
        evaluations += sum(end.evaluations for end in (*ends, end))
        u = end.logits
        if end.log_loss < best_loss - _GAIN:
            best, best_loss = u, end.log_loss
    logs, delta, scales, _, signs = _scales(best)
    error = squared_error(problem, np.append(0.0, logs[1::2]), _weights(delta, scales, signs))[0]
    # A buffer that forgets all in a round has no effect after it, but θ = 0 is not a decay.
    return np.clip(delta[::2], _LEAST, 1 - _EPSILON), scales[::2], error, evaluations


class _End(NamedTuple):
    logits: Array
    log_loss: float
    evaluations: int


def _starts(u: Array, low: float, problem: Problem) -> list[Array]:
    """Increasing logits of δ_1, δ̂_1, δ_2, …: those of one buffer less, and two more."""
    pinned = low - _FORGETS_NOTHING
    if not u.size:
        return [np.array([low, 1.0]), *([np.array([pinned, low])] if problem.participations > 1 else [])]
    starts = [np.append(u, u[-1] + np.array([1.0, 2.0]))]
    has_pinned = bool(u[0] < low - _FORGETS_NOTHING / 2)
    first = 1 if has_pinned else 0
    gaps = np.diff(u)[first:]
    # Momentum has an optimum of its own in more than one gap.
    chosen = range(len(gaps)) if problem.momentum else [int(np.argmax(gaps))] if gaps.size else []
    for i in (first + gap for gap in chosen):
        starts.append(np.concatenate([u[: i + 1], np.linspace(u[i], u[i + 1], 4)[1:3], u[i + 1 :]]))
    if problem.participations > 1 and not has_pinned:
        starts.append(np.concatenate([[pinned, min(low, u[0]) - 1.0], u]))
    return starts


def _descend(start: Array, problem: Problem, stall: float) -> _End:
    p = np.concatenate([start[:1], np.log(np.maximum(np.diff(start), _NARROWEST))])
    losses: list[float] = []

    def stop_where_it_stalls(intermediate_result: OptimizeResult) -> None:
        losses.append(float(intermediate_result.fun))
        if len(losses) > _STALL_STEPS and losses[-1 - _STALL_STEPS] - losses[-1] < stall:
            raise StopIteration

    options = {"gtol": _GRADIENT, "maxiter": _MOST_STEPS}
    end = minimize(_log_loss, p, (problem,), "BFGS", jac=True, callback=stop_where_it_stalls, options=options)
    # Rounding ends some descents before the gradient is as small as asked; what counts is the loss that they reached.
    return _End(_logits(end.x), float(end.fun), int(end.nfev))


def _logits(p: Array) -> Array:
    return np.cumsum(np.concatenate([p[:1], np.exp(p[1:])]))


def _scales(u: Array) -> tuple[Array, Array, Array, Array, Array]:
    """log θ, δ, the scales ω and −ω̂ in turn, the differences δ_i − δ_j (1 for i = j), and the signs of δ (−) and δ̂ (+)."""
    logs = -np.logaddexp(0.0, u)
    delta = np.exp(u + logs)
    signs = np.tile([-1.0, 1.0], len(u) // 2)
    # From the difference of the logits: δ_i − δ_j itself cancels where a pole meets a zero.
    differences = -np.outer(delta, np.exp(logs)) * np.expm1(u[None, :] - u[:, None])
    np.fill_diagonal(differences, 1.0)
    scales = np.exp(-signs * (np.log(np.abs(differences)) @ signs))
    return logs, delta, scales, differences, signs


def _weights(delta: Array, scales: Array, signs: Array) -> Array:
    """w of B, ``(1 + buffers,)``: w_0 = ∏ δ_l/δ̂_l and w_l = −ω̂_l/δ̂_l."""
    return np.append(np.exp(-(signs @ np.log(delta))), scales[1::2] / delta[1::2])


@np.errstate(all="ignore")
def _log_loss(p: Array, problem: Problem) -> tuple[float, Array]:
    """The logarithm of error times squared sensitivity, and its derivatives by p, ``(2·buffers,)``; infinite beyond float64."""
    logs, delta, scales, differences, signs = _scales(_logits(p))
    weights = _weights(delta, scales, signs)
    n, b, k = problem.rounds, problem.separation, problem.participations
    sens, by_omega, by_decay = squared_sensitivity(n, b, k, logs[::2], scales[::2])
    error, by_weight, by_inverse = squared_error(problem, np.concatenate([[0.0], logs[1::2]]), weights)
    by_log, by_delta = np.empty_like(p), np.empty_like(p)
    by_log[::2], by_log[1::2] = by_omega * scales[::2] / sens, by_weight[1:] * weights[1:] / error
    by_delta[::2], by_delta[1::2] = by_decay / sens, by_inverse[1:] / error - by_log[1::2] / delta[1::2]
    by_delta -= signs * (by_weight[0] * weights[0] / error) / delta
    # Each logarithm of a scale is a sum of ± log|δ_i − δ_j|.
    inverse = 1 / differences
    np.fill_diagonal(inverse, 0.0)
    by_delta -= signs * ((np.add.outer(by_log, by_log) * inverse) @ signs)
    by_p = np.cumsum((by_delta * delta * np.exp(logs))[::-1])[::-1]
    by_p[1:] *= np.exp(p[1:])
    value = float(np.log(sens) + np.log(error))
    return (value, by_p) if np.isfinite(value) and np.isfinite(by_p).all() else (math.inf, np.zeros_like(p))


@on_one_thread
@np.errstate(under="ignore")
def optimize(
    workload: Workload, *, buffers: int = 4, participation: Participation = _ONCE, objective: Objective = "mean"
) -> Optimized[BufferedLinearToeplitz]:
    """The BLT of least error for a workload: seconds even for 10⁷ rounds.

    The search runs over strategies whose coefficients are positive and decrease, of 1 to ``buffers`` buffers; where more
    buffers do not help, the answer has fewer.

    Args:
        workload: A; with momentum or without, and with the same learning rate in all rounds.
        buffers: The most rows of memory, from 1 to 12. Four come within 2% of the best Toeplitz strategy up to 10⁵ rounds.
        participation: Which rounds one client may join; a pattern.
        objective: Of the squared errors of the rounds, their ``"mean"`` or ``"max"``.

    Raises:
        ValueError: Learning rates that differ, random participation, or another objective.

    Example:
        >>> from hubbub.mechanism.workloads import prefix_sum
        >>> result = optimize(prefix_sum(rounds=2000), buffers=3, objective="max")
        >>> round(result.squared_error, 6), round(result.lower_bound, 6)
        (12.219562, 12.149954)

    Source: McMahan, Xu and Zhang 2024, https://arxiv.org/abs/2408.08868.
    """
    buffers = integer("buffers", buffers, at_least=1, at_most=_MOST_BUFFERS)
    one_of("objective", objective, ("mean", "max"))
    rate, n = matrices.require_equal_rates(workload), workload.rounds
    b, k = worst_rounds(participation, n)
    if k > MOST_STRETCHES:
        raise ValueError(
            f"participation = {participation}: allows {k:,} participations in {n:,} rounds; optimize for at most "
            f"{MOST_STRETCHES:,}, such as with a larger min_separation"
        )
    delta, omega, error, evaluations = search(Problem(n, b, k, objective == "mean", workload.momentum), buffers)
    strategy, error = BufferedLinearToeplitz(n, tuple(delta.tolist()), tuple(omega.tolist())), rate**2 * error
    if n <= _SUMMED:
        errors = squared_errors(workload, strategy)
        error = float(errors.mean() if objective == "mean" else errors[-1])
    # A lower bound for every lower-triangular Toeplitz strategy.
    bound = rate**2 * toeplitz_bound(matrices.root_series(workload.momentum, n), b, k, objective == "mean")
    if n <= _SUMMED and (k > 1 or objective == "mean"):
        bound = max(bound, lower_bound(workload, participation, objective))
    squared, family = error * strategy.sensitivity(participation).value ** 2, "every lower-triangular Toeplitz strategy"
    return Optimized(strategy, workload, participation, objective, squared, bound, family, evaluations)
