"""Who may contribute when.

A participation pattern is a promise about the rounds of *one* client. The cohort sampler asks it before a round, the ledger
enforces it, and the sensitivity of a strategy is the worst case over what it allows. The union is closed: every
function that takes a pattern apart names each case, so a new one cannot be forgotten.

Random participation promises nothing about which rounds a client gets: only that coins which nobody sees or filters
decide. Accounting may amplify by them; a sensitivity must assume every round.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from hubbub._checks import integer, probability

__all__ = [
    "FixedEpochs",
    "FixedSizeSampling",
    "MinSeparation",
    "Participation",
    "Pattern",
    "PoissonSampling",
    "RandomParticipation",
    "SingleParticipation",
    "every_round",
    "require_participation",
]


def _distinct(rounds: Sequence[int]) -> list[int] | None:
    """The rounds in order, or ``None`` where one is negative or comes twice."""
    ordered = sorted(integer("round_index", r, at_least=-(2**63)) for r in rounds)
    if any(r < 0 for r in ordered) or any(a == b for a, b in itertools.pairwise(ordered)):
        return None
    return ordered


@dataclass(frozen=True)
class SingleParticipation:
    """Each client takes part in one round at most."""

    def allows(self, rounds: Sequence[int]) -> bool:
        """Whether one client may take part in all of these rounds."""
        ordered = _distinct(rounds)
        return ordered is not None and len(ordered) <= 1

    def may_follow(self, rounds: Sequence[int], round_index: int) -> bool:
        """Whether a client of these rounds, allowed and in order, may join a later one: :meth:`allows` in constant time."""
        return not rounds


@dataclass(frozen=True)
class FixedEpochs:
    """Each client takes part in at most ``epochs`` rounds, which lie exactly ``rounds_per_epoch`` apart.

    A client that skips an epoch keeps its place: rounds r, r + 2b are allowed.

    Example:
        >>> FixedEpochs(epochs=3, rounds_per_epoch=10).allows([4, 14, 24])
        True
        >>> FixedEpochs(epochs=3, rounds_per_epoch=10).allows([4, 15])
        False
    """

    epochs: int
    rounds_per_epoch: int

    def __post_init__(self) -> None:
        integer("epochs", self.epochs, at_least=1)
        integer("rounds_per_epoch", self.rounds_per_epoch, at_least=1)

    def allows(self, rounds: Sequence[int]) -> bool:
        """Whether one client may take part in all of these rounds."""
        ordered = _distinct(rounds)
        return (
            ordered is not None
            and all(r < self.epochs * self.rounds_per_epoch for r in ordered)
            and len({r % self.rounds_per_epoch for r in ordered}) <= 1
        )

    def may_follow(self, rounds: Sequence[int], round_index: int) -> bool:
        """Whether a client of these rounds, allowed and in order, may join a later one: :meth:`allows` in constant time."""
        gap = round_index - rounds[-1] if rounds else self.rounds_per_epoch
        return round_index < self.epochs * self.rounds_per_epoch and gap > 0 and gap % self.rounds_per_epoch == 0


@dataclass(frozen=True)
class MinSeparation:
    """Each client takes part at most ``max_participations`` times, any two at least ``min_separation`` rounds apart.

    ``min_separation`` is b: a client that joins round r may join again in round r + b. Google's accounting notebook and
    tensorflow-privacy count the rounds *between* two participations, which is one less: their 484 is 485 here.

    Example:
        >>> MinSeparation(min_separation=3, max_participations=2).allows([1, 4])
        True
        >>> MinSeparation(min_separation=3, max_participations=2).allows([1, 3])
        False
    """

    min_separation: int
    max_participations: int

    def __post_init__(self) -> None:
        integer("min_separation", self.min_separation, at_least=1)
        integer("max_participations", self.max_participations, at_least=1)

    def allows(self, rounds: Sequence[int]) -> bool:
        """Whether one client may take part in all of these rounds."""
        ordered = _distinct(rounds)
        return (
            ordered is not None
            and len(ordered) <= self.max_participations
            and all(b - a >= self.min_separation for a, b in itertools.pairwise(ordered))
        )

    def may_follow(self, rounds: Sequence[int], round_index: int) -> bool:
        """Whether a client of these rounds, allowed and in order, may join a later one: :meth:`allows` in constant time."""
        return len(rounds) < self.max_participations and (not rounds or round_index - rounds[-1] >= self.min_separation)


@dataclass(frozen=True)
class PoissonSampling:
    """In every round each client takes part with the same probability, by a coin of its own."""

    sampling_probability: float

    def __post_init__(self) -> None:
        probability("sampling_probability", self.sampling_probability)

    def allows(self, rounds: Sequence[int]) -> bool:
        """Whether one client may take part in all of these rounds: chance excludes none."""
        return _distinct(rounds) is not None

    def may_follow(self, rounds: Sequence[int], round_index: int) -> bool:
        """Whether a client of these rounds, in order, may join a later one: chance excludes none."""
        return not rounds or round_index > rounds[-1]


@dataclass(frozen=True)
class FixedSizeSampling:
    """In every round a cohort of ``cohort_size`` of the ``population`` clients is drawn, each equally likely."""

    cohort_size: int
    population: int

    def __post_init__(self) -> None:
        integer("population", self.population, at_least=1)
        integer("cohort_size", self.cohort_size, at_least=1, at_most=self.population)

    def allows(self, rounds: Sequence[int]) -> bool:
        """Whether one client may take part in all of these rounds: chance excludes none."""
        return _distinct(rounds) is not None

    def may_follow(self, rounds: Sequence[int], round_index: int) -> bool:
        """Whether a client of these rounds, in order, may join a later one: chance excludes none."""
        return not rounds or round_index > rounds[-1]


Pattern = SingleParticipation | FixedEpochs | MinSeparation
RandomParticipation = PoissonSampling | FixedSizeSampling
Participation = Pattern | RandomParticipation


def require_participation(value: object) -> None:
    """Refuse what says nothing about who may contribute when.

    Raises:
        TypeError: The value is of none of the participations.
    """
    if not isinstance(value, Participation):
        raise TypeError(
            f"participation = {value!r}: must be SingleParticipation(), FixedEpochs(epochs, rounds_per_epoch), "
            "MinSeparation(min_separation, max_participations), or random cohorts, from hubbub.participation"
        )


def every_round(rounds: int) -> MinSeparation:
    """The pattern that allows everything: each client in each of ``rounds`` rounds."""
    return MinSeparation(min_separation=1, max_participations=rounds)
