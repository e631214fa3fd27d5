"""Banded strategies of least mean or largest error, found from coarse to fine, with a proved lower bound.

Letters as in :mod:`hubbub.factorization.banded_error`. As a function of j/n and d/b the optimal C[j + d, j] is that of a
problem with fewer rounds and bands times a sequence that is known: the root of the workload. So each level starts where the one
with half the rounds ended, which for n = 2000 and b = 400 is within 1e-4 of the optimum, and is searched by L-BFGS in the
entries of C.

Columns are normalized inside of the objective, which leaves the length of each free. It is chosen as the root of the second
derivative there: longer columns are moved less. That saves a quarter of the evaluations.

The largest error is the largest mean over weights w ≥ 0 with Σ w = 1, so the least of it is the largest over w of the least
weighted mean, which is concave in w: any w gives a bound, by :mod:`hubbub.factorization.certificate`. w is found by the method
of multipliers with exponentials: μ·log Σ w_i·exp(errors_i/μ) is minimized, then w_i becomes w_i·exp(errors_i/μ), normalized.
The minimum for the old w and μ is that of the mean for the new w, so each step also gives a bound. Powers of the errors with a
growing exponent, or steps of w along the errors, take tens of times as many evaluations.

Source: Tseng and Bertsekas 1993, "On the convergence of the exponential multiplier method for convex programming",
https://doi.org/10.1007/BF01581236.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hubbub._util.checks import Array, integer, one_of, open_unit, real_array
from hubbub.factorization import bounds
from hubbub.factorization.banded_error import BandedError, Weigh
from hubbub.factorization.certificate import MOST_ROUNDS, lower_bound
from hubbub.factorization.lbfgs import Minimum, minimize
from hubbub.factorization.optimized import Objective, Optimized, on_one_thread
from hubbub.mechanism.participation import FixedEpochs, Participation, SingleParticipation, worst_rounds
from hubbub.mechanism.strategies.banded import Banded
from hubbub.mechanism.strategies.matrices import root_series
from hubbub.mechanism.utility import squared_errors
from hubbub.mechanism.workloads import Workload, require_workload

__all__ = ["optimize"]

# Up to this much work (n·b²) for an evaluation of the error, a near exact answer costs a second or two.
_SMALL = 6e6
# Entries of C: a search holds some ten times as many.
_MOST_ENTRIES = 5e7
# relative_gap where none is asked for: of the mean for small and large problems, and of the maximum.
_TIGHT, _USUAL = 1e-7, 1e-4

# Coarser problems than this are of no use for finer ones.
_FEWEST_ROUNDS, _FEWEST_BANDS = 32, 8
# The error left on coarse levels, relative: below that of carrying them over to the next.
_COARSE = 1e-5
# Proofs cost as much as some evaluations: this many are tried, each after a search to a finer goal.
_MOST_PROOFS = 8
_MOST_EVALUATIONS = 3000
# Columns that no weighted row needs have no second derivative.
_LEAST_SCALE = 1e-3


@dataclass(frozen=True, eq=False)
class BandedOptimum:
    """The result: C ``(rounds, bands)`` with columns of norm 1, its error Σ w_i·errors_i, and a lower bound for all others."""

    C: Array
    errors: Array
    value: float
    lower_bound: float
    evaluations: int


def least_error(workload: Workload, weights: Array, bands: int, relative_gap: float) -> BandedOptimum:
    """The C of ``bands`` bands with columns of norm 1 and least Σ w_i·‖(A·C⁻¹)_i‖², for weights ``(rounds,)``, not all 0.

    It stops at the gap to the bound, where rounding allows it. Beyond ``MOST_ROUNDS`` the bound is 0 and the gap is estimated
    from the gradient.
    """
    C = warm_start(workload, weights, bands)
    search = Search(workload, weights, C)
    if workload.learning_rates and not np.isfinite(search.error.squared_errors(C)).all():
        # Rates are too uneven for a start from coarser rounds.
        C = np.zeros_like(C)
        C[:, 0] = 1.0
        search = Search(workload, weights, C)
    goal, evaluations, best = relative_gap, 1, 0.0
    for _ in range(_MOST_PROOFS):
        found = search.run(goal, _MOST_EVALUATIONS - evaluations)
        evaluations += found.evaluations
        C = search.columns(found.point)
        if workload.rounds > MOST_ROUNDS:
            return BandedOptimum(C, search.error.squared_errors(C), found.value, 0.0, evaluations)
        best = max(best, lower_bound(C, workload, weights))
        gap = 1 - best / found.value
        if gap <= relative_gap or evaluations >= _MOST_EVALUATIONS or search.exhausted:
            break
        goal *= min(0.5, max(0.01, 0.5 * relative_gap / gap))
    errors = search.error.squared_errors(C)
    return BandedOptimum(C, errors, float(weights @ errors), best, evaluations)


def warm_start(workload: Workload, weights: Array, bands: int) -> Array:
    """A good C to start from, ``(rounds, bands)``: the optimum for half the rounds and bands, carried over."""
    rounds = workload.rounds
    if rounds < 2 * _FEWEST_ROUNDS or bands < 2 * _FEWEST_BANDS:
        return _inside(np.tile(root_series(workload.momentum, bands), (rounds, 1)))
    # The same training in half the rounds: two steps at a time.
    rates = workload.learning_rates
    half = Workload(rounds // 2, workload.momentum**2, None if rates is None else rates[: 2 * (rounds // 2) : 2])
    share = np.add.reduceat(weights, np.arange(0, rounds - rounds % 2, 2))
    search = Search(half, share / share.sum(), warm_start(half, share, bands // 2))
    coarse = search.columns(search.run(_COARSE, _MOST_EVALUATIONS).point)
    return _finer(
        coarse / (coarse[:, :1] * root_series(half.momentum, bands // 2)), rounds, root_series(workload.momentum, bands)
    )


class Search:
    """L-BFGS from one C, in coordinates in which the second derivative is about 2 in each direction."""

    def __init__(self, workload: Workload, weights: Array, C: Array, weigh: Weigh | None = None, memory: int = 5) -> None:
        rounds, bands = C.shape
        self.weigh, self.memory = weigh, memory
        self.error = BandedError(workload.inverse_bands(), weights, bands)
        plain = BandedError(np.ones((1, rounds)), np.ones(rounds), bands)
        spread = plain.squared_errors(C)
        self.error(C)
        # ∂²f/∂C_ij² is about 2·(BᵀWB)_ii·(C⁻¹C⁻ᵀ)_jj; the first is averaged over the rows of the column.
        total = np.concatenate([[0.0], np.cumsum(self.error.column_norms)])
        last = np.minimum(np.arange(rounds) + bands, rounds)
        rows = (total[last] - total[:-1]) / (last - np.arange(rounds))
        scales = np.sqrt(rows * spread)[:, None]
        self.point = C * np.maximum(scales, _LEAST_SCALE * scales.max())
        self.exhausted = False

    def columns(self, point: Array) -> Array:
        """C with columns of norm 1."""
        return point / _norms(point)

    def run(self, goal: float, most: int) -> Minimum:
        """Continue from the last point until the error is likely within ``goal`` of the optimum, relative."""

        def near(at: Minimum) -> bool:
            # With a second derivative of 2, ‖g‖²/4 is how far the optimum is below.
            return float(np.vdot(at.gradient, at.gradient)) / 4 <= goal * at.value

        function, most = self._value_and_gradient, max(1, most)
        found = minimize(function, self.point, memory=self.memory, most_evaluations=most, curvature=2.0, stop=near)
        self.exhausted = not near(found)
        self.point = found.point
        return found

    def _value_and_gradient(self, point: Array) -> tuple[float, Array]:
        norms = _norms(point)
        C = point / norms
        value, gradient = self.error(C, self.weigh)
        gradient -= C * np.einsum("jd,jd->j", C, gradient)[:, None]
        gradient /= norms
        return value, gradient


def _norms(C: Array) -> Array:
    norms: Array = np.sqrt(np.einsum("jd,jd->j", C, C))[:, None]
    return norms


def _inside(C: Array) -> Array:
    """C with zeros below the last round and columns of norm 1."""
    rounds, bands = C.shape
    for j in range(max(0, rounds - bands + 1), rounds):
        C[j, rounds - j :] = 0.0
    return C / _norms(C)


def _finer(ratio: Array, rounds: int, root: Array) -> Array:
    """C on more rounds and bands from the ratio to the root on fewer, by linear interpolation in both directions."""
    fewer, few = ratio.shape
    for j in range(max(0, fewer - few + 1), fewer):
        ratio[j, fewer - j :] = ratio[j, fewer - j - 1]
    across = _between(np.arange(len(root)) * ((few - 1) / (len(root) - 1)), few)
    wide = ratio[:, across[0]] * (1 - across[1]) + ratio[:, across[0] + 1] * across[1]
    below, part = _between(np.clip((np.arange(rounds) + 0.5) * (fewer / rounds) - 0.5, 0, fewer - 1), fewer)
    C = wide[below]
    C += part[:, None] * (wide[below + 1] - C)
    C *= root
    return _inside(C)


def _between(places: Array, count: int) -> tuple[npt.NDArray[np.intp], Array]:
    """The grid point below each place, and how far beyond it the place is."""
    below = np.minimum(places.astype(np.intp), count - 2)
    return below, places - below


# μ relative to the largest error: at first, how much smaller each time, and at last.
_FIRST, _SHRINK, _LAST = 0.1, 0.4, 4e-3
_MOST_STEPS = 40
# How near the minimum to stop at first, relative. An error moves by the root of that: in the end it is the square of the gap.
_FIRST_GOAL = 1e-4
# A weight of 0 could not grow again.
_LEAST_WEIGHT = 1e-14
_MOST_MAX_EVALUATIONS = 1000
# The second derivative is large along the errors that compete: more steps are remembered than for the mean.
_MEMORY = 15


def least_largest_error(workload: Workload, bands: int, relative_gap: float) -> BandedOptimum:
    """The C of ``bands`` bands with columns of norm 1 and least max_i ‖(A·C⁻¹)_i‖²; it stops at the gap to the bound.

    Beyond ``MOST_ROUNDS`` the bound is 0.
    """
    weights = np.full(workload.rounds, 1 / workload.rounds)
    C = warm_start(workload, weights, bands)
    best = BandedOptimum(C, np.zeros(workload.rounds), np.inf, 0.0, 0)
    relative, evaluations, largest = _FIRST, 0, 0.0
    for step in range(_MOST_STEPS):
        search = Search(workload, weights, C, memory=_MEMORY)
        largest = largest or float(search.error.errors.max())
        search.weigh = _soft_maximum(weights, relative * largest)
        found = search.run(max(relative_gap**2 / 20, _FIRST_GOAL * _SHRINK**step), _MOST_MAX_EVALUATIONS)
        C, evaluations = search.columns(found.point), evaluations + found.evaluations + 2
        errors = search.error.squared_errors(C)
        largest = float(errors.max())
        weights = np.maximum(search.weigh(errors)[1], _LEAST_WEIGHT)
        if largest < best.value:
            best = BandedOptimum(C, errors, largest, best.lower_bound, evaluations)
        mean = float(weights @ errors) / float(weights.sum())
        if 1 - mean / best.value <= relative_gap / 2 or step == _MOST_STEPS - 1:
            proved = workload.rounds <= MOST_ROUNDS
            bound = lower_bound(C, workload, weights / weights.sum()) if proved else 0.0
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


@on_one_thread
def optimize(
    workload: Workload,
    bands: int,
    *,
    participation: Participation = SingleParticipation(),  # noqa: B008 # a frozen value
    objective: Objective = "mean",
    weights: npt.ArrayLike | None = None,
    relative_gap: float | None = None,
) -> Optimized[Banded]:
    """The banded strategy of least error among all of ``bands`` diagonals, with a proved lower bound.

    Its columns have norm 1. 2000 rounds and 400 bands take a few seconds. Beyond 5000 rounds the proof would take minutes and
    gigabytes: the bound is then that of every strategy, banded or not, which is lower.

    Args:
        workload: A, with any momentum and learning rates.
        bands: b, from 1 to n, at most the separation of ``participation``.
        participation: Which rounds one client may join.
        objective: ``"mean"`` of the squared errors, or their ``"max"``.
        weights: ``(rounds,)``, not negative, not all 0: the mean is Σ w·errors / Σ w. By default all are 1.
        relative_gap: The gap to the bound at which to stop. By default 1e-7 for the mean of small problems, 1e-4 for large
            ones and for the maximum. Rounding limits it to some 1e-7 for 2000 rounds.

    Raises:
        ValueError: More bands than rounds or than the separation, random participation, or weights for the maximum.

    Example:
        >>> from hubbub.mechanism.workloads import prefix_sum
        >>> result = optimize(prefix_sum(rounds=64), bands=16)
        >>> round(result.squared_error, 6), result.relative_gap < 1e-7
        (5.256097, True)

    Source: McKenna 2024, https://arxiv.org/abs/2405.15913, for the problem.
    """
    rounds = require_workload(workload).rounds
    bands = integer("bands", bands, at_least=1, at_most=rounds)
    one_of("objective", objective, ("mean", "max"))
    separation, participations = worst_rounds(participation, rounds)
    if bands > separation and participations > 1:
        other = "dense.optimize" if isinstance(participation, FixedEpochs) else "toeplitz.optimize"
        raise ValueError(
            f"bands = {bands}: must be at most {separation}, the separation of {participation!r}, or columns of one client "
            f"overlap and cost more than their norms; use bands = {separation}, or {other}"
        )
    if rounds * bands > _MOST_ENTRIES:
        raise ValueError(
            f"bands = {bands}: {rounds:,} rounds of that many are {rounds * bands:,} numbers, more than {_MOST_ENTRIES:,.0f}; "
            "use fewer bands, or toeplitz.optimize"
        )
    shares = _shares(weights, rounds, objective)
    small = rounds <= MOST_ROUNDS and rounds * bands**2 <= _SMALL and objective == "mean"
    gap = (_TIGHT if small else _USUAL) if relative_gap is None else open_unit("relative_gap", relative_gap)
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            if objective == "mean":
                found = least_error(workload, shares, bands, gap)
            else:
                found = least_largest_error(workload, bands, gap)
    except ValueError as error:
        # The search has no start of finite error.
        raise _too_uneven(workload) from error
    strategy = Banded(found.C.T)
    if not _sound(workload, strategy, found.errors):
        raise _too_uneven(workload)
    # Columns have norm 1 up to rounding, which the sensitivity accounts for.
    squared = strategy.sensitivity(participation).value ** 2
    # Columns that no client may join are free in their norm.
    unused = isinstance(participation, FixedEpochs) and participation.epochs * participation.rounds_per_epoch < rounds
    equal = " with columns of equal norm" if participations > 1 or unused else ""
    bound, family = found.lower_bound * squared, f"every strategy of at most {bands} bands{equal}"
    if weights is None:
        bound, family = max((bound, family), (bounds.lower_bound(workload, participation, objective), "every strategy"))
    least = objective if weights is None else "weighted mean"
    return Optimized(strategy, workload, participation, least, found.value * squared, bound, family, found.evaluations)


def _sound(workload: Workload, strategy: Banded, errors: Array) -> bool:
    """Whether rounding has not spoilt an answer, which uneven learning rates may do."""
    sound = bool(np.isfinite(errors).all())
    if sound and workload.learning_rates and workload.rounds <= MOST_ROUNDS:
        sound = bool(np.allclose(squared_errors(workload, strategy), errors, rtol=1e-6, atol=0.0))
    return sound


def _too_uneven(workload: Workload) -> ValueError:
    rates = workload.learning_rates or (1.0,)
    return ValueError(
        f"workload: its learning rates, from {min(rates):g} to {max(rates):g}, are too uneven for float64 with momentum "
        f"{workload.momentum:g}; use dense.optimize, or toeplitz.optimize for equal ones"
    )


def _shares(weights: npt.ArrayLike | None, rounds: int, objective: str) -> Array:
    """Weights with the sum 1, ``(rounds,)``."""
    if weights is None:
        return np.full(rounds, 1 / rounds)
    if objective == "max":
        raise ValueError("weights: must be None for objective = 'max', where the largest error counts alone; use 'mean'")
    w = real_array("weights", weights, ndim=1)
    if len(w) != rounds:
        raise ValueError(f"weights has {len(w)} entries: must have one for each of {rounds} rounds")
    if (w < 0).any() or not w.any():
        raise ValueError(f"weights holds {w.min()} to {w.max()}: must not be negative, and not all 0")
    shares: Array = w / w.sum()
    return shares
