"""Sums of inverses of ill-conditioned banded matrices, by sums, products and quotients of positive numbers alone.

Letters: A workload of momentum β and learning rates η, W and V diagonal matrices of weights w and v ≥ 0, M = Aᵀ·W·A, s shifts
and c weights of the poles, t = tr (V^(1/2)·M·V^(1/2))^(1/2), D = Σ c_q/√s_q, u the unit roundoff.

(M⁻¹ + s·V)⁻¹ is what is left of the covariance of x = Aᵀ·y, with independent y of variances w, once each x_j was observed with
precision s·v_j. With z_j = α·z_{j−1} + y_j and x_j = β·x_{j−1} + η_j·z_j (rounds in reversed order, α = 1) that is a Kalman
smoother of two states. Written as z = ρ·x + e with variances φ of x and ψ of e, and what later rounds say as
c·(z + r·x)² + a·x², no step subtracts. Nothing cancels, however uneven rates and weights are.

So the rounding of a step is that of the rates, β and variances it uses: each answer is the exact one of a problem with entries
of A changed relatively by at most γ = m·u·(1 + ℓ), with ℓ the number of factors β that an entry has on average, and of
covariances changed by (1 + m·u) a step, which later steps never make larger (a Kalman step is monotone and f(c·X) ≤ c·f(X)).
The first changes the trace by at most γ·n·D·t: of N = KᵀK for K = W^(1/2)·A·V^(1/2) the diagonal of N·(I + s·N)⁻¹ moves by
2·‖δK·e‖·‖K·e‖ for the columns e of (I + s·N)⁻¹, with ‖δK‖ ≤ γ·‖K‖ ≤ γ·t and ‖K·(I + s·N)⁻¹‖ ≤ √n/(2√s), Frobenius norms.
Without momentum there is one state, and the second kind alone.

Source: Rauch, Tung and Striebel 1965 for the smoother, https://doi.org/10.2514/3.3166; Demmel et al. 1999,
https://doi.org/10.1016/S0024-3795(99)00134-2, for accuracy without subtractions.
"""

import math

import numpy as np
import numpy.typing as npt

from hubbub._checks import Array
from hubbub.factorization.poles import Poles
from hubbub.workloads import Workload

__all__ = ["proved_trace", "smoothed_diagonal"]

# Where it is wider than float64 it makes the allowance for rounding smaller; nothing depends on it.
_WIDE = np.longdouble
# Roundings that one step takes at most, doubled.
_STEP = 64
_TINY = 1e-300

_Wide = npt.NDArray[np.longdouble]


def proved_trace(workload: Workload, w: Array, v: Array, poles: Poles) -> float:
    """No more than t, and as near to it as the poles are: tr V·Σ c_q·(M⁻¹ + s_q·V)⁻¹ less what rounding may have added.

    Args:
        workload: A.
        w: ``(rounds,)``, positive.
        v: ``(rounds,)``, not negative.
        poles: At most x^(−1/2) for every x > 0.
    """
    n, unit = workload.rounds, float(np.finfo(_WIDE).eps)
    total = math.fsum(v * smoothed_diagonal(workload, w, v, poles))
    steps = 2 * _STEP * unit * n + _STEP * float(np.finfo(np.float64).eps)
    entries = 0.0
    if workload.momentum:
        rates = _rates(workload)
        factors = min(n, float(rates.max() / rates.min()) / (1 - workload.momentum))
        entries = _STEP * unit * (1 + factors) * n * float((poles.weights / np.sqrt(poles.shifts)).sum())
    return total * max(0.0, 1 - steps) / (1 + 2 * entries)


def smoothed_diagonal(workload: Workload, w: Array, v: Array, poles: Poles, *, transposed: bool = False) -> Array:
    """The diagonal of Σ c_q·(M⁻¹ + s_q·V)⁻¹, ``(rounds,)``; ``transposed``: for M = A·W·Aᵀ instead.

    O(rounds · poles) time, some tens of microseconds a round.
    """
    rates: _Wide = _rates(workload).astype(_WIDE)
    beta = workload.momentum
    if not beta:
        # One of the two states follows from the other: η·z is all of x, or x adds up η·y.
        squares: _Wide = np.square(rates)
        if transposed:
            return _one_state(squares * w, v.astype(_WIDE), poles)
        return np.asarray(squares * _one_state(w[::-1].astype(_WIDE), (squares * v)[::-1], poles)[::-1], np.float64)
    if transposed:
        return _two_states(beta, 1.0, rates, w, v, poles)
    return _two_states(1.0, beta, rates[::-1], w[::-1], v[::-1], poles)[::-1]


def _rates(workload: Workload) -> Array:
    return np.ones(workload.rounds) if workload.learning_rates is None else np.asarray(workload.learning_rates)


def _one_state(variances: _Wide, precisions: _Wide, poles: Poles) -> Array:
    """Of sums of y with these variances, each observed with s times its precision: what is left of their own variances."""
    n, s = len(variances), poles.shifts.astype(_WIDE)
    predicted, later = np.empty((n, len(s))), np.empty((n, len(s)))
    left = np.zeros(len(s), _WIDE)
    for j in range(n):
        left = left + variances[j]
        predicted[j] = left
        left = left / (1 + s * precisions[j] * left)
    known = np.zeros(len(s), _WIDE)
    for j in range(n - 1, -1, -1):
        known = known + s * precisions[j]
        later[j] = known
        known = known / (1 + variances[j] * known)
    return np.asarray(predicted / (1 + predicted * later) @ poles.weights)


def _two_states(inner: float, outer: float, rates: _Wide, w: Array, v: Array, poles: Poles) -> Array:
    """Of z_j = ``inner``·z_{j−1} + y_j and x_j = ``outer``·x_{j−1} + η_j·z_j, x observed: what is left of its variances."""
    n, s = len(w), poles.shifts.astype(_WIDE)
    alpha, beta = _WIDE(inner), _WIDE(outer)
    variances, precisions = w.astype(_WIDE), v.astype(_WIDE)
    before = np.empty((n, 3, len(s)))
    phi, rho, psi = np.zeros((3, len(s)), _WIDE)
    for j in range(n):
        eta = rates[j]
        rho = alpha * rho
        psi = alpha * alpha * psi + variances[j]
        lead = beta + eta * rho
        own, passed = lead * phi, eta * psi
        new = lead * own + eta * passed
        phi, rho, psi = new, (rho * own + passed) / new, beta * beta * phi * psi / new
        before[j] = phi, rho, psi
        phi = phi / (1 + s * precisions[j] * phi)
    # c, r and a; z is known no better than to 1/c.
    quotients = np.empty((n, len(s)))
    c, r, a = np.zeros((3, len(s)), _WIDE)
    for j in range(n - 1, -1, -1):
        phi, rho, psi = before[j]
        a = a + s * precisions[j]
        quotients[j] = phi / (1 + phi * (a + c * np.square(rho + r) / (1 + c * psi)))
        eta = rates[j]
        lead = 1 + r * eta
        own = c * lead
        new = np.maximum(own * lead + a * eta * eta, _TINY)
        a, c, r = beta * beta * c * a / new, new, beta * (own * r + a * eta) / new
        c = c / (1 + variances[j] * c) * (alpha * alpha)
        r = r / alpha
    return np.asarray(quotients @ poles.weights)
