"""The exact influence of one client on the releases of a run, against its sensitivity; no statistics.

Two runs with the same keys, models and clients, except for one client, have the same noise. So their releases differ by the
contribution of that client: whole steps of the lattice, x − x′. The sensitivity bounds the norm of C·(x − x′). Both are
computed in integers and fractions, without rounding.

One pair of runs can prove a violation. A pair without one proves nothing about other pairs.

Source: Cebere et al. 2026, "Privacy in Theory, Bugs in Practice: Grey-Box Auditing of Differential Privacy Libraries",
https://arxiv.org/abs/2602.17454.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from hubbub._util.checks import integer, one_of
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import FixedSizeSampling, TruncatedPoissonSampling
from hubbub.mechanism.strategies import Identity
from hubbub.noise.steps import MOST_BITS, step_of

# Clip norms by which two neighbouring data sets may differ in one round.
_MOVES = {"zero-out": 1, "add-or-remove-one": 1, "replace-one": 2}
Steps = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Influence:
    """The distance of the releases on two neighbouring data sets, and its bound, in clip norms.

    Args:
        squared: The squared norm of C·(x − x′), all rounds together.
        bound: The square of the sensitivity.
        largest: The largest squared norm of x − x′ in one round.
        allowed: Its bound.
        rounds: The rounds that differ.

    Example:
        >>> found = Influence(Fraction(2), bound=Fraction(2), largest=Fraction(1), allowed=Fraction(1), rounds=(0, 4))
        >>> found.holds, found.sentence().rpartition(": ")[2]
        (True, 'within the bounds')
    """

    squared: Fraction
    bound: Fraction
    largest: Fraction
    allowed: Fraction
    rounds: tuple[int, ...]

    @property
    def holds(self) -> bool:
        """Whether one client moved the releases by no more than the sensitivity, and no round by more than its clip norm."""
        return self.squared <= self.bound and self.largest <= self.allowed

    def sentence(self) -> str:
        """The verdict in words, with rounded numbers."""
        moved, may = float(self.squared) ** 0.5, float(self.bound) ** 0.5
        alone, most = float(self.largest) ** 0.5, float(self.allowed) ** 0.5
        verdict = "within the bounds" if self.holds else "NOT within the bounds"
        return (
            f"one client moves the releases by {moved:.6g} clip norms, sensitivity {may:.6g}; one round by {alone:.6g}, "
            f"bound {most:.6g}: {verdict}"
        )


def influence(
    mechanism: Mechanism,
    differences: Mapping[int, Steps],
    clip_norms: Mapping[int, float],
    *,
    lattice_bits: int = MOST_BITS,
    relation: str = "zero-out",
) -> Influence:
    """The influence of one client, from the releases of two runs on neighbouring data sets under the same keys.

    Args:
        mechanism: The promised mechanism; C is formed as a matrix unless the noise is independent.
        differences: By round, from 0: the difference of the two releases in whole steps of the round's lattice, ``(dim,)``.
            Rounds that are left out do not differ.
        clip_norms: By round: the clip norm of the lattice (with adaptive clipping the bound on an update with its indicator).
        lattice_bits: Bits of the lattice.
        relation: ``"zero-out"``, ``"add-or-remove-one"`` or ``"replace-one"``.

    Raises:
        ValueError: A round beyond the mechanism's, an unknown relation, or vectors of several lengths.
        TypeError: A difference that is not of integers.
        KeyError: A round without a clip norm.

    Example:
        >>> from hubbub.mechanism.participation import MinSeparation
        >>> from hubbub.mechanism.strategies import Identity
        >>> mechanism = Mechanism(Identity(rounds=8), MinSeparation(4, 2), noise_multiplier=1.0)
        >>> found = influence(mechanism, {0: np.array([2**24, 0]), 4: np.array([0, 2**24])}, {0: 1.0, 4: 1.0})
        >>> found.holds, found.squared, found.largest
        (True, Fraction(2, 1), Fraction(1, 1))
        >>> influence(mechanism, {0: np.array([2**24, 1])}, {0: 1.0}).holds
        False
    """
    one_of("relation", relation, tuple(_MOVES))
    vectors = {round_index: _whole(round_index, steps) for round_index, steps in sorted(differences.items())}
    for round_index in vectors:
        integer("round_index", round_index, at_least=0, at_most=mechanism.rounds - 1)
    if len({len(vector) for vector in vectors.values()}) > 1:
        raise ValueError("differences: vectors of several lengths; those of one run have one")
    moved = {round_index: vector for round_index, vector in vectors.items() if any(vector)}
    rounds = tuple(moved)
    units = {t: Fraction(step_of(clip_norms[t], lattice_bits)) / Fraction(float(clip_norms[t])) for t in rounds}
    inner = [[units[a] * units[b] * int(moved[a] @ moved[b]) for b in rounds] for a in rounds]
    gram = _gram(mechanism, rounds)
    places = range(len(rounds))
    squared = sum((gram[i][j] * inner[i][j] for i in places for j in places), Fraction(0))
    largest = max((inner[i][i] for i in places), default=Fraction(0))
    # Who comes or goes takes or leaves a place, which another fills.
    displaces = isinstance(mechanism.participation, FixedSizeSampling | TruncatedPoissonSampling)
    allowed = Fraction(2 if displaces and relation == "add-or-remove-one" else _MOVES[relation]) ** 2
    return Influence(squared, allowed * Fraction(mechanism.l2_sensitivity) ** 2, largest, allowed, rounds)


def _whole(round_index: int, steps: Steps) -> npt.NDArray[Any]:
    """A vector ``(dim,)`` of Python integers, whose sums never overflow."""
    array = np.asarray(steps)
    if array.ndim != 1 or array.dtype.kind not in "iuO" or not all(isinstance(q, int) for q in array.tolist()):
        raise TypeError(f"round {round_index}: has shape {array.shape} and {array.dtype}: must be one vector of integers")
    return array.astype(object)


def _gram(mechanism: Mechanism, rounds: tuple[int, ...]) -> list[list[Fraction]]:
    """Inner products of columns of C, exactly: floating-point numbers are fractions."""
    if type(mechanism.strategy) is Identity:
        # It may have more rounds than a matrix can have.
        return [[Fraction(one == other) for other in rounds] for one in rounds]
    columns = np.asarray(mechanism.strategy.matrix(), dtype=np.float64)[:, list(rounds)]
    fractions = [[Fraction(entry) for entry in row] for row in columns.tolist()]
    # Denominators are powers of two: the largest is a multiple of all.
    whole = max((entry.denominator for row in fractions for entry in row), default=1)
    scaled = np.array([[int(entry * whole) for entry in row] for row in fractions], dtype=object)
    return [[Fraction(entry, whole**2) for entry in row] for row in (scaled.T @ scaled).tolist()]
