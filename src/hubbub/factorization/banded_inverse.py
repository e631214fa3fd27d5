"""Strategies with a banded Toeplitz inverse of least error (BandInvMF).

Letters, and those of :mod:`hubbub.factorization.toeplitz`: d the coefficients of C⁻¹, c = 1/d those of C, β = a·d.

Source: Kalinin et al. 2025, "Back to Square Roots", https://arxiv.org/abs/2505.12128.
"""

import math
from typing import Literal

import numpy as np
from scipy import linalg

from hubbub._util.checks import Array, one_of
from hubbub.factorization.bounds import lower_bound
from hubbub.factorization.lbfgs import Minimum, ValueAndGradient, minimize
from hubbub.factorization.optimized import Objective, Optimized, on_one_thread
from hubbub.factorization.toeplitz import MOST_WORK, columns_of, inner_product, quotient, row_weights
from hubbub.mechanism.participation import MinSeparation, Participation, SingleParticipation, worst_rounds
from hubbub.mechanism.strategies import matrices
from hubbub.mechanism.strategies.banded_inverse import BandedInverse, square_root_of
from hubbub.mechanism.workloads import Workload

__all__ = ["optimize"]

# A relative gap below this needs no second bound.
_TIGHT = 1e-6

# What the sensitivity is computed from: c as it is, |c|, or the least sequence above |c| that does not increase.
Movement = Literal["signed", "magnitude", "majorant"]

_SHORT, _MOST_EVALUATIONS = 1e-6, 3000
# Steps that the search remembers, on a function that is not smooth.
_MEMORY = 50
# Rounds times evaluations of the last search, which may not converge sharply on a function that is not smooth.
_MOST_WORK = 3 * 10**7
# A series that grows beyond this has a root inside of the unit disc.
_EXPLODED = 1e50
_EPSILON = float(np.finfo(np.float64).eps)


def error_and_movement(
    a: Array, weights: Array, bands: int, separation: int, participations: int, movement: Movement
) -> ValueAndGradient:
    """The objective as a function of d: error times squared sensitivity, Σ w_j·β_j² · ‖v‖², with its gradient.

    It does not depend on the scale of d. It is smooth if c is positive and does not increase, or if v is computed from c as it
    is. ``a`` and ``weights`` are ``(rounds,)``.
    """
    n = len(a)

    def value_and_gradient(d: Array) -> tuple[float, Array]:
        with np.errstate(over="ignore", invalid="ignore"):
            c = matrices.inverse(d, n)
            if not float(np.abs(c).max()) < _EXPLODED * abs(float(c[0])):
                return math.inf, d
        beta = matrices.multiply(a, d, n)
        error = float((weights * beta) @ beta)
        size, source = c if movement == "signed" else np.abs(c), np.arange(n)
        if movement == "majorant":
            # Which entry of |c| each entry is of the least sequence that does not increase and is at least |c|.
            backwards = size[::-1]
            latest = np.maximum.accumulate(np.where(backwards == np.maximum.accumulate(backwards), source, 0))
            source = (n - 1 - latest)[::-1]
        v = matrices.columns_at(size[source], n, separation, participations)
        squared = float(v @ v)
        by_c = np.bincount(source, matrices.columns_at_transposed(v, n, separation, participations), n).astype(np.float64)
        if movement != "signed":
            by_c = by_c * np.sign(c)
        back = matrices.correlate(matrices.transposed_divide(by_c, d), c, bands)
        return error * squared, 2 * squared * matrices.correlate(weights * beta, a, bands) - 2 * error * back

    return value_and_gradient


def least_error(a: Array, weights: Array, start: Array, separation: int, participations: int, movement: Movement) -> Minimum:
    """The d, ``(bands,)``, of the strategy of least error, not worse than ``start``, with its error and the evaluations."""
    bands = len(start)
    function = error_and_movement(a, weights, bands, separation, participations, movement)
    # Of clients that come back at once independent noise, d = 1, asks for less than the root does. The line search descends
    # also where the function is not smooth: Lewis and Overton 2013.
    found = minimize(
        function,
        min(start, np.eye(bands)[0], key=lambda d: function(d)[0]),
        memory=_MEMORY,
        most_evaluations=min(_MOST_EVALUATIONS, max(100, _MOST_WORK // len(a))),
        gradient_tolerance=_SHORT,
    )
    return Minimum(found.point, found.value, found.gradient, found.evaluations + 2)


def banded_inverse_bound(a: Array, weights: Array, d: Array, separation: int, participations: int) -> float:
    """A lower bound for every C with a Toeplitz inverse of as many bands as d, the best found; 0 if too much work.

    With v the sum of a client's worst columns, β·v = a·q for q = 1 + x^separation + …, and ‖v‖ is no more than the sensitivity
    for any signs. The factor of few coefficients is β = a·d here: the bound is ⟨J·h, q⟩² / λ for h = J·v/d and λ the largest
    quotient of ‖T_h·d‖² and Σ w_j·β_j². It is valid for any d.
    """
    n, b = len(a), len(d)
    if n * b**2 > MOST_WORK:
        return 0.0
    v = matrices.columns_at(matrices.inverse(d, n), n, separation, participations)
    h = matrices.divide(v[::-1], d)
    triangle = linalg.qr(columns_of(a, b) * np.sqrt(weights)[:, None], mode="r", overwrite_a=True)[0][:b]
    quotients = linalg.solve_triangular(triangle, columns_of(h, b).T, trans="T")
    largest = float(linalg.eigvalsh(quotients @ quotients.T, subset_by_index=[b - 1, b - 1])[0])
    reached = inner_product(h[::-1][: separation * participations : separation], np.ones(1))
    # Rounding perturbs the columns behind the triangle, and thereby the quotients, by a multiple of its condition.
    return quotient(reached, largest) * max(0.0, 1 - 16 * (n + b) * _EPSILON * float(np.linalg.cond(triangle)))


@on_one_thread
def optimize(
    workload: Workload,
    *,
    bands: int,
    participation: Participation = SingleParticipation(),  # noqa: B008 # a frozen value
    objective: Objective = "mean",
) -> Optimized[BandedInverse]:
    """The strategy of a banded inverse of least error, BandInvMF: never worse than :func:`square_root_of`.

    At one participation the bound is tight. At more, the search minimizes the error at the sensitivity that
    :meth:`BandedInverse.sensitivity` states, a bound with many local minima; the lower bound uses the true sensitivity.

    Args:
        workload: A, of equal learning rates.
        bands: b, from 1 to n: the number of diagonals of C⁻¹; a run remembers one row fewer.
        participation: Which rounds one client may join.
        objective: ``"mean"`` of the squared errors, or their ``"max"``.

    Raises:
        ValueError: Learning rates that differ, more bands than rounds, another objective, or random participation.

    Example:
        >>> from hubbub.mechanism.workloads import prefix_sum
        >>> result = optimize(prefix_sum(rounds=2000), bands=4)
        >>> round(result.squared_error, 6), result.relative_gap < 1e-6
        (21.294535, True)

    Source: Kalinin et al. 2025, https://arxiv.org/abs/2505.12128.
    """
    start = np.array(square_root_of(workload, bands).noising_coefficients)
    n, a = workload.rounds, workload.coefficients()
    weights = row_weights(n, one_of("objective", objective, ("mean", "max")))
    separation, participations = worst_rounds(participation, n)
    movement: Movement = "majorant" if isinstance(participation, MinSeparation) else "magnitude"
    found = least_error(a, weights, start, separation, participations, "signed" if participations == 1 else movement)
    d = found.point / found.point[0]
    strategy = BandedInverse(n, tuple(d.tolist()))
    beta = matrices.multiply(a, d, n)
    error = float((weights * beta) @ beta) * strategy.sensitivity(participation).value ** 2
    bound = banded_inverse_bound(a, weights, d, separation, participations)
    bounds = [(bound, f"every strategy with a Toeplitz inverse of at most {bands} bands")]
    if bound < error * (1 - _TIGHT):
        bounds.append((lower_bound(workload, participation, objective), "every strategy"))
    bound, family = max(bounds)
    return Optimized(strategy, workload, participation, objective, error, bound, family, found.evaluations)
