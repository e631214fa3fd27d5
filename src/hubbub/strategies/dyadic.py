"""The dyadic intervals of rounds that trees are made of, and how much of them one client can touch.

An interval of height h is [i·2ʰ, (i+1)·2ʰ). Entries of a tree's C are 0 or 1, so a client that joins the rounds π moves C·x by
the root of Σ (number of rounds of π in the interval)² over its intervals, and no signs can do better.

Source: Kairouz et al. 2021, Appendix D, https://arxiv.org/abs/2103.00039. The dynamic programme here is over functions on
the boundary between two subtrees and has no bound on n.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hubbub._checks import Array

__all__ = ["Forest"]

_Integers = npt.NDArray[np.int64]
# Pairs of partial answers that are joined at once: 16 bytes each.
_MOST_PAIRS = 8_000_000
_MOST_TREES = 10_000


@dataclass(frozen=True)
class Forest:
    """Equal trees one after another; the last one may have fewer rounds.

    Args:
        rounds: n of all trees together.
        rounds_per_tree: Leaves of a tree.
        completed: A finished tree has the intervals that reach beyond its last round too, as if rounds without data followed.
        begun: A last tree that is not finished has all the intervals of a finished one, cut; else those that are complete.
    """

    rounds: int
    rounds_per_tree: int
    completed: bool
    begun: bool

    @property
    def height(self) -> int:
        """Of a whole tree: 2 to its power is at least the rounds of a tree."""
        return (self.rounds_per_tree - 1).bit_length()

    def levels(self) -> Iterator[tuple[int, _Integers, _Integers]]:
        """Of each height the size of its intervals, where they start, and where they stop, in order."""
        trees, rest = divmod(self.rounds, self.rounds_per_tree)
        for height in range(self.height + 1):
            size = 1 << height
            within = np.arange(0, self.rounds_per_tree, size)
            if not self.completed:
                within = within[: self.rounds_per_tree // size]
            starts = (np.arange(trees)[:, None] * self.rounds_per_tree + within).ravel()
            stops = np.minimum(starts + size, (starts // self.rounds_per_tree + 1) * self.rounds_per_tree)
            last = within[within < rest] if self.begun else np.arange(rest // size) * size
            first = trees * self.rounds_per_tree
            yield (
                size,
                np.concatenate([starts, first + last]),
                np.concatenate([stops, np.minimum(first + last + size, self.rounds)]),
            )

    def depths(self, largest: int | None = None) -> Array:
        """``(rounds,)``: in how many intervals each round lies, of those up to the largest size."""
        steps = np.zeros(self.rounds + 1)
        for size, starts, stops in self.levels():
            if largest is None or size <= largest:
                steps[starts] += 1
                steps[stops] -= 1
        return np.cumsum(steps[:-1])

    def deepest(self) -> int:
        """In how many intervals a round lies at most: the very first is in the leftmost of each size; O(1)."""
        whole = self.rounds >= self.rounds_per_tree or self.begun
        if whole and self.completed:
            return self.height + 1
        return (self.rounds_per_tree if whole else self.rounds).bit_length()

    def every_round(self) -> int:
        """The squared sensitivity to a client of all rounds."""
        return sum(int(np.square(stops - starts).sum()) for _, starts, stops in self.levels())

    def fixed_epochs(self, epochs: int, rounds_per_epoch: int) -> int:
        """The squared sensitivity to a client of rounds r, r + b, r + 2b, …; O(n log n)."""
        b = min(rounds_per_epoch, self.rounds)
        last = min(self.rounds, epochs * rounds_per_epoch)
        # An interval of at most b rounds holds one of the client's, whose square is itself.
        small = np.zeros(-(-last // b) * b)
        small[:last] = self.depths(largest=b)[:last]
        squared = small.reshape(-1, b).sum(axis=0)
        first = np.arange(b)
        for size, starts, stops in self.levels():
            if size > b:
                before, until = (-((first - np.minimum(edge, last)[:, None]) // b) for edge in (starts, stops))
                squared += np.square(np.maximum(until, 0) - np.maximum(before, 0)).sum(axis=0)
        return int(squared.max())

    def separated(self, separation: int, most: int) -> tuple[int, bool]:
        """The squared sensitivity to at most ``most`` rounds that are ``separation`` apart, and whether that is exact.

        It is a bound from above only where the exact one would need too much memory: thousands of participations a few
        rounds apart.
        """
        separation = min(separation, self.rounds)
        most = min(most, -(-self.rounds // separation))
        if separation == 1 and most == self.rounds:
            return self.every_round(), True
        try:
            return _Programme(self, separation, most).best(), True
        except _TooManyError:
            return self._crowded(separation, most), False

    def _crowded(self, separation: int, most: int) -> int:
        """A bound from above: in each level by itself, as many intervals as possible hold as many rounds as fit in one."""
        total = 0
        for size, starts, _ in self.levels():
            if len(starts):
                full = min(most, -(-size // separation))
                crowded, rest = divmod(most, full)
                total += crowded * full**2 + rest**2
        return total


class _TooManyError(Exception):
    """The exact answer would cost too much."""


class _Choices(NamedTuple):
    """What a client can do in a part of the rounds: one line for each number of participations and value worth having.

    A client that comes with the next r rounds forbidden leaves with the next ``forbidden[line, r]`` forbidden, if it takes
    that many participations and that value; as many as ``separation`` where it cannot.
    """

    participations: _Integers
    values: _Integers
    forbidden: _Integers


class _Programme:
    """The dynamic programme over intervals, from rounds up to trees and from the first tree to the last."""

    def __init__(self, forest: Forest, separation: int, most: int) -> None:
        self._forest, self._separation, self._most = forest, separation, most
        idle = np.maximum(np.arange(separation + 1) - 1, 0)
        idle[separation] = separation
        taken = np.full(separation + 1, separation)
        taken[0] = separation - 1
        self._complete = [_Choices(np.array([0, 1]), np.array([0, 1]), np.stack([idle, taken]))]

    def best(self) -> int:
        """The largest value."""
        forest = self._forest
        trees, rest = divmod(forest.rounds, forest.rounds_per_tree)
        sizes = [forest.rounds_per_tree] * trees + [rest] * bool(rest)
        if len(sizes) > _MOST_TREES:
            raise _TooManyError
        later = {rounds: self._part(forest.height, 0, rounds, self._separation + 1) for rounds in set(sizes[1:])}
        # Nothing is forbidden where the first tree starts, so that one column is enough for it and what follows.
        state = self._part(forest.height, 0, sizes[0], 1)
        for rounds in sizes[1:]:
            state = self._joined(state, later[rounds], counted=False)
        return int(state.values.max())

    def _part(self, height: int, start: int, rounds: int, columns: int) -> _Choices:
        """The choices in the interval of that height and start, of a tree that has the given rounds, more than ``start``."""
        forest, size = self._forest, 1 << height
        if start + size <= rounds and (height == 0 or columns > 1):
            whole = self._whole(height)
            return whole._replace(forbidden=whole.forbidden[:, :columns])
        finished = forest.begun or rounds == forest.rounds_per_tree
        present = forest.rounds_per_tree if finished else rounds
        counted = start + size <= present or (finished and forest.completed)
        middle = start + size // 2
        left = self._part(height - 1, start, rounds, columns)
        if middle < rounds:
            return self._joined(left, self._part(height - 1, middle, rounds, self._separation + 1), counted=counted)
        return left._replace(values=left.values + left.participations**2) if counted else left

    def _whole(self, height: int) -> _Choices:
        while len(self._complete) <= height:
            half = self._complete[-1]
            self._complete.append(self._joined(half, half, counted=True))
        return self._complete[height]

    def _joined(self, left: _Choices, right: _Choices, *, counted: bool) -> _Choices:
        """The choices in two parts one after the other; ``counted`` where an interval of its own spans both."""
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
        return self._worth_having(keys // scale, scale - 1 - keys % scale, forbidden)

    def _worth_having(self, participations: _Integers, values: _Integers, forbidden: _Integers) -> _Choices:
        """Without the lines that forbid no less than one of the same participations and a larger value."""
        borders = np.flatnonzero(np.diff(participations)) + 1
        keep = np.ones(len(values), dtype=bool)
        for part in np.split(np.arange(len(values)), borders):
            least = np.minimum.accumulate(forbidden[part], axis=0)
            forbidden[part] = least
            keep[part[1:]] = (least[1:] < least[:-1]).any(axis=1)
            keep[part] &= least.min(axis=1) < self._separation
        return _Choices(participations[keep], values[keep], forbidden[keep])
