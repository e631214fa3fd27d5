"""Below which no Toeplitz strategy comes, proved: the search is not convex, and yet its answer has a certificate.

Let β·c = a modulo xⁿ, W = diag(w) the weights of the squares of β, J the reversal. For every series f

    ⟨J·f, a⟩ = [xⁿ⁻¹] f·β·c = ⟨J·β, T_f·c⟩ ≤ ‖W^½·β‖ · ‖(J·W·J)^{−½}·T_f·c‖,

so the error Σ w_j·β_j² times ‖c‖² is at least ⟨J·f, a⟩² / λ, with λ the largest eigenvalue of T_fᵀ·(J·W·J)⁻¹·T_f on the series
that c is taken from: those of at most b coefficients, where c is banded. At a stationary c, f = J·W·β/c makes c an eigenvector;
where it is the first one, c is the best of all, and the bound equals its error: it has been so wherever we looked at columns
that do not run out of rounds.

Letters: those of :mod:`hubbub.factorization.toeplitz_search`; p_k in how many of a client's columns coefficient k counts.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from hubbub._util.checks import Array, one_of
from hubbub.factorization import toeplitz_search
from hubbub.factorization.bounds import lower_bound
from hubbub.factorization.lbfgs import minimize
from hubbub.factorization.optimized import Objective, Optimized
from hubbub.factorization.threads import on_one_thread
from hubbub.factorization.toeplitz_search import error_and_movement, least_error
from hubbub.mechanism.participation import MinSeparation, Participation, SingleParticipation, worst_rounds
from hubbub.mechanism.strategies import matrices
from hubbub.mechanism.strategies.matrices import columns_at, columns_at_transposed, correlate, divide, multiply
from hubbub.mechanism.strategies.toeplitz import BandedToeplitz, square_root_of
from hubbub.mechanism.workloads import Workload

__all__ = ["banded_bound", "banded_inverse_bound", "least_error_and_bound", "optimize", "root_bound"]


# Multiplications that a bound may cost: some tenths of a second.
_MOST_WORK = 1e10
# Entries of the part of a matrix that is held at a time: 32 MB.
_CHUNK = 4_000_000
# Relative; above what rounding does to a few operations. Sums and transforms have their own allowance.
_MARGIN = 1e-12
_EPSILON = float(np.finfo(np.float64).eps)
# A bound on an eigenvalue that is further above it is worth the whole matrix.
_LOOSE = 1e-9
# Of the search for a second eigenvector.
_STEPS = 12
# A proof that leaves less to gain needs no second search, whose gradient is as short relative to the value.
_TIGHT, _SHORT, _MEMORY = 1e-6, 1e-6, 20


def root_bound(root: Array, objective: str) -> float:
    """Below which no Toeplitz C comes at one participation, given the square root of A; 0 if nothing is known.

    Here f = xⁱ·s(1/x)/s with s the first i + 1 coefficients of the root. If they are positive and do not increase, s has no
    zero in the unit disc (Eneström and Kakeya): |f| ≤ 1 there, λ ≤ 1, and the squared error of row i times ‖c‖² is at least
    (Σ s_k²)². The root itself attains it in the last row.

    Source: for prefix sums Dvijotham et al. 2024, https://arxiv.org/abs/2404.16706; the argument is Landau's, of 1913.

    Example:
        >>> round(root_bound(np.array([1.0, 0.5]), "max"), 9)
        1.5625
    """
    if not (root > 0).all() or not (np.diff(root) <= 0).all():
        return 0.0
    rows = np.square(np.cumsum(np.square(root)))
    return float(rows[-1] if objective == "max" else rows.mean()) * (1 - _MARGIN - 4 * len(root) * _EPSILON)


def banded_bound(a: Array, weights: Array, c: Array, separation: int, participations: int) -> float:
    """Below which no banded Toeplitz C of as many bands as c comes, those at most ``separation``; 0 if too much work.

    Args:
        a: ``(rounds,)``, the first column of the workload.
        weights: ``(rounds,)``, positive.
        c: ``(bands,)``, the best that was found; the bound holds for whatever it is.
        separation, participations: See :func:`hubbub.mechanism.participation.worst_rounds`.
    """
    n, b = len(a), len(c)
    counted = np.sqrt(columns_at_transposed(np.ones(n), b, separation, participations))
    reversed_beta = divide(a, c)[::-1]
    f = divide(weights[::-1] * reversed_beta, c)
    form = _Form(f, 1 / weights[::-1], counted)
    reached = _inner_product(f, a[::-1])
    point = _unit(c * counted)
    largest = form.largest(point)
    if largest * (1 - _LOOSE) > form.quotient(point):
        if n * b**2 > _MOST_WORK:
            return _quotient(reached, largest)
        whole = float(linalg.eigvalsh(form.matrix(), subset_by_index=[b - 1, b - 1])[0])
        largest = min(largest, whole + 4 * (n + b) * _EPSILON * form.trace())
    return _quotient(reached, largest)


def least_error_and_bound(
    a: Array, weights: Array, start: Array, separation: int, participations: int
) -> tuple[Array, float, int]:
    """The best banded Toeplitz c of at most ``separation`` bands, a bound on all of them, and how many evaluations it took.

    Where the last columns of a client run out of rounds there may be several valleys and the proof is not tight: then the
    search starts again elsewhere, and the bound is also that of the participations whose columns are whole.
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
        image = multiply(self.f, x / self.counted, len(self.f)) * self.scales
        return correlate(image, self.f, len(x)) / self.counted

    def quotient(self, unit: Array) -> float:
        return float(unit @ self(unit))

    def trace(self) -> float:
        """The sum of the eigenvalues."""
        return float((correlate(self.scales, np.square(self.f), len(self.counted)) / np.square(self.counted)).sum())

    def rounding(self) -> float:
        """How far a computed image of a unit vector may be from its own, by recursion or by transforms."""
        bands, n = len(self.counted), len(self.f)
        transforms = math.log2(2 * n) * float(self.scales.max()) * float(self.f @ self.f) / float(np.square(self.counted).min())
        return 8 * _EPSILON * (bands * self.trace() + transforms)

    def largest(self, point: Array) -> float:
        """A bound on the largest eigenvalue, as good as the unit vector ``point`` is the first eigenvector.

        On what is orthogonal to the point, the largest eigenvalue is at most the sum of all, and closer: at most that of one
        more vector there, or the sum of the others.
        """
        image = self(point)
        quotient = float(point @ image)
        residual = float(np.linalg.norm(image - quotient * point))
        rest = max(0.0, self.trace() - quotient)
        beside, second = rest, point
        for step in range(_STEPS):
            if beside < 0.9 * quotient or len(point) == 1:
                break
            if not step:
                second = np.linspace(-1.0, 1.0, len(point))
            second = _unit(second - (point @ second) * point)
            image = self(second)
            image -= (point @ image) * point
            along = float(second @ image)
            beside = min(beside, _two_by_two(along, float(np.linalg.norm(image - along * second)), max(0.0, rest - along)))
            second = image
        return _two_by_two(quotient, residual, beside) + self.rounding()

    def matrix(self) -> Array:
        """``(bands, bands)``."""
        bands = len(self.counted)
        gram = np.zeros((bands, bands))
        columns, roots = _columns(self.f, bands), np.sqrt(self.scales)
        rows = max(1, _CHUNK // bands)
        for first in range(0, len(self.f), rows):
            part = columns[first : first + rows] * roots[first : first + rows, None]
            gram += part.T @ part
        return gram / np.outer(self.counted, self.counted)


def banded_inverse_bound(a: Array, weights: Array, d: Array, separation: int, participations: int) -> float:
    """Below which no C with an inverse of as many bands as d comes; 0 if too much work.

    With v the sum of a client's worst columns, β·v = a·q for q = 1 + x^separation + …, and ‖v‖ is no more than the sensitivity
    whatever the signs. The factor of few coefficients is β = a·d here: the bound is ⟨J·h, q⟩² / λ for h = J·v/d and λ the
    largest quotient of ‖T_h·d‖² and Σ w_j·β_j².

    Args:
        a: ``(rounds,)``, the first column of the workload.
        weights: ``(rounds,)``, positive.
        d: ``(bands,)``, the best first column of C⁻¹ that was found; the bound holds for whatever it is.
        separation, participations: See :func:`hubbub.mechanism.participation.worst_rounds`.
    """
    n, b = len(a), len(d)
    if n * b**2 > _MOST_WORK:
        return 0.0
    unit = np.zeros(n)
    unit[0] = 1.0
    v = columns_at(divide(unit, d), n, separation, participations)
    h = divide(v[::-1], d)
    triangle = linalg.qr(_columns(a, b) * np.sqrt(weights)[:, None], mode="r", overwrite_a=True)[0][:b]
    quotients = linalg.solve_triangular(triangle, _columns(h, b).T, trans="T")
    largest = float(linalg.eigvalsh(quotients @ quotients.T, subset_by_index=[b - 1, b - 1])[0])
    reached = _inner_product(h[::-1][: separation * participations : separation], np.ones(1))
    # The triangle is that of columns a little different, and so are its quotients, by as much as its condition makes of it.
    return _quotient(reached, largest) * max(0.0, 1 - 16 * (n + b) * _EPSILON * float(np.linalg.cond(triangle)))


def _inner_product(f: Array, a: Array) -> float:
    """No more than |⟨f, a⟩|, where entries of a are sums of at most as many numbers of one sign."""
    products = f * a
    return max(0.0, abs(math.fsum(products)) - 4 * len(f) * _EPSILON * math.fsum(np.abs(products)))


def _quotient(reached: float, largest: float) -> float:
    bound = reached**2 / largest * (1 - _MARGIN)
    return bound if math.isfinite(bound) else 0.0


def _two_by_two(one: float, coupling: float, other: float) -> float:
    """The larger eigenvalue of the symmetric matrix with this diagonal."""
    return (one + other) / 2 + math.hypot((one - other) / 2, coupling)


def _unit(x: Array) -> Array:
    return x / float(np.linalg.norm(x))


def _columns(series: Array, bands: int) -> Array:
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
    """The banded Toeplitz strategy of least error, with a proof that none is better.

    While the bands are no more than the separation the proof is one for this family, as a rule tight to 1e-12. With more bands
    the search is among coefficients that are not negative (and do not increase, where rounds need not be evenly spaced), whose
    sensitivity is exact.

    Args:
        workload: A, of equal learning rates.
        bands: b, from 1 to n.
        participation: What one client may join.
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
    weights = toeplitz_search.row_weights(workload.rounds, one_of("objective", objective, ("mean", "max")))
    separation, participations = worst_rounds(participation, workload.rounds)
    a, bounds = workload.coefficients(), []
    if bands <= separation:
        c, bound, evaluations = least_error_and_bound(a, weights, start, separation, participations)
        bounds.append((bound, f"every banded Toeplitz strategy of at most {bands} bands"))
    else:
        spaced = isinstance(participation, MinSeparation)
        c, evaluations = toeplitz_search.least_error(a, weights, start, separation, participations, monotone=spaced)
    c = c / np.linalg.norm(c)
    strategy = BandedToeplitz(workload.rounds, tuple(c.tolist()))
    error = toeplitz_search.error(a, weights, c) * strategy.sensitivity(participation).value ** 2
    if not bounds or bounds[0][0] < error * (1 - _TIGHT):
        bounds.append((lower_bound(workload, participation, objective), "every strategy"))
        root = matrices.root_series(workload.momentum, workload.rounds)
        bounds.append((float(a[0] ** 2) * root_bound(root, objective), "every Toeplitz strategy"))
    bound, family = max(bounds)
    return Optimized(strategy, workload, participation, objective, error, bound, family, evaluations)
