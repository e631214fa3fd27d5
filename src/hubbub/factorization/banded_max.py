"""The banded strategy whose largest error is least, by the weights of the rounds that make it the best for their mean.

Letters as in :mod:`hubbub.factorization.banded`. The largest error is the largest mean over weights w ≥ 0 with Σ w = 1, so the
least of it is the largest over w of the least weighted mean, which is concave in w: any w gives a bound, by
:mod:`hubbub.factorization.certificate`.

w is found by the method of multipliers with exponentials: μ·log Σ w_i·exp(errors_i/μ) is minimized, then w_i becomes
w_i·exp(errors_i/μ), normalized. The minimum for the old w and μ is that of the mean for the new w, so each step also gives a
bound. Powers of the errors with a growing exponent, or steps of w along the errors, take tens of times as many evaluations.

Source: Tseng and Bertsekas 1993, "On the convergence of the exponential multiplier method for convex programming",
https://doi.org/10.1007/BF01581236.
"""

import numpy as np

from hubbub._checks import Array
from hubbub.factorization.banded import Weigh
from hubbub.factorization.certificate import MOST_ROUNDS, lower_bound
from hubbub.factorization.multilevel import BandedOptimum, Search, warm_start
from hubbub.workloads import Workload

__all__ = ["least_largest_error"]

# μ relative to the largest error: at first, how much smaller each time, and at last.
_FIRST, _SHRINK, _LAST = 0.1, 0.4, 4e-3
_MOST_STEPS = 40
# How near the minimum to stop at first, relative. An error moves by the root of that: in the end it is the square of the gap.
_FIRST_GOAL = 1e-4
# A weight of 0 could not grow again.
_LEAST_WEIGHT = 1e-14
_MOST_EVALUATIONS = 1000
# The second derivative is large along the errors that compete: more steps are remembered than for the mean.
_MEMORY = 15


def least_largest_error(workload: Workload, bands: int, relative_gap: float) -> BandedOptimum:
    """The C of ``bands`` bands with columns of norm 1 and least max_i ‖(A·C⁻¹)_i‖².

    Args:
        workload: A.
        bands: From 1 to the number of rounds.
        relative_gap: How near the bound to stop; beyond ``MOST_ROUNDS`` no bound is computed, and it is 0.
    """
    weights = np.full(workload.rounds, 1 / workload.rounds)
    C = warm_start(workload, weights, bands)
    best = BandedOptimum(C, np.zeros(workload.rounds), np.inf, 0.0, 0)
    relative, evaluations, largest = _FIRST, 0, 0.0
    for step in range(_MOST_STEPS):
        search = Search(workload, weights, C, memory=_MEMORY)
        largest = largest or float(search.error.errors.max())
        search.weigh = _soft_maximum(weights, relative * largest)
        found = search.run(max(relative_gap**2 / 20, _FIRST_GOAL * _SHRINK**step), _MOST_EVALUATIONS)
        C, evaluations = search.columns(found.point), evaluations + found.evaluations + 2
        errors = search.error.squared_errors(C)
        largest = float(errors.max())
        weights = np.maximum(search.weigh(errors)[1], _LEAST_WEIGHT)
        if largest < best.value:
            best = BandedOptimum(C, errors, largest, best.lower_bound, evaluations)
        mean = float(weights @ errors) / float(weights.sum())
        if 1 - mean / best.value <= relative_gap / 2 or step == _MOST_STEPS - 1:
            proved = workload.rounds <= MOST_ROUNDS
            bound = lower_bound(C, workload.inverse_bands(), weights / weights.sum()) if proved else 0.0
            best = BandedOptimum(best.C, best.errors, best.value, max(bound, best.lower_bound), evaluations)
            if 1 - best.lower_bound / best.value <= relative_gap or not proved:
                break
        relative = max(_LAST, _SHRINK * relative)
    return best


def _soft_maximum(weights: Array, mu: float) -> Weigh:
    """μ·log Σ w_i·exp(errors_i/μ) and its gradient by the errors."""

    def weigh(errors: Array) -> tuple[float, Array]:
        top = float(errors.max())
        if not np.isfinite(top):
            return np.inf, weights
        parts = weights * np.exp((errors - top) / mu)
        total = float(parts.sum())
        return top + mu * float(np.log(total)), parts / total

    return weigh
