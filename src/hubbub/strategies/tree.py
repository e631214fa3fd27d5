"""Tree aggregation: every dyadic interval of rounds has one noise of its own.

C has a row for each dyadic interval that is complete within the rounds, in the order of completion. How sums are estimated
from those noisy intervals is the decoder's choice, which changes N and leaves C:

* ``"plain"`` adds up the at most log₂ n intervals that tile a prefix;
* ``"online"`` replaces each of them by its best estimate from all the intervals inside it;
* ``"full"`` uses all that there is, A·C⁺, with the least error that any unbiased decoder has.

All three stream with the memory of log₂ n rows. The noise of the full decoder is Gaussian with covariance X⁻¹, X = CᵀC. Given
the past, that of a round depends only on the sums over the finished left halves of the intervals which the round lies in: the
triangular matrix with the same X is applied to z by those few sums, and never built.

Source: Dwork et al. 2010; Chan et al. 2011; Honaker 2015, "Efficient Use of Differentially Private Binary Trees"; Kairouz et
al. 2021, "Practical and Private (Deep) Learning without Sampling or Shuffling", https://arxiv.org/abs/2103.00039.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hubbub._checks import Array, integer, one_of, rounds_count
from hubbub.participation import (
    FixedEpochs,
    MinSeparation,
    Participation,
    SingleParticipation,
    covering,
    require_participation,
)
from hubbub.sensitivity import Sensitivity
from hubbub.strategies.dyadic import Forest
from hubbub.strategies.strategy import Draw, Memory, Row, require_dense, require_round

__all__ = ["DECODERS", "BinaryTree"]

DECODERS = ("plain", "online", "full")


@dataclass(frozen=True)
class BinaryTree:
    """The binary tree mechanism.

    Args:
        rounds: n, at least 1; need not be a power of two.
        decoder: One of ``DECODERS``.
        rounds_per_tree: A new tree starts after so many rounds, and the last estimate of each finished tree is used from then
            on; by default one tree serves all rounds.
        completed: At its end a tree goes on to the next power of two with rounds that hold no data, so that its sum is
            estimated from one interval that holds all of it. Costs one more interval for some rounds.

    Raises:
        ValueError: A number out of range, or an unknown decoder.

    Example:
        >>> BinaryTree(rounds=2).matrix()
        array([[1., 0.],
               [0., 1.],
               [1., 1.]])
        >>> BinaryTree(rounds=2, decoder="full").matrix().round(3)
        array([[1.225, 0.   ],
               [0.707, 1.414]])
    """

    rounds: int
    decoder: str = "plain"
    rounds_per_tree: int | None = None
    completed: bool = False

    def __post_init__(self) -> None:
        rounds_count(self.rounds)
        one_of("decoder", self.decoder, DECODERS)
        if self.rounds_per_tree is not None:
            integer("rounds_per_tree", self.rounds_per_tree, at_least=1, at_most=10**7)
        if not isinstance(self.completed, bool):
            raise TypeError(f"completed = {self.completed!r}: must be True or False")

    @property
    def memory_rows(self) -> int:
        """The most rows that a step carries: one for each finished half of the intervals that a round lies in."""
        most = min(self.rounds, self._forest.rounds_per_tree - 1)
        # The most ones that a binary number up to this can have.
        return (most + 1).bit_length() - 1

    def matrix(self) -> Array:
        """C as a dense matrix: a row for each interval, or ``(rounds, rounds)`` for the full decoder."""
        require_dense(self.rounds)
        return self._triangular() if self.decoder == "full" else self._intervals()

    def leading(self, rounds: int) -> "BinaryTree":
        """The first ``rounds`` rounds: the intervals that are complete by then."""
        return BinaryTree(rounds, self.decoder, self._forest.rounds_per_tree, self.completed)

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """How far one client can move C·x.

        Exact, but for a full decoder that stops within a tree, which is bounded by the intervals of the whole tree, and for
        thousands of participations a few rounds apart.
        """
        require_participation(participation)
        exact = self.decoder != "full" or self.rounds % self._forest.rounds_per_tree == 0
        match covering(participation, self.rounds):
            case SingleParticipation():
                squared = self._forest.deepest()
            case FixedEpochs(epochs, rounds_per_epoch):
                squared = self._forest.fixed_epochs(epochs, rounds_per_epoch)
            case MinSeparation(min_separation, max_participations):
                squared, found = self._forest.separated(min_separation, max_participations)
                exact = exact and found
        return Sensitivity(math.sqrt(squared), exact, "Kairouz et al. 2021, Appendix D")

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """The difference of two estimated prefix sums' noises: what replaces the intervals that round finishes, less those."""
        require_round(round_index, self.rounds)
        tree, t = divmod(round_index, self._forest.rounds_per_tree)
        top = self._top(t)
        kept = len(memory) - (t & (1 << top) - 1).bit_count()
        ended = t + 1 == self._forest.rounds_per_tree
        if self.decoder == "full":
            row = total = self._conditional_row(t, draw(round_index), memory)
            for finished in memory[kept:]:
                total = total + finished
            return row, () if ended else (*memory[:kept], total)
        first = tree * self._rows_before(self._forest.rounds_per_tree) + self._rows_before(t)
        estimate = draw(first + top) if self.decoder == "plain" else self._estimate(t, top, first, draw, memory)
        row = estimate
        for replaced in memory[kept:]:
            row = row - replaced
        return row, () if ended else (*memory[:kept], estimate)

    @cached_property
    def _forest(self) -> Forest:
        span = self.rounds if self.rounds_per_tree is None else self.rounds_per_tree
        return Forest(self.rounds, span, self.completed, begun=self.decoder == "full")

    def _top(self, t: int) -> int:
        """The height of the largest interval that round t of a tree finishes."""
        if self.completed and t + 1 == self._forest.rounds_per_tree:
            return self._forest.height
        return ((t + 1) & -(t + 1)).bit_length() - 1

    def _rows_before(self, t: int) -> int:
        """How many intervals the rounds of a tree before t finish; those of round t follow from the smallest up."""
        beyond = self._top(t - 1) - ((t & -t).bit_length() - 1) if t else 0
        return 2 * t - t.bit_count() + beyond

    def _estimate(self, t: int, top: int, first: int, draw: Draw, memory: Memory) -> Row:
        """The best estimate of the sum over the interval of height ``top`` that round t finishes, from all inside it."""
        estimate, variance, finished = draw(first), 1.0, list(memory)
        for height in range(1, top + 1):
            if t >> height - 1 & 1:
                estimate = finished.pop() + estimate
                variance += _variance(height - 1)
            # Own noise has variance 1, the sum of the two halves' estimates this one: each is weighted by the other's.
            own = variance / (1 + variance)
            estimate = own * draw(first + height) + (1 - own) * estimate
            variance = own
        return estimate

    def _conditional_row(self, t: int, z: Row, memory: Memory) -> Row:
        """The full decoder's noise of round t of a tree, given its sums over finished halves."""
        precision, coefficients = self._conditional(t)
        row = (1 / math.sqrt(precision)) * z
        for coefficient, finished in zip(coefficients, memory, strict=True):
            row = row - (coefficient / precision) * finished
        return row

    def _conditional(self, t: int) -> tuple[float, list[float]]:
        """The density of the noise y of round t is exp(−precision·y²/2 − y·Σ coefficient·(sum over a finished half)).

        From the root down to the leaf t: each interval adds the square of its own sum, in which the left half is known, or
        the right half is still to come and integrated out.
        """
        outside, coefficients = 0.0, []
        for height in range(self._forest.height, 0, -1):
            start = t >> height << height
            middle = start + (1 << height - 1)
            total = outside + self._counted(start, height)
            if t >= middle:
                coefficients.append(total)
                outside = total
                continue
            to_come = self._sum_variance(middle, height - 1)
            # Exact also where nothing is to come, or where no interval here is counted.
            fraction = 1 / (1 + to_come * total)
            coefficients = [fraction * coefficient for coefficient in coefficients]
            outside = fraction * total
        return outside + 1, coefficients

    def _counted(self, start: int, height: int) -> bool:
        return self.completed or start + (1 << height) <= self._forest.rounds_per_tree

    def _sum_variance(self, start: int, height: int) -> float:
        """Of the noise in the sum over an interval, by the intervals inside it."""
        if start + (1 << height) <= self._forest.rounds_per_tree:
            return _variance(height)
        if start >= self._forest.rounds_per_tree:
            return 0.0
        halves = sum(self._sum_variance(s, height - 1) for s in (start, start + (1 << height - 1)))
        return halves / (1 + halves) if self.completed else halves

    def _intervals(self) -> Array:
        """C with a row for each interval."""
        ends = sorted((stop, size, start) for size, a, b in self._forest.levels() for start, stop in zip(a, b, strict=True))
        C = np.zeros((len(ends), self.rounds))
        for row, (stop, _, start) in enumerate(ends):
            C[row, start:stop] = 1
        return C

    def _triangular(self) -> Array:
        """C of the full decoder, which has the same inner products of columns."""
        C = np.zeros((self.rounds, self.rounds))
        for round_index in range(self.rounds):
            t = round_index % self._forest.rounds_per_tree
            precision, coefficients = self._conditional(t)
            C[round_index, round_index] = math.sqrt(precision)
            for (start, stop), coefficient in zip(_finished_halves(t), coefficients, strict=True):
                first = round_index - t
                C[round_index, first + start : first + stop] = coefficient / math.sqrt(precision)
        return C


def _variance(height: int) -> float:
    """Of the best estimate of the sum over a complete interval from all inside it (Honaker 2015)."""
    return 1 / (2 - 2.0**-height)


def _finished_halves(t: int) -> Iterator[tuple[int, int]]:
    """The intervals that tile the rounds before t, the largest first."""
    start = 0
    for height in reversed(range(t.bit_length())):
        if t >> height & 1:
            yield start, start + (1 << height)
            start += 1 << height
