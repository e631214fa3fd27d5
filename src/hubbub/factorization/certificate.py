"""A lower bound on the error of every banded strategy, from a nearly optimal one by duality.

Letters as in :mod:`hubbub.factorization.banded`; M = Aᵀ·diag(w)·A, X = CᵀC, V a symmetric matrix, V ≥ 0, without off-diagonal
entries in the band.

For every X of b bands with ones on the diagonal tr(V·X) = tr V, so that tr(M·X⁻¹) = tr(M·X⁻¹) + tr(V·X) − tr V. The first
two together are at least 2·T, with T the trace of (V^(1/2)·M·V^(1/2))^(1/2). As V may be scaled, tr(M·X⁻¹) ≥ T²/tr V. A
diagonal of X below 1 only makes tr(V·X) smaller: the bound holds for columns of norm at most 1.

At the optimum V = X⁻¹·M·X⁻¹ attains it. Near the optimum that matrix has small entries in the band, which are the gradient:
set to 0 they leave an admissible V. With V = L·Lᵀ, T is the sum of the singular values of W^(1/2)·A·L. Cheaper bounds on T,
from Cholesky factors, leave 5 to 30 times the gap and need as many more evaluations as they save.

Source: Denisov et al. 2022, https://arxiv.org/abs/2202.08312, for the dual without bands; Choquette-Choo et al. 2023,
https://arxiv.org/abs/2306.08153, for the problem with bands.
"""

import math

import numpy as np
from scipy.linalg.blas import dsyrk, dtrsm
from scipy.linalg.lapack import dpotrf, dtrtri

from hubbub._util.checks import Array
from hubbub.mechanism.strategies.banded import Banded
from hubbub.mechanism.workloads import Workload

# Beyond, the proof takes minutes and gigabytes.
MOST_ROUNDS = 5000

_EPSILON = float(np.finfo(np.float64).eps)


def lower_bound(C: Array, workload: Workload, weights: Array) -> float:
    """A lower bound on Σ w_i·‖(A·C⁻¹)_i‖² over every C of as many bands with columns of norm at most 1.

    The nearer C, ``(rounds, bands)``, is to the optimum, the tighter it is. O(n³) time, about 15 evaluations of the error at n
    = 2000 and b = 400, and O(n²) memory.
    """
    rounds = len(C)
    V = _dual(C, workload.inverse_bands(), weights)
    if not np.isfinite(V).all():
        return 0.0
    shift = 0.0
    while (factor := dpotrf(V, lower=1, clean=1))[1]:
        # A shift of the diagonal makes V ≥ 0: it stays admissible, and increases tr V.
        more = shift or 1e-12 * float(np.abs(V).max()) - float(np.linalg.eigvalsh(V)[0])
        if not (0 < more < math.inf):
            return 0.0
        V[np.diag_indices(rounds)] += more
        shift += more
    # A Cholesky factor that exists proves V ≥ 0 up to this much on each diagonal entry (Rump 2006); T only grows with it.
    total = math.fsum(np.diagonal(V)) * (1 + 8 * rounds * (rounds + 1) * _EPSILON)
    # Entries of W^(1/2)·A·L are sums of at most n numbers of both signs.
    lost = 4 * rounds * _EPSILON * float(np.linalg.norm(_queried(np.abs(factor[0]), workload, weights)))
    singular = np.linalg.svd(_queried(np.ascontiguousarray(factor[0]), workload, weights), compute_uv=False)
    T = math.fsum(singular) - math.sqrt(rounds) * lost
    return max(0.0, T) ** 2 / total * (1 - 8 * _EPSILON)


def bound_on_norm(U: Array) -> float:
    """An upper bound on the spectral norm of U, tight if that is near 1; O(n³) time.

    Example:
        >>> 1 <= bound_on_norm(np.eye(3)) < 1 + 1e-10
        True
    """
    n = U.shape[1]
    gram: Array = dsyrk(1.0, U, trans=1, lower=1)
    # A Cholesky factor that exists proves this up to rounding (Rump 2006), also that of the products.
    lost: float = 4 * (n + len(U)) * _EPSILON * (1 + np.square(U).sum().item())
    excess = 1e-11
    while excess < 1:
        room = np.asfortranarray(-gram)
        room[np.diag_indices(n)] += 1 + excess
        if not dpotrf(room, lower=1, overwrite_a=1)[1]:
            return math.sqrt(1 + excess + lost)
        excess *= 4
    norm: float = np.linalg.norm(U).item()
    return norm * (1 + lost)


def _dual(C: Array, inverse_bands: Array, weights: Array) -> Array:
    """X⁻¹·M·X⁻¹ with zeros for the off-diagonal entries in the band; exactly symmetric."""
    rounds, bands = C.shape
    strategy = np.asfortranarray(Banded(C.T).matrix())
    # K = C·A⁻¹, column by column a combination of at most three columns of C.
    K = np.zeros_like(strategy)
    for e, diagonal in enumerate(inverse_bands):
        K[:, : rounds - e] += strategy[:, e:] * diagonal[: rounds - e]
    B, _ = dtrtri(K, lower=1, overwrite_c=1)
    B *= np.sqrt(weights)[:, None]
    # F = B·C⁻ᵀ, V = FᵀF.
    F: Array = dtrsm(1.0, strategy, B, side=1, lower=1, trans_a=1, overwrite_b=1)
    V: Array = dsyrk(1.0, F, trans=1, lower=1)
    for d in range(1, bands):
        np.fill_diagonal(V[d:], 0.0)
    V += np.tril(V, -1).T
    return V


def _queried(V: Array, workload: Workload, weights: Array) -> Array:
    """(W^(1/2)·A·V)ᵀ, in the memory of V.

    By the momentum buffer and the models themselves, m ← βm + V_i and θ ← θ + η_i·m: A⁻¹ has differences of reciprocal learning
    rates, in which uneven ones lose their digits.
    """
    rates = 1 / workload.inverse_bands()[0]
    buffer, model = np.zeros(V.shape[1]), np.zeros(V.shape[1])
    for i, rate in enumerate(rates.tolist()):
        buffer *= workload.momentum
        buffer += V[i]
        model += rate * buffer
        V[i] = model
    V *= np.sqrt(weights)[:, None]
    return np.ascontiguousarray(V.T)
