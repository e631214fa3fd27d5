"""Buffered linear Toeplitz noise (BLT): full-length correlation from a few buffers, for any number of rounds.

Letters: θ the decay of each buffer, δ = 1 − θ, ω its output scale, c_0 = 1 and c_i = Σ_l ω_l·θ_l^(i−1) the coefficients of C, n
rounds, b the separation, k participations. A pole r = 1 − δ is given by δ: where δ is 1e-9, r itself has lost half its digits.

Source: Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024, https://arxiv.org/abs/2404.16706; McMahan, Xu and Zhang 2024,
https://arxiv.org/abs/2408.08868.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hubbub._util.checks import Array, integer, open_unit, plain_numbers, real_array, rounds_count
from hubbub.mechanism.participation import Participation, covering, worst_rounds
from hubbub.mechanism.sensitivity import Sensitivity, summed
from hubbub.mechanism.strategies import matrices
from hubbub.mechanism.strategies.strategy import Description, Draw, Memory, Row, require_dense, require_round
from hubbub.mechanism.workloads import Workload

__all__ = ["MOST_STRETCHES", "BufferedLinearToeplitz", "binomial_sums", "squared_errors", "squared_sensitivity"]

# Up to this many participations the sum over them is shorter than that over the coefficients.
MOST_STRETCHES = 2**16
# A few units in the last place of each coefficient.
_ROUNDING = 1e-14
# And up to this part its sensitivity is called exact.
_EXACT = 1e-10
# Below n·δ = 1 the closed forms cancel; there the terms of the series fall at least as fast as 1/q!, so that these reach 1e-17.
_TERMS = 19


@dataclass(frozen=True)
class BufferedLinearToeplitz:
    """C with c_i = Σ_l ω_l·θ_l^(i−1) along its diagonals, and 1 on the main one; its noise needs one row of memory a buffer.

    θ is stored as δ = 1 − θ, the part that a round forgets: the best θ for many rounds is too near 1 for float64.
    :meth:`from_decays` takes θ, the ``buf_decay`` of other libraries.

    Args:
        rounds: n, at least 1.
        forgetting: δ, strictly between 0 and 1, one for each buffer.
        output_scales: ω, one for each buffer.

    Raises:
        ValueError: No buffers, not one scale for each, or a number out of range.

    Example:
        >>> BufferedLinearToeplitz(rounds=4, forgetting=(0.5,), output_scales=(0.4,)).matrix()
        array([[1. , 0. , 0. , 0. ],
               [0.4, 1. , 0. , 0. ],
               [0.2, 0.4, 1. , 0. ],
               [0.1, 0.2, 0.4, 1. ]])
    """

    rounds: int
    forgetting: tuple[float, ...]
    output_scales: tuple[float, ...]

    def __post_init__(self) -> None:
        plain_numbers(self, rounds=rounds_count)
        delta = tuple(open_unit(f"forgetting[{i}]", value) for i, value in enumerate(self.forgetting))
        omega = tuple(real_array("output_scales", self.output_scales, ndim=1).tolist())
        if len(delta) != len(omega):
            raise ValueError(f"output_scales has {len(omega)} entries: must have one for each of {len(delta)} buffers")
        object.__setattr__(self, "forgetting", delta)
        object.__setattr__(self, "output_scales", omega)

    @classmethod
    def from_decays(cls, rounds: int, decays: Sequence[float], output_scales: Sequence[float]) -> "BufferedLinearToeplitz":
        """The strategy with decays θ: each buffer keeps the part θ of itself in each round.

        Raises:
            ValueError: A decay is not strictly between 0 and 1, or so near 0 that 1 − θ is 1.

        Example:
            >>> BufferedLinearToeplitz.from_decays(10, decays=[0.75], output_scales=[0.2]).forgetting
            (0.25,)
        """
        theta = [open_unit(f"decays[{i}]", value) for i, value in enumerate(decays)]
        return cls(rounds, tuple(1 - value for value in theta), tuple(output_scales))

    @property
    def theta(self) -> tuple[float, ...]:
        """The decays, rounded; near 1, ``forgetting`` is more precise."""
        return tuple(1 - delta for delta in self.forgetting)

    @property
    def omega(self) -> tuple[float, ...]:
        """The output scales."""
        return self.output_scales

    @property
    def buffers(self) -> int:
        """The number of buffers."""
        return len(self.forgetting)

    @property
    def description(self) -> Description:
        """Words, bands and sources, for statements and reports."""
        sources = ("dvijotham2024efficient", "mcmahan2024hassle")
        return Description(f"buffered linear Toeplitz, {self.buffers} buffers", self.rounds, sources, toeplitz=True)

    @property
    def memory_rows(self) -> int:
        """The most rows that :meth:`step` remembers."""
        return self.buffers

    def coefficients(self, count: int) -> Array:
        """The first ``count`` coefficients of C, ``(count,)``."""
        c = np.zeros(integer("count", count, at_least=1, at_most=self.rounds))
        steps = np.arange(count - 1, dtype=np.float64)
        for delta, omega in zip(self.forgetting, self.output_scales, strict=True):
            c[1:] += omega * np.exp(math.log1p(-delta) * steps)
        c[0] = 1.0
        return c

    def matrix(self) -> Array:
        """C as a dense matrix, ``(rounds, rounds)``."""
        require_dense(self.rounds)
        return matrices.matrix(self.coefficients(self.rounds), self.rounds)

    def leading(self, rounds: int) -> "BufferedLinearToeplitz":
        """The first ``rounds`` rounds."""
        return BufferedLinearToeplitz(rounds, self.forgetting, self.output_scales)

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """How far one client can move C·x.

        Exact for one participation, and if no scale is negative: then the coefficients decrease from c_1 on, so that the inner
        product of two columns is largest if they are as early and as close as allowed. Otherwise a bound.

        Source: Kalinin and Lampert 2024, Theorem 2, https://arxiv.org/abs/2405.13763, with no demand on c_0.
        """
        b, k = worst_rounds(covering(participation, self.rounds), self.rounds)
        if min(self.output_scales) >= 0 and k <= MOST_STRETCHES:
            logs, omega = np.log1p(-np.array(self.forgetting)), np.array(self.output_scales)
            squared = squared_sensitivity(self.rounds, b, k, logs, omega)[0]
            return Sensitivity(math.sqrt(summed(squared, k)), exact=True, source="Kalinin and Lampert 2024, Theorem 2")
        stated = matrices.sensitivity(self.coefficients(self.rounds), self.rounds, participation)
        # Scales of both signs cancel: rounded against us.
        size = 1 + float(np.abs(self.output_scales).sum())
        rounding = _ROUNDING * k * math.sqrt(self.rounds) * size
        if min(self.output_scales) < 0:
            # What is computed decays by θ, which is 1 − δ rounded: the roundings of all rounds add up.
            rounding *= 1 + self.rounds * 2.0**-52 / _ROUNDING
        exact = stated.exact and (min(self.output_scales) >= 0 or rounding <= _EXACT * stated.value)
        return Sensitivity(stated.value + rounding, exact, stated.source)

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """Row ``round_index`` of C⁻¹z: the scaled buffers are subtracted from z, then each decays and adds the row."""
        require_round(round_index, self.rounds)
        row = draw(round_index)
        if not memory:
            return row, (row,) * self.buffers
        for omega, buffer in zip(self.output_scales, memory, strict=True):
            row = row - omega * buffer
        return row, tuple(theta * buffer + row for theta, buffer in zip(self.theta, memory, strict=True))


def squared_errors(workload: Workload, strategy: BufferedLinearToeplitz) -> Array:
    """The squared error of each released model for unit noise, ``(rounds,)``, in O(rounds) time and memory.

    The same as :func:`hubbub.mechanism.utility.squared_errors`, without a matrix.

    Raises:
        ValueError: Another number of rounds, learning rates that differ, or errors beyond float64.

    Example:
        >>> from hubbub.mechanism.workloads import prefix_sum
        >>> squared_errors(prefix_sum(rounds=3), BufferedLinearToeplitz(3, forgetting=(0.5,), output_scales=(0.5,)))
        array([1.  , 1.25, 1.5 ])
    """
    if workload.rounds != strategy.rounds:
        raise ValueError(f"workload.rounds = {workload.rounds}: must equal strategy.rounds = {strategy.rounds}")
    rate, n, d = matrices.require_equal_rates(workload), workload.rounds, strategy.buffers
    # The states are the buffers, the sum so far and, after it, momentum: how each changes in a round in which z is 0.
    change = np.zeros((d + 2, d + 2))
    change[:, :d] = -np.array(strategy.output_scales)
    change[range(d), range(d)] -= strategy.forgetting
    change[d + 1, d:] = [1.0, workload.momentum - 1]
    output = np.zeros(d + 2)
    output[d + 1 if workload.momentum else d] = 1.0
    with np.errstate(all="ignore"):
        errors: Array = rate**2 * np.cumsum(np.square(responses(change, np.ones(d + 2), output, n)))
    if not np.isfinite(errors).all():
        raise ValueError(f"output_scales = {strategy.output_scales}: the noise grows beyond float64 in {n} rounds")
    return errors


def squared_sensitivity(
    rounds: int, separation: int, participations: int, logs: Array, omega: Array
) -> tuple[float, Array, Array]:
    """The squared norm of the sum of the columns 0, b, …, (k − 1)·b of C, and its derivatives by ω and by δ, ``(buffers,)``.

    Between two participations, and after the last, each buffer only decays: k stretches, each a geometric sum. The columns
    overlap; a sum of their squared norms would leave out the cross terms. ``logs`` are log θ, and (k − 1)·b < n.
    """
    n, b, k = rounds, separation, participations
    theta = np.exp(logs)[:, None]
    m = np.arange(k)
    earlier = np.exp(np.multiply.outer(b * logs, m))
    earlier[:, 0] = 0.0
    held = np.cumsum(earlier, axis=1)  # what a buffer keeps of the participations before, over its scale
    held_slope = np.cumsum(m * earlier, axis=1) * (-b / theta)
    peaks = 1 + omega @ (held / theta)
    W = omega[:, None] * (1 + held)
    by_W = np.empty_like(W)
    value = float(peaks @ peaks)
    by_delta = omega * ((held_slope / theta + held / theta**2) @ (2 * peaks))
    for part, length in ((slice(0, k - 1), b), (slice(k - 1, k), n - (k - 1) * b)):
        if part.start == part.stop:
            continue
        own = W[:, part]
        sums, slopes = binomial_sums(length - 1, 1, logs[:, None] + logs)
        image = sums @ own
        value += float(np.vdot(own, image))
        by_W[:, part] = 2 * image
        by_delta += 2 * ((own @ own.T) * slopes) @ theta[:, 0]
    by_omega = (by_W * (1 + held)).sum(axis=1) + (held / theta) @ (2 * peaks)
    return value, by_omega, by_delta + omega * (by_W * held_slope).sum(axis=1)


def binomial_sums(n: int, order: int, logs: Array) -> tuple[Array, Array]:
    """T = Σ_{i<n} C(n−1−i, order−1)·r^i and dT/dδ for each r = 1 − δ, given as log r ≤ 0, in the shape of ``logs``.

    Order 1 is Σ_{i<n} r^i; order 2 is Σ_{i<n} (n−1−i)·r^i. In powers of δ, T = Σ_q C(n, q + order)·(−δ)^q, from which follows
    δ·T_order = C(n, order−1) − T_{order−1} with T_0 = r^n.
    """
    if n < order:
        return np.zeros_like(logs), np.zeros_like(logs)
    small = logs > -1 / n
    if small.all():
        return _near_one(n, order, logs)
    log_r = np.where(small, -1.0, logs)
    delta = -np.expm1(log_r)
    total, slope = -np.expm1(n * log_r) / delta, -n * np.exp((n - 1) * log_r)
    slope = -(total + slope) / delta
    for j in range(2, order + 1):
        total = (math.comb(n, j - 1) - total) / delta
        slope = -(total + slope) / delta
    if small.any():
        total[small], slope[small] = _near_one(n, order, logs[small])
    return total, slope


def _near_one(n: int, order: int, logs: Array) -> tuple[Array, Array]:
    """:func:`binomial_sums` by their power series, where n·δ is at most 1."""
    powers = (n * np.expm1(logs))[..., None] ** np.arange(_TERMS)
    both = powers @ _series(n, order)
    return both[..., 0], both[..., 1]


@lru_cache(maxsize=64)
def _series(n: int, order: int) -> Array:
    """The coefficients of T and dT/dδ as power series in −n·δ, ``(terms, 2)``."""
    factors = [max(0.0, (n - j) / (j + 1) / n) for j in range(order + _TERMS)]
    binomials = np.cumprod(factors)[order - 1 :]  # C(n, q + order)/n^(q + order)
    slopes = -np.arange(1, _TERMS + 1) * binomials[1:] * float(n) ** (order + 1)
    return np.stack([binomials[:-1] * float(n) ** order, slopes], axis=1)


def responses(change: Array, start: Array, output: Array, count: int) -> Array:
    """output·(I + change)^i·start for i < ``count``, ``(count,)``, in O(count·states) and no loop over i.

    Powers are kept as their difference from I, by (I + E)² = I + (2E + E²), so that a state that forgets 1e-12 of itself is
    distinguished from one that forgets nothing.

    Example:
        >>> responses(np.array([[-0.5]]), np.array([1.0]), np.array([3.0]), 4)
        array([3.   , 1.5  , 0.75 , 0.375])
    """
    rows, columns = output[None, :], start[:, None]
    while rows.shape[0] * columns.shape[1] < count:
        if rows.shape[0] ** 2 < count:
            rows = np.vstack([rows, rows + rows @ change])
        else:
            columns = np.hstack([columns, columns + change @ columns])
        change = 2 * change + change @ change
    values: Array = (columns.T @ rows.T).ravel()[:count]
    return values
