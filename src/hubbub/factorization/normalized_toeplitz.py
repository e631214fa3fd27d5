"""Banded Toeplitz strategies with columns of norm 1: their mean error, and the coefficients of least error.

C = T·D⁻¹ with T the banded Toeplitz matrix of c and D the diagonal of its column norms, which differ in the last b − 1 columns
only. B = A·D·T⁻¹ has Toeplitz rows up to row n − b, and the last b − 1 follow from them by the recursion of momentum:
B_i = B_{i−1} + M_i and M_i = β·M_{i−1} + D_i·(T⁻¹)_i.

Letters: A workload, C strategy, B = A·C⁻¹, n rounds, b bands, c coefficients, γ = 1/c the first column of T⁻¹, s = ‖c‖, β
momentum, i = n − b + p the last rows, t = n − b − j from −(b − 1) up in place of the column j, so that entry (i, j) of T⁻¹ is
γ_{t+p}.

Source: McKenna 2024, https://arxiv.org/abs/2405.15913.
"""

import math

import numpy as np

from hubbub._util.checks import Array, integer
from hubbub.factorization.bounds import lower_bound
from hubbub.factorization.lbfgs import minimize
from hubbub.factorization.optimized import Optimized, on_one_thread
from hubbub.mechanism.participation import Participation, SingleParticipation, worst_rounds
from hubbub.mechanism.strategies.matrices import correlate, divide, inverse, require_equal_rates, root_series, transposed_divide
from hubbub.mechanism.strategies.toeplitz import NormalizedToeplitz
from hubbub.mechanism.workloads import Workload

__all__ = ["optimize"]
# Entries of the last rows in memory at a time: 8 MB a matrix.
_CHUNK = 1_000_000
_SHORT, _MEMORY = 1e-6, 20


def mean_error(c: Array, rounds: int, momentum: float) -> tuple[float, Array]:
    """The mean squared error at a learning rate of 1, and its gradient; it does not depend on the scale of c.

    O(rounds·bands) time, and memory for a bounded part of the last rows.
    """
    bands = len(c)
    last = rounds - bands
    geometric = np.asarray(float(momentum) ** np.arange(rounds), dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        # The first columns of the Toeplitz parts of B and M, over s, and of T⁻¹.
        m, gamma = divide(geometric, c), inverse(c, rounds)
        b = np.cumsum(m)
        weights = np.maximum(last + 1 - np.arange(rounds), 0) / rounds
        error = float((weights * b) @ b)
    if not math.isfinite(error):
        return math.inf, c
    squares = np.cumsum(np.square(c))
    s = math.sqrt(squares[-1])
    tail, b_back, m_back, gamma_back, norms_back, s_back = _last_rows(
        gamma, s * b[: last + 1], s * m[: last + 1], np.sqrt(squares[-2::-1]), momentum, rounds
    )
    b_back = 2 * s**2 * weights * b + np.pad(s * b_back, (0, bands - 1))
    m_back = np.pad(s * m_back, (0, bands - 1)) + np.cumsum(b_back[::-1])[::-1]
    s_back = 2 * s**2 * error + s_back
    back = correlate(transposed_divide(m_back, c), m, bands) + correlate(transposed_divide(gamma_back, c), gamma, bands)
    # Column n − b + p has the first b − p coefficients.
    in_norms = np.zeros(bands)
    in_norms[: bands - 1] = np.cumsum(norms_back / np.sqrt(squares[-2::-1]))[::-1]
    return s**2 * error + tail, c * (s_back / s**2 + in_norms) - back


def _last_rows(
    gamma: Array, b: Array, m: Array, norms: Array, momentum: float, rounds: int
) -> tuple[float, Array, Array, Array, Array, float]:
    """The part of the mean in the last bands − 1 rows, and its derivatives by b, m, γ, their norms, and s times that by s.

    ``b`` and ``m`` are row n − b of B and of M from the diagonal to the left; ``norms``, ``(bands − 1,)``, of the last columns.
    """
    after = len(norms)
    padding = np.zeros(after)
    padded = np.concatenate([padding, gamma])
    windows = np.lib.stride_tricks.sliding_window_view(padded, rounds)[1:]
    b, m = np.concatenate([padding, b]), np.concatenate([padding, m])
    total, b_back, m_back, back, norms_back = 0.0, np.zeros(rounds), np.zeros(rounds), np.zeros(len(padded)), np.zeros(after)
    columns = max(1, _CHUNK // max(1, after))
    for first in range(0, rounds if after else 0, columns):
        part = slice(first, first + columns)
        window = windows[:, part]
        steps = norms[:, None] * window
        if momentum:
            # Imported here: loading it takes longer than many searches.
            from scipy import signal

            steps = signal.lfilter([1.0], [1.0, -momentum], steps, axis=0, zi=momentum * m[None, part])[0]
        steps[0] += b[part]
        B = np.cumsum(steps, axis=0)
        total += float(np.vdot(B, B)) / rounds
        B_back = np.cumsum(B[::-1], axis=0) * (2 / rounds)
        b_back[part] = B_back[-1]
        if momentum:
            B_back = signal.lfilter([1.0], [1.0, -momentum], B_back, axis=0)
            m_back[part] = momentum * B_back[-1]
        B_back = B_back[::-1]
        norms_back += np.einsum("pt,pt->p", B_back, window)
        for p in range(after):
            back[first + p + 1 : first + p + 1 + window.shape[1]] += norms[p] * B_back[p]
    through = float(b_back @ b + m_back @ m)  # s times the derivative by s
    return total, b_back[after:], m_back[after:], back[after:], norms_back, through


@on_one_thread
def optimize(
    workload: Workload,
    *,
    bands: int,
    participation: Participation = SingleParticipation(),  # noqa: B008 # a frozen value
) -> Optimized[NormalizedToeplitz]:
    """The banded Toeplitz strategy with columns of norm 1 of least mean error.

    Its largest error need not be the last one, which is why only the mean is offered: ``toeplitz.optimize`` and
    ``banded.optimize`` minimize the largest.

    Args:
        workload: A, of equal learning rates.
        bands: b, from 1 to n, at most the separation of ``participation``.
        participation: Which rounds one client may join.

    Raises:
        ValueError: Learning rates that differ, more bands than rounds or than the separation, or random participation.

    Example:
        >>> from hubbub.mechanism.workloads import prefix_sum
        >>> round(optimize(prefix_sum(rounds=64), bands=8).squared_error, 6)
        7.03965

    Source: McKenna 2024, https://arxiv.org/abs/2405.15913.
    """
    rate = require_equal_rates(workload)
    bands = integer("bands", bands, at_least=1, at_most=workload.rounds)
    separation, participations = worst_rounds(participation, workload.rounds)
    if bands > separation and participations > 1:
        raise ValueError(
            f"bands = {bands}: must be at most {separation}, the separation of {participation!r}, or columns of one client "
            "overlap; use fewer bands, or toeplitz.optimize"
        )
    n, beta = workload.rounds, workload.momentum
    start = root_series(beta, bands)
    found = minimize(lambda c: mean_error(c, n, beta), start, memory=_MEMORY, gradient_tolerance=_SHORT)
    c = found.point / np.linalg.norm(found.point)
    strategy = NormalizedToeplitz(n, tuple(c.tolist()))
    error = rate**2 * mean_error(c, n, beta)[0] * strategy.sensitivity(participation).value ** 2
    bound = lower_bound(workload, participation, "mean")
    return Optimized(strategy, workload, participation, "mean", error, bound, "every strategy", found.evaluations)
