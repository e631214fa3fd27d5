"""Banded Toeplitz strategies of least error, with a proved lower bound although the search is not convex.

Let β·c = a modulo xⁿ, W = diag(w) the weights of the squares of β, J the reversal. For every series f

    ⟨J·f, a⟩ = [xⁿ⁻¹] f·β·c = ⟨J·β, T_f·c⟩ ≤ ‖W^½·β‖ · ‖(J·W·J)^{−½}·T_f·c‖,

so the error Σ w_j·β_j² times ‖c‖² is at least ⟨J·f, a⟩² / λ, with λ the largest eigenvalue of T_fᵀ·(J·W·J)⁻¹·T_f on the series
of at most b coefficients. At a stationary c, f = J·W·β/c makes c an eigenvector. If it is the first one, c is optimal and the
bound equals its error: so in every case tried in which columns do not run out of rounds.

Letters: n rounds, b bands, a, c, β first columns of A, C and B = A·C⁻¹ (β = a/c as power series); d, r the worst rounds of one
client, 0, d, 2d, …, r of them; v the sum of the columns of C at those rounds.

Source: Choquette-Choo et al. 2023, https://arxiv.org/abs/2306.08153; McKenna 2024, https://arxiv.org/abs/2405.15913; Kalinin
and Lampert 2024, https://arxiv.org/abs/2405.13763.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import linalg
from scipy import optimize as scipy_optimize

from hubbub._util.checks import Array, one_of
from hubbub.factorization.bounds import lower_bound, toeplitz_bound
from hubbub.factorization.lbfgs import Minimum, ValueAndGradient, minimize
from hubbub.factorization.optimized import Objective, Optimized, on_one_thread
from hubbub.mechanism.participation import MinSeparation, Participation, SingleParticipation, worst_rounds
from hubbub.mechanism.strategies import matrices
from hubbub.mechanism.strategies.toeplitz import BandedToeplitz, square_root_of
from hubbub.mechanism.workloads import Workload

__all__ = ["optimize"]


# Multiplications that a bound may cost: some tenths of a second.
MOST_WORK = 1e10
# Entries of a matrix in memory at a time: 32 MB.
_CHUNK = 4_000_000
# Relative; above the rounding of a few operations. Sums and transforms have their own allowance.
_MARGIN = 1e-12
_EPSILON = float(np.finfo(np.float64).eps)
# If a bound on an eigenvalue is further above it, the whole matrix is computed.
_LOOSE = 1e-9
# Of the search with bounds, for columns that overlap. It may stop at one short step: it is begun again where that was, with a
# shorter first step, until it gains no more than this.
_MOST_EVALUATIONS = 8000
_GAIN = 1e-6
# Of the search for a second eigenvector.
_STEPS = 12
# A proof that leaves less to gain needs no second search, whose gradient is as short relative to the value.
_TIGHT, _SHORT, _MEMORY = 1e-6, 1e-6, 20


def row_weights(rounds: int, objective: str) -> Array:
    """``(rounds,)``: the weight of β_j² in the mean of the squared errors, or in the last and largest."""
    return np.ones(rounds) if objective == "max" else 1 - np.arange(rounds) / rounds


def error(a: Array, weights: Array, c: Array) -> float:
    """Σ w_j·β_j²: the squared error for unit noise, not scaled by the sensitivity."""
    beta = matrices.divide(a, c)
    return float((weights * beta) @ beta)


def error_and_movement(a: Array, weights: Array, bands: int, separation: int, participations: int) -> ValueAndGradient:
    """The objective as a function of c: error times squared sensitivity.

    It is Σ w_j·β_j² · ‖v‖² with its gradient, in O(n·b) or O(n·log n); it does not depend on the scale of c.
    """

    def value_and_gradient(c: Array) -> tuple[float, Array]:
        with np.errstate(over="ignore", invalid="ignore"):
            beta = matrices.divide(a, c)
            weighted = weights * beta
            error = float(weighted @ beta)
        if not math.isfinite(error):
            return math.inf, c
        v = matrices.columns_at(c, len(a), separation, participations)
        squared = float(v @ v)
        back = matrices.correlate(matrices.transposed_divide(weighted, c), beta, bands)
        moved = matrices.columns_at_transposed(v, bands, separation, participations)
        return error * squared, 2 * error * moved - 2 * squared * back

    return value_and_gradient


def least_error(
    a: Array, weights: Array, start: Array, separation: int, participations: int, *, monotone: bool
) -> tuple[Array, int]:
    """The coefficients of the banded Toeplitz strategy of least error, and the number of evaluations.

    While the bands are no more than the separation, every c is allowed. Beyond, c is not negative, and where rounds may lie
    further apart does not increase (``monotone``): only then are the worst rounds known. ``start``, ``(bands,)``, is positive
    and does not increase.
    """
    within = min(len(start), separation)
    function = error_and_movement(a, weights, within, separation, participations)
    found = minimize(function, start[:within], memory=_MEMORY, gradient_tolerance=_SHORT)
    if within == len(start) or participations == 1:
        return found.point, found.evaluations
    overlapping = _within_bounds(error_and_movement(a, weights, len(start), separation, participations), start, monotone)
    evaluations = found.evaluations + overlapping.evaluations
    return (overlapping.point if overlapping.value < found.value else found.point), evaluations


def _within_bounds(function: ValueAndGradient, start: Array, monotone: bool) -> Minimum:
    """The least value over c ≥ 0, or over c whose decreases from one coefficient to the next are ≥ 0."""

    def coefficients(x: Array) -> Array:
        return np.cumsum(x[::-1])[::-1] if monotone else x

    point = np.append(-np.diff(start), start[-1]) if monotone else start
    # scipy's first step has length 1: a hundredth of the start in these units.
    unit = float(np.linalg.norm(point)) / 100
    scale, value, evaluations, gain = function(start)[0], 1.0, 0, 1.0
    while gain > _GAIN and evaluations < _MOST_EVALUATIONS:

        def scaled(x: Array, unit: float = unit) -> tuple[float, Array]:
            value, gradient = function(coefficients(unit * x))
            return value / scale, (np.cumsum(gradient) if monotone else gradient) * (unit / scale)

        left = _MOST_EVALUATIONS - evaluations
        found = scipy_optimize.minimize(
            scaled,
            point / unit,
            jac=True,
            method="L-BFGS-B",
            bounds=[(0, None)] * len(start),
            options={"maxfun": left, "maxiter": left, "ftol": 1e-14, "gtol": 1e-9, "maxcor": _MEMORY},
        )
        point, gain, value = unit * found.x, 1 - float(found.fun) / value, float(found.fun)
        evaluations, unit = evaluations + int(found.nfev), unit / 10
    return Minimum(coefficients(point), value * scale, found.jac, evaluations)


def banded_bound(a: Array, weights: Array, c: Array, separation: int, participations: int) -> float:
    """A lower bound for every banded Toeplitz C of as many bands as c, at most ``separation``; 0 if too much work.

    It is valid for any c, and tight for the best.
    """
    n, b = len(a), len(c)
    counted = np.sqrt(matrices.columns_at_transposed(np.ones(n), b, separation, participations))
    reversed_beta = matrices.divide(a, c)[::-1]
    f = matrices.divide(weights[::-1] * reversed_beta, c)
    form = _Form(f, 1 / weights[::-1], counted)
    reached = inner_product(f, a[::-1])
    point = _unit(c * counted)
    largest = form.largest(point)
    if largest * (1 - _LOOSE) > float(point @ form(point)):
        if n * b**2 > MOST_WORK:
            return quotient(reached, largest)
        whole = float(linalg.eigvalsh(form.matrix(), subset_by_index=[b - 1, b - 1])[0])
        largest = min(largest, whole + 4 * (n + b) * _EPSILON * form.trace())
    return quotient(reached, largest)


def least_error_and_bound(
    a: Array, weights: Array, start: Array, separation: int, participations: int
) -> tuple[Array, float, int]:
    """The best banded Toeplitz c of at most ``separation`` bands, a bound on all of them, and the number of evaluations.

    If the last columns of a client run out of rounds there may be several local minima, and the proof is not tight: then the
    search restarts elsewhere, and the bound also uses only the participations whose columns are whole.
    """
    c, evaluations = least_error(a, weights, start, separation, participations, monotone=True)
    bound = banded_bound(a, weights, c, separation, participations)
    function = error_and_movement(a, weights, len(start), separation, participations)
    whole = min(participations, 1 + (len(a) - len(start)) // separation)
    if whole == participations or bound >= function(c)[0] * (1 - _TIGHT):
        return c, bound, evaluations
    shorter, more = least_error(a, weights, start, separation, whole, monotone=True)
    bound = max(bound, banded_bound(a, weights, shorter, separation, whole))
    evaluations += more
    falling, signs = np.exp(-0.1 * np.arange(len(start))), 1.0 - 2 * (np.arange(len(start)) % 2)
    others: list[Array] = [shorter, falling, falling**3 * start, signs * start]
    for other in others:
        if not math.isfinite(function(other)[0]):
            continue
        found = minimize(function, other, memory=_MEMORY, gradient_tolerance=_SHORT)
        evaluations += found.evaluations + 1
        if found.value < function(c)[0]:
            c = found.point
    return c, max(bound, banded_bound(a, weights, c, separation, participations)), evaluations


@dataclass(frozen=True, eq=False)
class _Form:
    """D·T_fᵀ·S·T_f·D on the first columns of T_f, with S = diag(``scales``) and 1/D = diag(``counted``); at least 0."""

    f: Array
    scales: Array
    counted: Array

    def __call__(self, x: Array) -> Array:
        image = matrices.multiply(self.f, x / self.counted, len(self.f)) * self.scales
        return matrices.correlate(image, self.f, len(x)) / self.counted

    def trace(self) -> float:
        """The sum of the eigenvalues."""
        return float((matrices.correlate(self.scales, np.square(self.f), len(self.counted)) / np.square(self.counted)).sum())

    def largest(self, point: Array) -> float:
        """An upper bound on the largest eigenvalue, tight if the unit vector ``point`` is near the first eigenvector.

        Orthogonal to the point, the largest eigenvalue is at most the sum of all; more tightly, it is bounded by the quotient
        of one more vector and the sum of the others.
        """
        image = self(point)
        quotient = float(point @ image)
        residual = float(np.linalg.norm(image - quotient * point))
        rest = max(0.0, self.trace() - quotient)
        beside, second = rest, np.linspace(-1.0, 1.0, len(point))
        for _ in range(_STEPS if len(point) > 1 else 0):
            if beside < 0.9 * quotient:
                break
            second = _unit(second - (point @ second) * point)
            image = self(second)
            image -= (point @ image) * point
            along = float(second @ image)
            beside = min(beside, _two_by_two(along, float(np.linalg.norm(image - along * second)), max(0.0, rest - along)))
            second = image
        # The largest rounding error of the image of a unit vector, by recursion or by transforms.
        bands, n = len(self.counted), len(self.f)
        transforms = math.log2(2 * n) * float(self.scales.max()) * float(self.f @ self.f) / float(np.square(self.counted).min())
        return _two_by_two(quotient, residual, beside) + 8 * _EPSILON * (bands * self.trace() + transforms)

    def matrix(self) -> Array:
        """``(bands, bands)``."""
        bands = len(self.counted)
        gram = np.zeros((bands, bands))
        columns, roots = columns_of(self.f, bands), np.sqrt(self.scales)
        rows = max(1, _CHUNK // bands)
        for first in range(0, len(self.f), rows):
            part = columns[first : first + rows] * roots[first : first + rows, None]
            gram += part.T @ part
        return gram / np.outer(self.counted, self.counted)


def inner_product(f: Array, a: Array) -> float:
    """No more than |⟨f, a⟩|, where entries of a are sums of at most as many numbers of one sign."""
    products = f * a
    return max(0.0, abs(math.fsum(products)) - 4 * len(f) * _EPSILON * math.fsum(np.abs(products)))


def quotient(reached: float, largest: float) -> float:
    bound = reached**2 / largest * (1 - _MARGIN)
    return bound if math.isfinite(bound) else 0.0


def _two_by_two(one: float, coupling: float, other: float) -> float:
    """The larger eigenvalue of the symmetric matrix with this diagonal."""
    return (one + other) / 2 + math.hypot((one - other) / 2, coupling)


def _unit(x: Array) -> Array:
    return x / float(np.linalg.norm(x))


def columns_of(series: Array, bands: int) -> Array:
    """``(len(series), bands)``: the first columns of its Toeplitz matrix, read-only."""
    padded = np.concatenate([np.zeros(bands - 1), series])
    windows: Array = np.lib.stride_tricks.sliding_window_view(padded, bands)
    return windows[:, ::-1]


@on_one_thread
def optimize(
    workload: Workload,
    *,
    bands: int,
    participation: Participation = SingleParticipation(),  # noqa: B008 # a frozen value
    objective: Objective = "mean",
) -> Optimized[BandedToeplitz]:
    """The banded Toeplitz strategy of least error, with a proved lower bound.

    While the bands are no more than the separation the bound is for this family, usually tight to 1e-12. With more bands the
    search is among coefficients that are not negative (and do not increase, if rounds need not be evenly spaced), whose
    sensitivity is exact.

    Args:
        workload: A, of equal learning rates.
        bands: b, from 1 to n.
        participation: Which rounds one client may join.
        objective: ``"mean"`` of the squared errors, or their ``"max"``.

    Raises:
        ValueError: Learning rates that differ, more bands than rounds, another objective, or random participation.

    Example:
        >>> from hubbub.mechanism.workloads import prefix_sum
        >>> result = optimize(prefix_sum(rounds=64), bands=16)
        >>> round(result.squared_error, 10), result.relative_gap < 1e-9
        (5.522755555, True)

    Source: McKenna 2024, https://arxiv.org/abs/2405.15913.
    """
    start = np.array(square_root_of(workload, bands).coefficients)
    weights = row_weights(workload.rounds, one_of("objective", objective, ("mean", "max")))
    separation, participations = worst_rounds(participation, workload.rounds)
    a, bounds = workload.coefficients(), []
    if bands <= separation:
        c, bound, evaluations = least_error_and_bound(a, weights, start, separation, participations)
        bounds.append((bound, f"every banded Toeplitz strategy of at most {bands} bands"))
    else:
        spaced = isinstance(participation, MinSeparation)
        c, evaluations = least_error(a, weights, start, separation, participations, monotone=spaced)
    c = c / np.linalg.norm(c)
    strategy = BandedToeplitz(workload.rounds, tuple(c.tolist()))
    squared = error(a, weights, c) * strategy.sensitivity(participation).value ** 2
    if not bounds or bounds[0][0] < squared * (1 - _TIGHT):
        bounds.append((lower_bound(workload, participation, objective), "every strategy"))
        root = matrices.root_series(workload.momentum, workload.rounds)
        of_root = toeplitz_bound(root, workload.rounds, 1, objective == "mean")
        bounds.append((float(a[0] ** 2) * of_root, "every lower-triangular Toeplitz strategy"))
    bound, family = max(bounds)
    return Optimized(strategy, workload, participation, objective, squared, bound, family, evaluations)
