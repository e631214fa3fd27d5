"""The dual of the least error with one weight for each class of rounds, in O(rounds) time.

Letters: A workload of momentum β and learning rates η, W and V diagonal matrices of weights w and v ≥ 0, X = CᵀC, M = Aᵀ·W·A,
L = A⁻¹ lower banded, t = tr (V^(1/2)·M·V^(1/2))^(1/2), classes of rounds with Σ X_ii ≤ sensitivity² over each, s shifts and c
weights of the poles, D = Σ c_q/√s_q, u the unit roundoff.

Whatever C: Σ_i w_i·‖(A·C⁻¹)_i‖² = tr M·X⁻¹ ≥ t² / tr V·X by the inequality of Cauchy and Schwarz, and tr V·X is at most
sensitivity² times the sum over classes of v where v is the same throughout a class. The largest t² / Σ v is a fixed point: v of
a class becomes Σ v_i·X_ii there, and for the largest error w_i becomes w_i·E_i, with X and the errors E those of the optimum
for the v and w before.

t is proved by sums, products and quotients of positive numbers alone: (M⁻¹ + s·V)⁻¹ is what is left of the covariance of x =
Aᵀ·y, with independent y of variances w, once each x_j was observed with precision s·v_j. With z_j = α·z_{j−1} + y_j and x_j =
β·x_{j−1} + η_j·z_j (rounds in reversed order, α = 1) that is a Kalman smoother of two states. Written as z = ρ·x + e with
variances φ of x and ψ of e, and what later rounds say as c·(z + r·x)² + a·x², no step subtracts. Nothing cancels, however
uneven rates and weights are.

So the rounding of a step is that of the rates, β and variances it uses: each answer is the exact one of a problem with entries
of A changed relatively by at most γ = m·u·(1 + ℓ), with ℓ the number of factors β that an entry has on average, and of
covariances changed by (1 + m·u) a step, which later steps never make larger (a Kalman step is monotone and f(c·X) ≤ c·f(X)).
The first changes the trace by at most γ·n·D·t: of N = KᵀK for K = W^(1/2)·A·V^(1/2) the diagonal of N·(I + s·N)⁻¹ moves by
2·‖δK·e‖·‖K·e‖ for the columns e of (I + s·N)⁻¹, with ‖δK‖ ≤ γ·‖K‖ ≤ γ·t and ‖K·(I + s·N)⁻¹‖ ≤ √n/(2√s), Frobenius norms.
Without momentum there is one state, and the second kind alone.

Source: Denisov et al. 2022, https://arxiv.org/abs/2202.08312 (the fixed point for one participation and the mean error); Rauch,
Tung and Striebel 1965 for the smoother, https://doi.org/10.2514/3.3166; Demmel et al. 1999,
https://doi.org/10.1016/S0024-3795(99)00134-2, for accuracy without subtractions.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack
from scipy.special import log_softmax, softmax

from hubbub._util.checks import Array
from hubbub.factorization.anderson import fixed_point
from hubbub.factorization.pencils import Poles, column_gram, inverse_diagonal, inverse_root_poles, rounding, row_gram
from hubbub.mechanism.workloads import Workload

# If wider than float64, it makes the allowance for rounding smaller; nothing else depends on it.
_WIDE = np.longdouble
# Roundings that one step takes at most, doubled.
_STEP = 64
_TINY = np.finfo(_WIDE).tiny

_Wide = npt.NDArray[np.longdouble]


def _proved_trace(workload: Workload, w: Array, v: Array, poles: Poles) -> float:
    """A lower bound on t, as tight as the poles: tr V·Σ c_q·(M⁻¹ + s_q·V)⁻¹ less an allowance for rounding."""
    n, unit = workload.rounds, float(np.finfo(_WIDE).eps)
    total = math.fsum(v * _smoothed_diagonal(workload, w, v, poles))
    steps = 2 * _STEP * unit * n + _STEP * float(np.finfo(np.float64).eps)
    entries = 0.0
    if workload.momentum:
        rates = _rates(workload)
        factors = min(n, float(rates.max() / rates.min()) / (1 - workload.momentum))
        entries = _STEP * unit * (1 + factors) * n * float((poles.weights / np.sqrt(poles.shifts)).sum())
    return total * max(0.0, 1 - steps) / (1 + 2 * entries)


def _smoothed_diagonal(workload: Workload, w: Array, v: Array, poles: Poles, *, transposed: bool = False) -> Array:
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
    """The posterior variances of sums of y with these variances, each observed with s times its precision."""
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
    """The posterior variances of x_j = ``outer``·x_{j−1} + η_j·z_j for z_j = ``inner``·z_{j−1} + y_j, with x observed."""
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


# Weights are at least this part of their mean: some would vanish otherwise, for little gain.
_LEAST_WEIGHT = {"mean": 1e-8, "max": 1e-6}
# If a weight must not be 0, a round that no client joins gets this part of the least.
_UNJOINED = 1e-4
# If rounding may take more of a diagonal than this, it is computed without subtractions, ten times as slowly.
_MOST_ROUNDING = 1e-4
_EPSILON = float(np.finfo(np.float64).eps)


# The class of each round, ``(rounds,)``; −1 if no client may join.
Classes = npt.NDArray[np.intp]


class Effort(NamedTuple):
    """When to stop: the largest change of a weight's logarithm, the most evaluations, and the tolerance of the poles."""

    residual: float
    evaluations: int
    poles: float


class Dual(NamedTuple):
    """A proved bound at sensitivity 1, and the weights that prove it: X = Σ c_q·(L·W⁻¹·Lᵀ + s_q·V)⁻¹ is nearly optimal.

    The bound is t² / Σ v for the exact weights, with t replaced by :func:`_proved_trace`. ``v`` and ``w`` are ``(rounds,)``, w
    sums to 1 and v to what makes X of sensitivity about 1.
    """

    bound: float
    v: Array
    w: Array
    poles: Poles
    evaluations: int


def maximize(workload: Workload, classes: Classes, objective: str, effort: Effort) -> Dual:
    """The largest dual value found within an effort: always a proved lower bound on every strategy's error.

    ``classes`` are of rounds that one client may join together: Σ X_ii over each is at most sensitivity².
    """
    n, bands = workload.rounds, workload.inverse_bands()
    joined = classes >= 0
    count = int(classes.max()) + 1

    def weights(logarithms: Array) -> tuple[Array, Array, Array, Poles]:
        v = np.where(joined, softmax(logarithms[:count])[classes], 0.0)
        w = np.asarray(softmax(logarithms[count:])) if objective == "max" else np.full(n, 1 / n)
        gram = row_gram(bands, 1 / w)
        return v, w, gram, _resolving(bands, gram, v, w, effort.poles)

    def improved(logarithms: Array) -> Array:
        v, w, gram, poles = weights(logarithms)
        own = v * _diagonal(workload, gram, w, v, poles)
        new = _log_shares(np.bincount(classes[joined], own[joined], count))
        if objective == "max":
            hidden = np.where(joined, v, _UNJOINED * v[joined].min())
            errors = w * _diagonal(workload, column_gram(bands, 1 / hidden), hidden, w, poles, transposed=True)
            new = np.concatenate([new, _log_shares(errors)])
        # The map alone contracts by factors from 1/2 to 1, twice its step by 0 to 1: the slow parts at double the pace.
        return 2 * new - logarithms

    def floored(logarithms: Array) -> Array:
        parts = [part for part in np.split(logarithms, [count]) if len(part)]
        return np.concatenate([np.maximum(log_softmax(part), math.log(_LEAST_WEIGHT[objective] / len(part))) for part in parts])

    def important(logarithms: Array) -> Array:
        # Weights that vanish at the optimum never stop falling; they must not steer the others.
        sizes = [softmax(part) * len(part) for part in np.split(logarithms, [count]) if len(part)]
        return np.asarray(np.minimum(np.sqrt(np.concatenate(sizes)), 1.0))

    start = _log_shares(np.bincount(classes[joined], np.sqrt(n - np.flatnonzero(joined)), count))
    if objective == "max":
        start = np.concatenate([start, _log_shares(np.ones(n))])
    residual, most = effort.residual, effort.evaluations
    found = fixed_point(improved, start, tolerance=residual, most=most, within=floored, importance=important)
    v, w, _, poles = weights(found.point)
    trace = _proved_trace(workload, w, v, poles)
    first = np.unique(classes[joined], return_index=True)[1]
    # Weights are exact by definition; their sum is 1 up to rounding.
    sums = math.fsum(v[joined][first]) * math.fsum(w) * (1 + 8 * _EPSILON)
    scaled = Poles(poles.shifts / trace**2, poles.weights / trace)
    return Dual(trace**2 / sums, trace**2 * v, w, scaled, found.evaluations)


def _diagonal(workload: Workload, gram: Array, w: Array, v: Array, poles: Poles, *, transposed: bool = False) -> Array:
    """The diagonal of Σ c_q·(P + s_q·V)⁻¹ for P = ``gram``, the inverse of Aᵀ·W·A, or transposed of A·W·Aᵀ."""
    try:
        if rounding(gram) <= _MOST_ROUNDING:
            return inverse_diagonal(gram, v, poles)
    except ArithmeticError:
        pass
    return _smoothed_diagonal(workload, w, v, poles, transposed=transposed)


def _log_shares(parts: npt.NDArray[np.floating | np.integer]) -> Array:
    return np.asarray(log_softmax(np.log(np.maximum(parts, 1e-300))))


def _resolving(bands: Array, gram: Array, v: Array, w: Array, tolerance: float) -> Poles:
    """Poles for the eigenvalues of the pencil of P = ``gram`` and V.

    The interval affects the tightness of the bound, not its validity.
    """
    direction = np.ones(len(v))
    largest = 1.0
    for _ in range(3):
        # One power step of V·M. The largest quotient is at least the largest eigenvalue: no entry is negative.
        image, _ = lapack.dtbtrs(bands, direction, uplo="L")
        image, _ = lapack.dtbtrs(bands, w * image, uplo="L", trans="T")
        image = v * image
        largest = float((image / direction).max())
        direction = np.maximum(image / image.max(), 1e-30)
    rows = np.abs(gram[0])
    for d in range(1, len(gram)):
        rows[d:] += np.abs(gram[d, :-d])
        rows[:-d] += np.abs(gram[d, :-d])
    # Gershgorin's bound on the largest.
    highest = float((rows[v > 0] / v[v > 0]).max()) if (v > 0).any() else math.inf
    if not (0 < largest < math.inf and 0 < highest < math.inf):
        raise ArithmeticError("the workload's learning rates or its momentum are too uneven for float64")
    return inverse_root_poles(1 / largest, max(highest, 1 / largest), tolerance)
