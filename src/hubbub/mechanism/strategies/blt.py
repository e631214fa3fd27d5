"""Buffered linear Toeplitz noise: full-length correlation from a few buffers, whatever the number of rounds.

Letters: θ the decay of each buffer, δ = 1 − θ, ω its output scale, c_0 = 1 and c_i = Σ_l ω_l·θ_l^(i−1) the coefficients of C.

Source: Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024, https://arxiv.org/abs/2404.16706; McMahan, Xu and Zhang 2024,
https://arxiv.org/abs/2408.08868.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hubbub._util.checks import Array, integer, open_unit, real_array, rounds_count
from hubbub.mechanism.participation import Participation, covering, worst_rounds
from hubbub.mechanism.sensitivity import Sensitivity
from hubbub.mechanism.strategies import matrices
from hubbub.mechanism.strategies.blt_sums import Problem, squared_sensitivity
from hubbub.mechanism.strategies.blt_sums import squared_errors as inverse_errors
from hubbub.mechanism.strategies.strategy import Draw, Memory, Row, require_dense, require_round
from hubbub.mechanism.workloads import Workload

__all__ = ["MOST_STRETCHES", "BufferedLinearToeplitz", "squared_errors"]

# Up to this many participations the sum over them is shorter than that over the coefficients.
MOST_STRETCHES = 2**16
# A few units in the last place of each coefficient.
_ROUNDING = 1e-14


@dataclass(frozen=True)
class BufferedLinearToeplitz:
    """C with c_i = Σ_l ω_l·θ_l^(i−1) along its diagonals, and 1 on the main one; its noise needs one row of memory a buffer.

    θ is kept as what a round forgets, δ = 1 − θ: the best θ for many rounds is so near 1 that θ would lose its digits.
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

    sources: ClassVar[tuple[str, ...]] = ("dvijotham2024efficient", "mcmahan2024hassle")

    def __post_init__(self) -> None:
        rounds_count(self.rounds)
        delta = tuple(open_unit(f"forgetting[{i}]", value) for i, value in enumerate(self.forgetting))
        omega = tuple(real_array("output_scales", self.output_scales, ndim=1).tolist())
        if len(delta) != len(omega):
            raise ValueError(f"output_scales has {len(omega)} entries: must have one for each of {len(delta)} buffers")
        object.__setattr__(self, "forgetting", delta)
        object.__setattr__(self, "output_scales", omega)

    @classmethod
    def from_decays(cls, rounds: int, decays: Sequence[float], output_scales: Sequence[float]) -> "BufferedLinearToeplitz":
        """The strategy of buffers that keep the part θ of themselves in each round.

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
        """The decays, rounded: where they are near 1, ``forgetting`` knows more."""
        return tuple(1 - delta for delta in self.forgetting)

    @property
    def omega(self) -> tuple[float, ...]:
        """The output scales."""
        return self.output_scales

    @property
    def buffers(self) -> int:
        """How many buffers there are."""
        return len(self.forgetting)

    @property
    def words(self) -> str:
        """What it is, for a statement."""
        return f"buffered linear Toeplitz, {len(self.output_scales)} buffers"

    @property
    def matrix_bands(self) -> int:
        """At most so many diagonals C has."""
        return self.rounds

    @property
    def memory_rows(self) -> int:
        """The most rows that a step carries to the next."""
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

        Exact for one participation, and where no scale is negative: then the coefficients decrease from c_1 on, so that the
        inner product of two columns is largest where they are as early and as near to one another as may be. Otherwise a bound.

        Source: Kalinin and Lampert 2024, Theorem 2, https://arxiv.org/abs/2405.13763, with no demand on c_0.
        """
        pattern = covering(participation, self.rounds)
        b, k = worst_rounds(pattern, self.rounds)
        if min(self.output_scales) >= 0 and k <= MOST_STRETCHES:
            logs, omega = np.log1p(-np.array(self.forgetting)), np.array(self.output_scales)
            squared = squared_sensitivity(Problem(self.rounds, b, k, mean=False), logs, omega)[0]
            return Sensitivity(math.sqrt(squared), exact=True, source="Kalinin and Lampert 2024, Theorem 2")
        stated = matrices.sensitivity(self.coefficients(self.rounds), self.rounds, pattern)
        # Scales of both signs cancel: rounded against us.
        size = 1 + float(np.abs(self.output_scales).sum())
        return Sensitivity(stated.value + _ROUNDING * k * math.sqrt(self.rounds) * size, stated.exact, stated.source)

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """Row ``round_index`` of C⁻¹z: what the buffers put out is taken away, and each takes up what is left."""
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
    rate, n = matrices.require_equal_rates(workload), workload.rounds
    errors = rate**2 * inverse_errors(np.array(strategy.forgetting), np.array(strategy.output_scales), workload.momentum, n)
    if not np.isfinite(errors).all():
        raise ValueError(f"output_scales = {strategy.output_scales}: the noise grows beyond float64 in {n} rounds")
    return errors
