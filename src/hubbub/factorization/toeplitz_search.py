"""Lower-triangular Toeplitz C: how far it moves, and the coefficients of least error.

Letters: n rounds, b bands, a, c, β first columns of A, C and B = A·C⁻¹ (β = a/c as power series); d, r the worst rounds
of one client, 0, d, 2d, …, r of them; v the sum of the columns of C at those rounds.

Source: Choquette-Choo et al. 2023, https://arxiv.org/abs/2306.08153; McKenna 2024, https://arxiv.org/abs/2405.15913; Kalinin
and Lampert 2024, https://arxiv.org/abs/2405.13763.
"""

import math

import numpy as np
from scipy import optimize

from hubbub._util.checks import Array
from hubbub.factorization.lbfgs import Minimum, ValueAndGradient, minimize
from hubbub.mechanism.strategies.matrices import columns_at, columns_at_transposed, correlate, divide, transposed_divide

__all__ = ["error", "error_and_movement", "least_error", "row_weights"]

# The gradient at the end, relative to the value: the value is off by its square.
_SHORT = 1e-6
_MEMORY = 20
# Of the search with bounds, for columns that overlap. It may stop at one short step: it is begun again where that was, with a
# shorter first step, until it gains no more than this.
_MOST_EVALUATIONS = 8000
_GAIN = 1e-6


def row_weights(rounds: int, objective: str) -> Array:
    """``(rounds,)``: what the square of β_j counts for in the mean of the squared errors, or in the last, the largest.

    Example:
        >>> row_weights(4, "mean")
        array([1.  , 0.75, 0.5 , 0.25])
    """
    return np.ones(rounds) if objective == "max" else 1 - np.arange(rounds) / rounds


def error(a: Array, weights: Array, c: Array) -> float:
    """Σ w_j·β_j²: the squared error for unit noise, without any sensitivity."""
    beta = divide(a, c)
    return float((weights * beta) @ beta)


def error_and_movement(a: Array, weights: Array, bands: int, separation: int, participations: int) -> ValueAndGradient:
    """The function of c that is least at the best banded Toeplitz strategy: its error times its squared sensitivity.

    It is Σ w_j·β_j² · ‖v‖² with its gradient, in O(n·b) or O(n·log n); it does not depend on the scale of c.
    """

    def value_and_gradient(c: Array) -> tuple[float, Array]:
        with np.errstate(over="ignore", invalid="ignore"):
            beta = divide(a, c)
            weighted = weights * beta
            error = float(weighted @ beta)
        if not math.isfinite(error):
            return math.inf, c
        v = columns_at(c, len(a), separation, participations)
        squared = float(v @ v)
        back = correlate(transposed_divide(weighted, c), beta, bands)
        return error * squared, 2 * error * columns_at_transposed(v, bands, separation, participations) - 2 * squared * back

    return value_and_gradient


def least_error(
    a: Array, weights: Array, start: Array, separation: int, participations: int, *, monotone: bool
) -> tuple[Array, int]:
    """The coefficients of the banded Toeplitz strategy of least error, and how many evaluations it took.

    While the bands are no more than the separation, every c is allowed. Beyond, c is not negative (and with ``monotone`` does
    not increase): that is where the worst rounds are known, and the error is that of the strategies for which they are.

    Args:
        a: ``(rounds,)``, the first column of A.
        weights: ``(rounds,)``, see :func:`row_weights`.
        start: ``(bands,)``, positive, not increasing.
        separation: d of :func:`hubbub.mechanism.participation.worst_rounds`.
        participations: r.
        monotone: Whether rounds may lie further apart than d.
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
        found = optimize.minimize(
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
