"""How far one client moved what a run released, and how far it may: exactly, without statistics.

Take two runs that share their keys, models and all other clients, and differ in one client, whatever it sends. Their noise is
the same, so that what they released differs by what that client added: whole steps of the lattice, x − x′. The sensitivity
bounds the norm of C·(x − x′). Here both are computed in whole numbers and fractions, so that "at most" has no last bit to hide
in.

A single pair proves a violation. That no pair violates the bound proves nothing of the pairs that were not tried.

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
from hubbub.mechanism.strategies import Identity
from hubbub.noise.steps import MOST_BITS, step_of

__all__ = ["Influence", "influence"]

# Clip norms by which two neighbouring data sets may differ in one round.
_MOVES = {"zero-out": 1, "add-or-remove-one": 1, "replace-one": 2}
Steps = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Influence:
    """How far the runs on two neighbouring data sets are apart, and how far they may be, in clip norms.

    Args:
        squared: Of C·(x − x′), all rounds together.
        bound: The square of the sensitivity.
        largest: Of x − x′ in the round in which it is longest, squared.
        allowed: In one round, squared.
        rounds: In which the two differ.
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
        """The verdict, in figures that are rounded."""
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
    """How far one client moved the releases of a run, by what two runs on neighbouring data sets released under the same keys.

    Args:
        mechanism: What was promised: C, whose matrix is formed unless its noise is independent, and who may take part when.
        differences: By round, from 0: the difference of the two releases in whole steps of the round's lattice, ``(dim,)``.
            Rounds that are left out differ by nothing.
        clip_norms: By round: of the lattice (with adaptive clipping the bound on an update together with its indicator).
        lattice_bits: Of the lattice.
        relation: ``"zero-out"`` or ``"add-or-remove-one"``, where one client is there or not, or ``"replace-one"``.

    Raises:
        ValueError: A round that the mechanism has not, a relation that is not known, or vectors of several lengths.
        TypeError: A difference that is not of whole numbers.
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
    units = [_unit(clip_norms[round_index], lattice_bits) for round_index in rounds]
    # Inner products of what was moved, in whole steps.
    inner = [[int(moved[a] @ moved[b]) for b in rounds] for a in rounds]
    gram = _gram(mechanism, rounds)
    squared = sum(
        (gram[i][j] * units[i] * units[j] * inner[i][j] for i in range(len(rounds)) for j in range(len(rounds))), Fraction(0)
    )
    largest = max((units[i] ** 2 * inner[i][i] for i in range(len(rounds))), default=Fraction(0))
    allowed = Fraction(_MOVES[relation]) ** 2
    return Influence(squared, allowed * Fraction(mechanism.l2_sensitivity) ** 2, largest, allowed, rounds)


def _whole(round_index: int, steps: Steps) -> npt.NDArray[Any]:
    """``(dim,)`` of Python's whole numbers, whose sums never overflow."""
    array = np.asarray(steps)
    if array.ndim != 1 or array.dtype.kind not in "iuO" or not all(isinstance(q, int) for q in array.tolist()):
        raise TypeError(f"round {round_index}: has shape {array.shape} and {array.dtype}: must be one vector of whole numbers")
    return array.astype(object)


def _unit(clip_norm: float, bits: int) -> Fraction:
    """One step of the lattice, in clip norms."""
    return Fraction(step_of(clip_norm, bits)) / Fraction(clip_norm)


def _gram(mechanism: Mechanism, rounds: tuple[int, ...]) -> list[list[Fraction]]:
    """Inner products of columns of C, whose entries are taken as the fractions that floating-point numbers are."""
    if type(mechanism.strategy) is Identity:
        # Which may have more rounds than a matrix could hold.
        return [[Fraction(one == other) for other in rounds] for one in rounds]
    columns = np.asarray(mechanism.strategy.matrix(), dtype=np.float64)[:, list(rounds)]
    fractions = [[Fraction(entry) for entry in column] for column in columns.T.tolist()]
    # Powers of two, so that the largest is a multiple of all.
    whole = max((entry.denominator for column in fractions for entry in column), default=1)
    scaled = [[entry.numerator * (whole // entry.denominator) for entry in column] for column in fractions]
    return [[Fraction(sum(a * b for a, b in zip(one, other, strict=True)), whole**2) for other in scaled] for one in scaled]
