"""Stamping: one strategy repeated with fresh noise for each block of rounds, C = I ⊗ C₀.

Columns of different stamps are orthogonal, so the sensitivity to one round in each follows from their norms. Prefix sums
continue from the last estimate of each finished stamp.

Letters: C₀ the matrix of a stamp ``(n₀, n₀)``, n rounds.

Source: Choquette-Choo et al. 2023, "Multi-Epoch Matrix Factorization Mechanisms", https://arxiv.org/abs/2211.06530.
"""

import math
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt
from scipy.linalg import block_diag

from hubbub._util.checks import Array, Rebuilt, integer, plain_numbers, real_array, rounds_count
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, Participation, covering
from hubbub.mechanism.sensitivity import Sensitivity, bands_of, gram, is_triangular, of_columns, of_matrix, summed
from hubbub.mechanism.strategies.matrices import checked_triangular, triangular_form
from hubbub.mechanism.strategies.strategy import (
    Description,
    Draw,
    Memory,
    Row,
    Strategy,
    require_dense,
    require_round,
    substituted,
)

__all__ = ["Stamped", "stamp"]

# Up to this many rounds the whole matrix is searched too if a client may come twice within a stamp.
_DENSE = 1024


@dataclass(frozen=True, eq=False)
class Stamped(Rebuilt):
    """Copies of one triangular matrix along the diagonal.

    Args:
        C: ``(n₀, n₀)``, lower triangular, no zero on the diagonal: the stamp. Copied, and cut to ``rounds``.
        rounds: n of all stamps together; the last one may be cut.

    Raises:
        ValueError: C is not square, not lower triangular, has a zero on its diagonal, or an entry that is not finite.

    Example:
        >>> Stamped(C=[[1.0, 0.0], [0.5, 1.0]], rounds=3).matrix()
        array([[1. , 0. , 0. ],
               [0.5, 1. , 0. ],
               [0. , 0. , 1. ]])
    """

    C: npt.ArrayLike
    rounds: int

    def __post_init__(self) -> None:
        plain_numbers(self, rounds=rounds_count)
        C = checked_triangular(self.C)
        object.__setattr__(self, "C", real_array("C", C[: self.rounds, : self.rounds], ndim=2))

    @property
    def stamp(self) -> Array:
        """C₀, read-only."""
        return np.asarray(self.C)

    @cached_property
    def bands(self) -> int:
        """The number of diagonals up to the last that is not 0, the main one counted."""
        return bands_of(self.stamp)

    @property
    def description(self) -> Description:
        """Words, bands and sources, for statements and reports."""
        return Description(f"copies of one strategy of {len(self.stamp)} rounds", self.bands, ("choquettechoo2023multi",))

    @property
    def memory_rows(self) -> int:
        """The most rows that :meth:`step` remembers; none from one stamp to the next."""
        return self.bands - 1

    def matrix(self) -> Array:
        """C as a dense matrix, ``(rounds, rounds)``."""
        require_dense(self.rounds)
        return np.asarray(block_diag(*self._parts()))

    def leading(self, rounds: int) -> "Stamped":
        """The first ``rounds`` rounds."""
        return Stamped(self.stamp, rounds)

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """How far one client can move C·x.

        Exact if a client comes at most once within a stamp, or if it is exact for a single stamp; otherwise a bound,
        for separations shorter than a stamp and many rounds.
        """
        match pattern := covering(participation, self.rounds):
            case FixedEpochs(epochs, b) if b < len(self.stamp):
                stated = self._fixed_epochs(epochs, b)
            case MinSeparation(b) if b < len(self.stamp):
                stated = self._separated(pattern)
            case _:
                squares = [np.square(part).sum(axis=0) * summed(1.0, len(part)) for part in self._parts()]
                return of_columns(np.concatenate(squares), pattern)
        if stated.exact or self.rounds > _DENSE:
            return stated
        whole = of_matrix(self.matrix(), pattern)
        return min(stated, whole, key=lambda answer: (answer.value, not answer.exact))

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """Row ``round_index`` of C⁻¹z, by forward substitution within its stamp."""
        require_round(round_index, self.rounds)
        t = round_index % len(self.stamp)
        row, kept = substituted(self.stamp[t, : t + 1], draw(round_index), memory, self.bands)
        return row, () if t + 1 == len(self.stamp) else kept

    def _parts(self) -> list[Array]:
        """C₀ for each stamp, the last one cut."""
        whole, rest = divmod(self.rounds, len(self.stamp))
        return [self.stamp] * whole + [self.stamp[:rest, :rest]] * bool(rest)

    def _fixed_epochs(self, epochs: int, b: int) -> Sensitivity:
        """The sum over stamps for a client of rounds r, r + b, …: stamps are orthogonal, and signs are free in each."""
        parts = self._parts()
        grams = {len(part): gram(part, len(part)) for part in (parts[0], parts[-1])}
        last = min(self.rounds, epochs * b)

        @cache
        def within(first: int, stop: int, length: int) -> tuple[float, bool]:
            """The squared bound of the rounds first, first + b, … of a stamp, and whether some client attains it."""
            block = grams[length][first:stop:b, first:stop:b]
            return float(np.abs(block).sum()), len(block) <= 2 or bool((block >= 0).all())

        worst, exact = 0.0, True
        for r in range(min(b, last)):
            total, attained = 0.0, True
            for start, part in zip(range(0, last, len(self.stamp)), parts, strict=False):
                first = (r - start) % b if start > r else r - start
                moved, alike = within(first, min(len(part), last - start), len(part))
                total, attained = total + moved, attained and alike
            if total > worst:
                worst, exact = total, attained
        return Sensitivity(
            math.sqrt(summed(worst, len(parts))), exact, "every set of rounds, stamp by stamp, Choquette-Choo et al. 2023"
        )

    def _separated(self, pattern: MinSeparation) -> Sensitivity:
        """The sum of the sensitivities of the stamps that a client can reach: exact for a client of every round."""
        shared = min(pattern.max_participations, -(-len(self.stamp) // pattern.min_separation))
        stamps = [len(part) for part in self._parts()][: pattern.max_participations]
        within = MinSeparation(pattern.min_separation, shared)
        answers = {length: of_matrix(self.stamp[:length, :length], within) for length in set(stamps)}
        everything = pattern.min_separation == 1 and pattern.max_participations >= self.rounds
        return Sensitivity(
            math.sqrt(math.fsum(answers[length].value ** 2 for length in stamps)),
            exact=(everything or len(stamps) == 1) and all(answer.exact for answer in answers.values()),
            source=f"sum over stamps: {answers[stamps[0]].source}",
        )


def stamp(strategy: Strategy, times: int) -> Stamped:
    """A strategy used ``times`` times in a row, each with fresh noise.

    A strategy that is not square and triangular, such as a tree, is replaced by the triangular matrix with the same inner
    products of columns, which has the same sensitivity and the best decoder.

    Args:
        strategy: Of n₀ rounds.
        times: How many stamps, at least 1.

    Raises:
        ValueError: ``times`` is no whole number above 0, or the strategy's matrix has not full column rank.

    Example:
        >>> from hubbub.mechanism.strategies import BinaryTree
        >>> stamp(BinaryTree(rounds=8), times=2).sensitivity(FixedEpochs(2, 8)).value ** 2
        8.000000000000002
    """
    C = strategy.matrix()
    C = C if is_triangular(C) else triangular_form(C)
    return Stamped(C, integer("times", times, at_least=1) * len(C))
