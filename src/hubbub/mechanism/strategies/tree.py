"""Tree aggregation: every dyadic interval of rounds has noise of its own.

C has a row for each dyadic interval that is complete within the rounds, in the order of completion; one of height h is
[i·2ʰ, (i+1)·2ʰ). The decoder estimates sums from those noisy intervals, which changes N, not C:

* ``"plain"`` adds up the at most log₂ n intervals that tile a prefix;
* ``"online"`` replaces each of them by its best estimate from all the intervals inside it;
* ``"full"`` uses all intervals, A·C⁺, with the least error of any unbiased decoder.

All three stream with the memory of log₂ n rows. The noise of the full decoder is Gaussian with covariance X⁻¹, X = CᵀC. Given
the past, the noise of a round depends only on the sums over the finished left halves of the intervals around it: the triangular
matrix with the same X is applied to z by those few sums, and never built.

Entries of C are 0 or 1, so a client that joins the rounds π moves C·x by the root of Σ (number of rounds of π in the interval)²
over the intervals, and no signs can do better. The largest is found by a dynamic programme over functions on the boundary
between two subtrees, for any n.

Source: Dwork et al. 2010; Chan et al. 2011; Honaker 2015, "Efficient Use of Differentially Private Binary Trees"; Kairouz et
al. 2021, "Practical and Private (Deep) Learning without Sampling or Shuffling", Appendix D for the sensitivity,
https://arxiv.org/abs/2103.00039.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hubbub._util.checks import Array, boolean, one_of, plain_numbers, rounds_count
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, Participation, SingleParticipation, covering
from hubbub.mechanism.sensitivity import Sensitivity
from hubbub.mechanism.strategies.strategy import Description, Draw, Memory, Row, require_dense, require_round

__all__ = ["DECODERS", "BinaryTree"]

DECODERS = ("plain", "online", "full")
_Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BinaryTree:
    """The binary tree mechanism.

    Args:
        rounds: n, at least 1; need not be a power of two.
        decoder: One of ``DECODERS``.
        rounds_per_tree: A new tree starts after this many rounds, and the last estimate of each finished tree is used from then
            on; by default one tree serves all rounds.
        completed: A finished tree is padded to the next power of two with rounds without data, so that one interval covers all
            of it. Costs one more interval for some rounds.

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
        plain_numbers(self, rounds=rounds_count, rounds_per_tree=rounds_count, completed=boolean)
        one_of("decoder", self.decoder, DECODERS)

    @property
    def description(self) -> Description:
        """Words, bands and sources, for statements and reports."""
        return Description(
            "binary tree aggregation" + ("" if self.decoder == "plain" else f", {self.decoder} estimates"),
            None,
            ("kairouz2021practical", "honaker2015efficient"),
        )

    @property
    def memory_rows(self) -> int:
        """The most rows that :meth:`step` remembers: one for each finished half of the intervals around a round."""
        most = min(self.rounds, self._span - 1)
        # The most ones that a binary number up to this can have.
        return (most + 1).bit_length() - 1

    def matrix(self) -> Array:
        """C as a dense matrix: a row for each interval, or ``(rounds, rounds)`` for the full decoder."""
        require_dense(self.rounds)
        if self.decoder == "full":
            return self._triangular()
        ends = sorted((stop, size, start) for size, a, b in self._levels() for start, stop in zip(a, b, strict=True))
        C = np.zeros((len(ends), self.rounds))
        for row, (stop, _, start) in enumerate(ends):
            C[row, start:stop] = 1
        return C

    def leading(self, rounds: int) -> "BinaryTree":
        """The first ``rounds`` rounds: the intervals that are complete by then."""
        return BinaryTree(rounds, self.decoder, self._span, self.completed)

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """How far one client can move C·x.

        Exact, except for a full decoder that stops within a tree (a bound: all intervals of the whole tree) and for thousands
        of participations a few rounds apart (a bound for each size of intervals).
        """
        exact = not self._begun or self.rounds % self._span == 0
        match covering(participation, self.rounds):
            case SingleParticipation():
                # Round 0 is in the leftmost interval of each size.
                whole = self._begun or self.rounds >= self._span
                deepest = (self._span if whole else self.rounds).bit_length()
                squared = self._height + 1 if whole and self.completed else deepest
            case FixedEpochs(epochs, rounds_per_epoch):
                squared = self._fixed_epochs(epochs, rounds_per_epoch)
            case MinSeparation(min_separation, max_participations):
                squared, found = self._separated(min_separation, max_participations)
                exact = exact and found
        return Sensitivity(math.sqrt(squared), exact, "Kairouz et al. 2021, Appendix D")

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """The noise of this round's prefix sum less that of the previous one: the new estimate less those that it replaces."""
        require_round(round_index, self.rounds)
        tree, t = divmod(round_index, self._span)
        top = self._top(t)
        kept = len(memory) - (t & (1 << top) - 1).bit_count()
        ended = t + 1 == self._span
        if self.decoder == "full":
            precision, coefficients = self._conditional(t)
            row = (1 / math.sqrt(precision)) * draw(round_index)
            for coefficient, finished in zip(coefficients, memory, strict=True):
                row = row - (coefficient / precision) * finished
            total = row
            for finished in memory[kept:]:
                total = total + finished
            return row, () if ended else (*memory[:kept], total)
        first = tree * self._rows_before(self._span) + self._rows_before(t)
        estimate = draw(first + top) if self.decoder == "plain" else self._estimate(t, top, first, draw, memory)
        row = estimate
        for replaced in memory[kept:]:
            row = row - replaced
        return row, () if ended else (*memory[:kept], estimate)

    @property
    def _span(self) -> int:
        """Rounds of a tree; the last one may have fewer."""
        return self.rounds if self.rounds_per_tree is None else self.rounds_per_tree

    @property
    def _height(self) -> int:
        """The height of a whole tree: 2^height is at least its rounds."""
        return (self._span - 1).bit_length()

    @property
    def _begun(self) -> bool:
        """Whether an unfinished last tree has all the intervals of a finished one, cut; else those that are complete."""
        return self.decoder == "full"

    def _top(self, t: int) -> int:
        """The height of the largest interval that round t of a tree finishes."""
        if self.completed and t + 1 == self._span:
            return self._height
        return ((t + 1) & -(t + 1)).bit_length() - 1

    def _rows_before(self, t: int) -> int:
        """The number of intervals finished before round t of a tree; those of round t follow, the smallest first."""
        beyond = self._top(t - 1) - ((t & -t).bit_length() - 1) if t else 0
        return 2 * t - t.bit_count() + beyond

    def _estimate(self, t: int, top: int, first: int, draw: Draw, memory: Memory) -> Row:
        """The best estimate of the sum over the interval of height ``top`` that round t finishes, from all inside it."""
        estimate, variance, finished = draw(first), 1.0, list(memory)
        for height in range(1, top + 1):
            if t >> height - 1 & 1:
                estimate = finished.pop() + estimate
                variance += _variance(height - 1)
            # Weighted by inverse variances: 1 for the interval's own noise, ``variance`` for the sum of its halves' estimates.
            own = variance / (1 + variance)
            estimate = own * draw(first + height) + (1 - own) * estimate
            variance = own
        return estimate

    def _conditional(self, t: int) -> tuple[float, list[float]]:
        """The density of the noise y of round t is exp(−precision·y²/2 − y·Σ coefficient·(sum over a finished half)).

        From the root down to the leaf t: each interval adds the square of its own sum, in which the left half is known, or
        the right half is still to come and integrated out.
        """
        outside, coefficients = 0.0, []
        for height in range(self._height, 0, -1):
            start = t >> height << height
            middle = start + (1 << height - 1)
            total = outside + (self.completed or start + (1 << height) <= self._span)
            if t >= middle:
                coefficients.append(total)
                outside = total
                continue
            to_come = self._sum_variance(middle, height - 1)
            # Also correct if nothing is to come, or if this interval is not counted.
            fraction = 1 / (1 + to_come * total)
            coefficients = [fraction * coefficient for coefficient in coefficients]
            outside = fraction * total
        return outside + 1, coefficients

    def _sum_variance(self, start: int, height: int) -> float:
        """The variance of the sum over an interval, given the intervals inside it."""
        if start + (1 << height) <= self._span:
            return _variance(height)
        if start >= self._span:
            return 0.0
        halves = sum(self._sum_variance(s, height - 1) for s in (start, start + (1 << height - 1)))
        return halves / (1 + halves) if self.completed else halves

    def _triangular(self) -> Array:
        """C of the full decoder, which has the same inner products of columns."""
        C = np.zeros((self.rounds, self.rounds))
        for round_index in range(self.rounds):
            t = round_index % self._span
            precision, coefficients = self._conditional(t)
            C[round_index, round_index] = math.sqrt(precision)
            # The finished halves tile the rounds of the tree before t, the largest first.
            start, heights = round_index - t, (height for height in reversed(range(t.bit_length())) if t >> height & 1)
            for height, coefficient in zip(heights, coefficients, strict=True):
                C[round_index, start : start + (1 << height)] = coefficient / math.sqrt(precision)
                start += 1 << height
        return C

    def _levels(self) -> Iterator[tuple[int, _Integers, _Integers]]:
        """For each height the size of its intervals, their starts and their stops, in order."""
        for height in range(self._height + 1):
            size = 1 << height
            within = np.arange(0, self._span, size)
            if not self.completed:
                within = within[: self._span // size]
            starts = (np.arange(0, self.rounds, self._span)[:, None] + within).ravel()
            stops = np.minimum(starts + size, (starts // self._span + 1) * self._span)
            there = starts < self.rounds if self._begun else stops <= self.rounds
            yield size, starts[there], np.minimum(stops[there], self.rounds)

    def _fixed_epochs(self, epochs: int, rounds_per_epoch: int) -> int:
        """The squared sensitivity to a client of rounds r, r + b, r + 2b, …; O(n log n)."""
        b, last = min(rounds_per_epoch, self.rounds), min(self.rounds, epochs * rounds_per_epoch)
        first, squared, steps = np.arange(b), np.zeros(b), np.zeros(-(-self.rounds // b) * b + 1)
        for size, starts, stops in self._levels():
            if size > b:
                before, until = (-((first - np.minimum(edge, last)[:, None]) // b) for edge in (starts, stops))
                squared += np.square(np.maximum(until, 0) - np.maximum(before, 0)).sum(axis=0)
            else:
                # Such an interval has at most one of the client's rounds: how many there are around each is enough.
                steps[starts] += 1
                steps[stops] -= 1
        around = np.cumsum(steps[:-1])
        around[last:] = 0
        return int((squared + around.reshape(-1, b).sum(axis=0)).max())

    def _separated(self, separation: int, most: int) -> tuple[int, bool]:
        """The squared sensitivity to at most ``most`` rounds that are ``separation`` apart, and whether that is exact.

        An upper bound only if the exact value would need too much memory: thousands of participations a few rounds apart.
        """
        separation = min(separation, self.rounds)
        most = min(most, -(-self.rounds // separation))
        if separation == 1 and most == self.rounds:
            return sum(int(np.square(stops - starts).sum()) for _, starts, stops in self._levels()), True
        try:
            return _Programme(self, separation, most).best(), True
        except _TooManyError:
            # In each level by itself, as many intervals as possible have as many rounds as fit.
            fits = [min(most, -(-size // separation)) for size, starts, _ in self._levels() if len(starts)]
            return sum(most // full * full**2 + (most % full) ** 2 for full in fits), False


def _variance(height: int) -> float:
    """The variance of the best estimate of a complete interval's sum from all intervals inside it (Honaker 2015)."""
    return 1 / (2 - 2.0**-height)


# Pairs of partial answers that are joined at once: 16 bytes each.
_MOST_PAIRS = 8_000_000
_MOST_TREES = 10_000


class _TooManyError(Exception):
    """The exact answer would cost too much."""


class _Choices(NamedTuple):
    """A client's choices in a part of the rounds: one line for each undominated pair of participations and value.

    A client for whom the first r rounds are forbidden leaves this part with the next ``forbidden[line, r]`` rounds forbidden;
    ``separation`` marks a line that is impossible for this r.
    """

    participations: _Integers
    values: _Integers
    forbidden: _Integers


class _Programme:
    """The dynamic programme over intervals, from rounds up to trees and from the first tree to the last."""

    def __init__(self, tree: BinaryTree, separation: int, most: int) -> None:
        self._tree, self._separation, self._most = tree, separation, most
        idle = np.maximum(np.arange(separation + 1) - 1, 0)
        idle[separation] = separation
        taken = np.full(separation + 1, separation)
        taken[0] = separation - 1
        self._complete = [_Choices(np.array([0, 1]), np.array([0, 1]), np.stack([idle, taken]))]

    def best(self) -> int:
        """The largest value."""
        tree = self._tree
        trees, rest = divmod(tree.rounds, tree._span)
        sizes = [tree._span] * trees + [rest] * bool(rest)
        if len(sizes) > _MOST_TREES:
            raise _TooManyError
        later = {rounds: self._part(tree._height, 0, rounds, self._separation + 1) for rounds in set(sizes[1:])}
        # Nothing is forbidden at the start, so that one column is enough.
        state = self._part(tree._height, 0, sizes[0], 1)
        for rounds in sizes[1:]:
            state = self._joined(state, later[rounds], counted=False)
        return int(state.values.max())

    def _part(self, height: int, start: int, rounds: int, columns: int) -> _Choices:
        """The choices in the interval of that height and start, of a tree that has the given rounds, more than ``start``."""
        tree, size = self._tree, 1 << height
        if start + size <= rounds and (height == 0 or columns > 1):
            while len(self._complete) <= height:
                half = self._complete[-1]
                self._complete.append(self._joined(half, half, counted=True))
            whole = self._complete[height]
            return whole._replace(forbidden=whole.forbidden[:, :columns])
        finished = tree._begun or rounds == tree._span
        present = tree._span if finished else rounds
        counted = start + size <= present or (finished and tree.completed)
        middle = start + size // 2
        left = self._part(height - 1, start, rounds, columns)
        if middle < rounds:
            return self._joined(left, self._part(height - 1, middle, rounds, self._separation + 1), counted=counted)
        return left._replace(values=left.values + left.participations**2) if counted else left

    def _joined(self, left: _Choices, right: _Choices, *, counted: bool) -> _Choices:
        """The choices in two parts one after the other; ``counted`` if an interval spans both."""
        width = left.forbidden.shape[1]
        if len(left.values) * max(len(right.values), width) > _MOST_PAIRS:
            raise _TooManyError
        participations = left.participations[:, None] + right.participations
        values = left.values[:, None] + right.values + (np.square(participations) if counted else 0)
        allowed = participations <= self._most
        scale = int(values.max()) + 1
        # Ascending in participations, and among equal ones descending in value.
        keys, where = np.unique((participations * scale + (scale - 1 - values))[allowed], return_inverse=True)
        places = np.full(allowed.shape, -1)
        places[allowed] = where
        if len(keys) * width > _MOST_PAIRS:
            raise _TooManyError
        forbidden = np.full((len(keys), width), self._separation)
        for line, place, fits in zip(left.forbidden, places, allowed, strict=True):
            # Within one line of the left part no two lines of the right one give the same place.
            to = place[fits]
            forbidden[to] = np.minimum(forbidden[to], right.forbidden[np.ix_(np.flatnonzero(fits), line)])
        # What is left are undominated lines: no other has the same participations, a larger value and forbids no more.
        participations, values = keys // scale, scale - 1 - keys % scale
        keep = np.ones(len(values), dtype=bool)
        for part in np.split(np.arange(len(values)), np.flatnonzero(np.diff(participations)) + 1):
            least = np.minimum.accumulate(forbidden[part], axis=0)
            forbidden[part] = least
            keep[part[1:]] = (least[1:] < least[:-1]).any(axis=1)
            keep[part] &= least.min(axis=1) < self._separation
        return _Choices(participations[keep], values[keep], forbidden[keep])
