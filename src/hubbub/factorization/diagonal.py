"""The dual of the least error with one weight for each class of rounds, in time linear in the rounds.

Letters: A workload, W and V diagonal matrices of weights w and v ≥ 0, X = CᵀC, M = Aᵀ·W·A, L = A⁻¹ lower banded, t = tr of
(V^(1/2)·M·V^(1/2))^(1/2), classes of rounds with Σ X_ii ≤ sensitivity² over each.

Whatever C: Σ_i w_i·‖(A·C⁻¹)_i‖² = tr M·X⁻¹ ≥ t² / tr V·X by the inequality of Cauchy and Schwarz, and tr V·X is at most
sensitivity² times the sum over classes of v where v is the same throughout a class. The largest t² / Σ v is a fixed point: v of
a class becomes Σ v_i·X_ii there, and for the largest error w_i becomes w_i·E_i, with X and the errors E those of the optimum
for the v and w before.

Source: Denisov et al. 2022, https://arxiv.org/abs/2202.08312 (the fixed point for one participation and the mean error).
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack

from hubbub._checks import Array
from hubbub.factorization.anderson import fixed_point
from hubbub.factorization.pencils import column_gram, inverse_diagonal, rounding, row_gram
from hubbub.factorization.poles import Poles, inverse_root_poles
from hubbub.factorization.smoothing import proved_trace, smoothed_diagonal
from hubbub.workloads import Workload

__all__ = ["Classes", "Dual", "Effort", "alone", "maximize"]

# No weight falls below this part of their mean: some would vanish, but for little gain.
_LEAST_WEIGHT = {"mean": 1e-8, "max": 1e-6}
# A round that no client joins gets this part of the least weight where a weight must not be 0.
_UNJOINED = 1e-4
# Where rounding may take more of a diagonal than this, it is computed without subtractions, ten times as slowly.
_MOST_ROUNDING = 1e-4
_EPSILON = float(np.finfo(np.float64).eps)


# Which class each round is of, ``(rounds,)``; −1 where no client may join.
Classes = npt.NDArray[np.intp]


class Effort(NamedTuple):
    """How near to go: the largest change of a weight's logarithm, evaluations at most, and the tolerance of the poles."""

    residual: float
    evaluations: int
    poles: float


class Dual(NamedTuple):
    """A proved bound at sensitivity 1, and the weights that prove it: X = Σ c_q·(L·W⁻¹·Lᵀ + s_q·V)⁻¹ is nearly optimal.

    The bound is t² / Σ v for the exact weights, but for t: no more than it, and less by what poles and rounding take
    (:func:`hubbub.factorization.smoothing.proved_trace`). ``v`` and ``w`` are ``(rounds,)``, w sums to 1 and v to what makes X
    of sensitivity about 1.
    """

    bound: float
    v: Array
    w: Array
    poles: Poles
    residual: float
    evaluations: int


def alone(rounds: int) -> Classes:
    """Each round a class of its own: one participation."""
    return np.arange(rounds)


def maximize(workload: Workload, classes: Classes, objective: str, effort: Effort) -> Dual:
    """The largest dual value found within an effort: for any effort a proved bound on every strategy's error.

    Args:
        workload: A.
        classes: Of rounds that one client may join together: Σ X_ii over each is at most sensitivity².
        objective: ``"mean"``, for w = 1/n, or ``"max"``.
        effort: When to stop.
    """
    n, bands = workload.rounds, workload.inverse_bands()
    joined = classes >= 0
    count = int(classes.max()) + 1

    def weights(logarithms: Array) -> tuple[Array, Array]:
        v = np.where(joined, _normalized(logarithms[:count])[classes], 0.0)
        return v, _normalized(logarithms[count:]) if objective == "max" else np.full(n, 1 / n)

    def improved(logarithms: Array) -> Array:
        v, w = weights(logarithms)
        gram = row_gram(bands, 1 / w)
        poles = _resolving(bands, gram, v, w, effort.poles)
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
        return np.concatenate([np.maximum(_centered(part), math.log(_LEAST_WEIGHT[objective] / len(part))) for part in parts])

    def important(logarithms: Array) -> Array:
        # Weights that vanish at the optimum fall for ever; they must not steer the others.
        sizes = [np.exp(_centered(part)) * len(part) for part in np.split(logarithms, [count]) if len(part)]
        return np.asarray(np.minimum(np.sqrt(np.concatenate(sizes)), 1.0))

    start = _log_shares(np.bincount(classes[joined], np.sqrt(n - np.flatnonzero(joined)), count))
    if objective == "max":
        start = np.concatenate([start, _log_shares(np.ones(n))])
    found = fixed_point(
        improved,
        start,
        tolerance=effort.residual,
        most=effort.evaluations,
        within=floored,
        importance=important,
    )
    v, w = weights(found.point)
    gram = row_gram(bands, 1 / w)
    poles = _resolving(bands, gram, v, w, effort.poles)
    trace = proved_trace(workload, w, v, poles)
    first = np.unique(classes[joined], return_index=True)[1]
    # Weights are what they are, with a sum of 1 but for rounding.
    sums = math.fsum(v[joined][first]) * math.fsum(w) * (1 + 8 * _EPSILON)
    scaled = Poles(poles.shifts / trace**2, poles.weights / trace)
    return Dual(trace**2 / sums, trace**2 * v, w, scaled, found.residual, found.evaluations)


def _diagonal(workload: Workload, gram: Array, w: Array, v: Array, poles: Poles, *, transposed: bool = False) -> Array:
    """The diagonal of Σ c_q·(P + s_q·V)⁻¹ for P = ``gram``, the inverse of Aᵀ·W·A, or transposed of A·W·Aᵀ."""
    try:
        if rounding(gram) <= _MOST_ROUNDING:
            return inverse_diagonal(gram, v, poles)
    except ArithmeticError:
        pass
    return smoothed_diagonal(workload, w, v, poles, transposed=transposed)


def _centered(logarithms: Array) -> Array:
    """The same weights with a sum of 1."""
    largest = logarithms.max()
    return np.asarray(logarithms - largest - math.log(np.exp(logarithms - largest).sum()))


def _normalized(logarithms: Array) -> Array:
    return np.asarray(np.exp(_centered(logarithms)))


def _log_shares(parts: npt.NDArray[np.floating | np.integer]) -> Array:
    return _centered(np.log(np.maximum(parts, 1e-300)))


def _resolving(bands: Array, gram: Array, v: Array, w: Array, tolerance: float) -> Poles:
    """Poles for the eigenvalues of the pencil of P = ``gram`` and V.

    The interval only decides how good the poles are, not whether their sum is safe.
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
    highest = float((rows[v > 0] / v[v > 0]).max())
    return inverse_root_poles(1 / largest, max(highest, 1 / largest), tolerance)
