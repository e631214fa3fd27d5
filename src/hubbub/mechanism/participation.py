"""Participation: which rounds a client may join, by a fixed pattern or by random sampling.

A participation pattern limits the rounds of *one* client. The cohort sampler checks it before a round, the ledger enforces it,
and the sensitivity of a strategy is the worst case over all sets of rounds that it allows. The union is closed: every `match`
names each case, and mypy finds a missing one.

Random participation means that a secret random draw decides which rounds a client joins. Accounting may amplify by it; a
sensitivity must assume every set of rounds that can be drawn for one client: see :func:`covering`.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast, get_args

import numpy as np
import numpy.typing as npt

from hubbub._util.checks import integer, one_of, plain_numbers, positive_integer, probability, rounds_count

__all__ = [
    "PARTICIPATIONS",
    "PATTERN_WORDS",
    "SAMPLING_WORDS",
    "BallsInBinsSampling",
    "CyclicPoissonSampling",
    "FixedEpochs",
    "FixedSizeSampling",
    "MinSeparation",
    "Participation",
    "Pattern",
    "PoissonSampling",
    "RandomParticipation",
    "SingleParticipation",
    "TruncatedPoissonSampling",
    "covering",
    "every_round",
    "participation_of",
    "participation_record",
    "require_participation",
    "require_pattern",
    "sampling_word",
    "worst_rounds",
]


class _Law(NamedTuple):
    """Which rounds one client may join: at most ``most``, all before ``end``, ``apart`` apart, or ``multiples`` of it."""

    apart: int = 1
    multiples: bool = False
    most: float = math.inf
    end: float = math.inf


class _Participation:
    """Shared by all participations: which rounds one client may join."""

    @cached_property
    def _law(self) -> _Law:
        """Which rounds one client may join; a random draw without groups or bins excludes none."""
        match cast("Participation", self):
            case SingleParticipation():
                return _Law(most=1)
            case FixedEpochs(epochs, b):
                return _Law(b, multiples=True, end=epochs * b)
            case MinSeparation(b, k):
                return _Law(b, most=k)
            case CyclicPoissonSampling(cycle_length=b) | BallsInBinsSampling(bins=b):
                return _Law(b, multiples=True)
            case PoissonSampling() | FixedSizeSampling() | TruncatedPoissonSampling():
                return _Law()

    def allows(self, rounds: Sequence[int]) -> bool:
        """Whether one client may take part in all of these rounds, given in any order."""
        ordered = sorted(integer("round_index", r, at_least=-(2**63)) for r in rounds)
        apart, multiples, most, end = self._law
        gaps = (b - a for a, b in itertools.pairwise(ordered))
        within = not ordered or (ordered[0] >= 0 and ordered[-1] < end)
        return within and len(ordered) <= most and all(gap >= apart and not (multiples and gap % apart) for gap in gaps)

    def may_follow(
        self, counts: npt.NDArray[np.integer], last: npt.NDArray[np.integer], round_index: int
    ) -> npt.NDArray[np.bool_]:
        """Which clients may join a later round, ``(clients,)``: :meth:`allows` in constant time for each.

        ``counts`` and ``last``, ``(clients,)``, are the number of rounds that each joined, as allowed, and the last of them.
        """
        apart, multiples, most, end = self._law
        # No run has as many rounds as an int32 holds.
        apart, gaps = min(apart, 2**31 - 1), round_index - last
        apart_enough = (gaps % apart == 0) & (gaps > 0) if multiples else gaps >= apart
        free: npt.NDArray[np.bool_] = ((counts == 0) | apart_enough) & (counts < most) & (round_index < end)
        return free

    def expected_cohort_size(self, clients: int, rounds: int) -> float:
        """The average cohort size with ``clients`` clients: each joins one round in ``apart`` with its probability."""
        return float(getattr(self, "sampling_probability", 1.0) * clients / self._law.apart)


@dataclass(frozen=True)
class SingleParticipation(_Participation):
    """Each client takes part in one round at most.

    Example:
        >>> SingleParticipation().allows([7]), SingleParticipation().allows([7, 9])
        (True, False)
    """

    def expected_cohort_size(self, clients: int, rounds: int) -> float:
        """The cohort size that leaves enough of ``clients`` clients for each of ``rounds`` rounds."""
        return float(clients // rounds)


@dataclass(frozen=True)
class FixedEpochs(_Participation):
    """Each client takes part in at most ``epochs`` rounds, which lie exactly ``rounds_per_epoch`` apart.

    A client that skips an epoch keeps its place: rounds r, r + 2b are allowed. All are among the first k·b rounds: a longer run
    has no client after them.

    Args:
        epochs: k: the most rounds of one client, at least 1.
        rounds_per_epoch: b: the rounds from one participation to the next, at least 1.

    Example:
        >>> FixedEpochs(epochs=3, rounds_per_epoch=10).allows([4, 14, 24])
        True
        >>> FixedEpochs(epochs=3, rounds_per_epoch=10).allows([4, 15]), FixedEpochs(epochs=3, rounds_per_epoch=10).allows([30])
        (False, False)
    """

    epochs: int
    rounds_per_epoch: int

    def __post_init__(self) -> None:
        plain_numbers(self, epochs=positive_integer, rounds_per_epoch=positive_integer)


@dataclass(frozen=True)
class MinSeparation(_Participation):
    """Each client takes part at most ``max_participations`` times, any two at least ``min_separation`` rounds apart.

    ``min_separation`` is b: a client that joins round r may join again in round r + b. Google's accounting notebook and
    tensorflow-privacy count the rounds *between* two participations, which is one less: their 484 is 485 here.

    Args:
        min_separation: b, at least 1.
        max_participations: k: the most rounds of one client, at least 1.

    Example:
        >>> MinSeparation(min_separation=3, max_participations=2).allows([1, 4])
        True
        >>> MinSeparation(min_separation=3, max_participations=2).allows([1, 3])
        False
    """

    min_separation: int
    max_participations: int

    def __post_init__(self) -> None:
        plain_numbers(self, min_separation=positive_integer, max_participations=positive_integer)

    def expected_cohort_size(self, clients: int, rounds: int) -> float:
        """The cohort size at which enough of ``clients`` clients are free in each round."""
        return float(min(clients // min(self.min_separation, rounds), int(clients) * self.max_participations // int(rounds)))


@dataclass(frozen=True)
class PoissonSampling(_Participation):
    """Poisson sampling: in every round each client takes part with the same probability, independently.

    Args:
        sampling_probability: That a client takes part in a round, above 0 and at most 1.

    Example:
        >>> PoissonSampling(0.1).expected_cohort_size(clients=500, rounds=20)
        50.0
    """

    sampling_probability: float

    def __post_init__(self) -> None:
        plain_numbers(self, sampling_probability=probability)


@dataclass(frozen=True)
class FixedSizeSampling(_Participation):
    """Fixed-size sampling: every round has ``cohort_size`` of the ``population`` clients, each subset equally likely.

    Args:
        cohort_size: Clients in each round, from 1 to ``population``.
        population: Clients in all, which the draw knows: as many as the run has.

    Example:
        >>> FixedSizeSampling(cohort_size=10, population=9)
        Traceback (most recent call last):
        ValueError: cohort_size = 10: must be at most 9
    """

    cohort_size: int
    population: int

    def __post_init__(self) -> None:
        plain_numbers(self, population=positive_integer)
        integer("cohort_size", self.cohort_size, at_least=1, at_most=self.population)

    def expected_cohort_size(self, clients: int, rounds: int) -> float:
        """The cohort size."""
        return float(self.cohort_size)


@dataclass(frozen=True)
class TruncatedPoissonSampling(_Participation):
    """Truncated Poisson sampling: a cohort above ``max_cohort_size`` is cut to that size, each subset equally likely.

    Args:
        sampling_probability: That a client is in the cohort before it is cut, above 0 and at most 1.
        max_cohort_size: The most clients of a round, at least 1.
        population: Clients in all, at least 1.

    Example:
        >>> TruncatedPoissonSampling(0.1, max_cohort_size=40, population=500).expected_cohort_size(clients=500, rounds=20)
        40.0

    Source: Ganesh et al. 2025, https://arxiv.org/abs/2508.15089.
    """

    sampling_probability: float
    max_cohort_size: int
    population: int

    def __post_init__(self) -> None:
        plain_numbers(self, sampling_probability=probability, max_cohort_size=positive_integer, population=positive_integer)

    def expected_cohort_size(self, clients: int, rounds: int) -> float:
        """The average cohort size with ``clients`` clients, at most."""
        return min(super().expected_cohort_size(clients, rounds), float(self.max_cohort_size))


@dataclass(frozen=True)
class CyclicPoissonSampling(_Participation):
    """Cyclic Poisson sampling: round t has a Poisson sample of group t mod ``cycle_length``.

    Each client belongs permanently to one of ``cycle_length`` groups, which depends neither on the data nor on the other
    clients.

    Args:
        sampling_probability: That a client takes part in a round of its group.
        cycle_length: b: the rounds of one client are multiples of it apart.

    Example:
        >>> CyclicPoissonSampling(sampling_probability=0.5, cycle_length=4).allows([1, 5, 13])
        True

    Source: Choquette-Choo et al. 2023, Algorithm 2 and Theorem 5, https://arxiv.org/abs/2306.08153.
    """

    sampling_probability: float
    cycle_length: int

    def __post_init__(self) -> None:
        plain_numbers(self, sampling_probability=probability, cycle_length=positive_integer)


@dataclass(frozen=True)
class BallsInBinsSampling(_Participation):
    """Balls in bins: each client draws one of ``bins`` bins for the whole run; bin s joins the rounds s, s + bins, and so on.

    A client's bin does not depend on the other clients. A round has 1/``bins`` of the clients on average, and every client
    takes part once in ``bins`` rounds.

    Args:
        bins: b: the rounds from one participation of a client to the next, from 1 to 10⁷.

    Example:
        >>> BallsInBinsSampling(bins=10).allows([4, 14, 34]), BallsInBinsSampling(bins=10).allows([4, 15])
        (True, False)

    Source: Chua et al. 2025, https://arxiv.org/abs/2412.16802; jax_privacy calls ``bins`` the cycle length.
    """

    bins: int

    def __post_init__(self) -> None:
        # No strategy has more rounds, and a bin without a round is useless.
        plain_numbers(self, bins=rounds_count)


Pattern = SingleParticipation | FixedEpochs | MinSeparation
RandomParticipation = (
    PoissonSampling | FixedSizeSampling | TruncatedPoissonSampling | CyclicPoissonSampling | BallsInBinsSampling
)
Participation = Pattern | RandomParticipation
# By their names in records and files.
PARTICIPATIONS: dict[str, type] = {kind.__name__: kind for kind in get_args(Participation)}


def covering(participation: Participation, rounds: int) -> Pattern:
    """The pattern that allows every set of rounds that the participation can give one client within ``rounds`` rounds.

    A guarantee for the pattern without amplification covers the participation. A pattern covers itself; groups and bins are
    rounds a fixed distance apart; other random cohorts may sample a client in every round.

    Raises:
        TypeError: The value is not one of the participations.

    Example:
        >>> covering(BallsInBinsSampling(bins=10), rounds=25)
        FixedEpochs(epochs=3, rounds_per_epoch=10)
    """
    require_participation(participation)
    match participation:
        case SingleParticipation() | FixedEpochs() | MinSeparation():
            return participation
        case PoissonSampling() | FixedSizeSampling() | TruncatedPoissonSampling():
            return every_round(rounds)
        case CyclicPoissonSampling(cycle_length=slots) | BallsInBinsSampling(bins=slots):
            return FixedEpochs(-(-rounds // slots), slots)


def require_pattern(participation: Participation) -> Pattern:
    """The participation, if it is a pattern that a strategy can be optimized for; random cohorts are refused.

    Raises:
        ValueError: The participation is random.
        TypeError: The value is not one of the participations.

    Example:
        >>> require_pattern(FixedEpochs(epochs=2, rounds_per_epoch=4))
        FixedEpochs(epochs=2, rounds_per_epoch=4)
        >>> require_pattern(PoissonSampling(0.1))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ValueError: participation = PoissonSampling(sampling_probability=0.1): ...
    """
    require_participation(participation)
    if isinstance(participation, RandomParticipation):
        raise ValueError(
            f"participation = {participation!r}: random cohorts promise no set of rounds to optimize for; optimize for a "
            "pattern, such as SingleParticipation(), and calibrate the noise for the random cohorts"
        )
    return participation


def worst_rounds(participation: Participation, rounds: int) -> tuple[int, int]:
    """d and r such that the worst rounds of one client are 0, d, …, (r − 1)·d, for columns ≥ 0 that do not grow.

    One participation gives d = ``rounds`` and r = 1.

    Raises:
        ValueError: The participation is random.

    Example:
        >>> worst_rounds(MinSeparation(min_separation=3, max_participations=9), rounds=10)
        (3, 4)
    """
    match require_pattern(participation):
        case SingleParticipation():
            return rounds, 1
        case FixedEpochs(r, d) | MinSeparation(d, r):
            d = min(d, rounds)
            r = min(r, -(-rounds // d))
            return (d, r) if r > 1 else (rounds, 1)


def participation_record(participation: Participation) -> dict[str, Any]:
    """A participation by name and numbers, as strict JSON values.

    Example:
        >>> participation_record(FixedEpochs(2, 50))
        {'name': 'FixedEpochs', 'epochs': 2, 'rounds_per_epoch': 50}
    """
    return {"name": type(participation).__name__, **asdict(participation)}


def participation_of(record: Mapping[str, Any]) -> Participation:
    """The participation of a record, each of its numbers checked.

    Raises:
        ValueError: An unknown participation, or numbers out of range.
        TypeError: A value of another type, or a field too many or missing.

    Example:
        >>> participation_of(participation_record(FixedEpochs(2, 50)))
        FixedEpochs(epochs=2, rounds_per_epoch=50)
    """
    stated = dict(record)
    name = one_of("participation.name", stated.pop("name", None), PARTICIPATIONS)
    participation: Participation = PARTICIPATIONS[name](**stated)
    return participation


# Patterns and random participations by their names in settings.
PATTERN_WORDS: dict[type, str] = {
    MinSeparation: "min-separation",
    FixedEpochs: "fixed-epochs",
    SingleParticipation: "single",
}
SAMPLING_WORDS: dict[type, str] = {
    PoissonSampling: "poisson",
    TruncatedPoissonSampling: "truncated-poisson",
    CyclicPoissonSampling: "cyclic-poisson",
    BallsInBinsSampling: "balls-in-bins",
    FixedSizeSampling: "fixed-size",
}


def sampling_word(participation: Participation) -> str:
    """The name of the sampling scheme in settings; ``"pattern"`` for patterns.

    Example:
        >>> sampling_word(FixedEpochs(2, 50)), sampling_word(BallsInBinsSampling(bins=10))
        ('pattern', 'balls-in-bins')
    """
    return SAMPLING_WORDS.get(type(participation), "pattern")


def require_participation(value: object) -> None:
    """Refuse a value that is not one of the participations.

    Raises:
        TypeError: The value is not one of the participations.

    Example:
        >>> require_participation(PoissonSampling(0.1))
        >>> require_participation(0.1)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        TypeError: participation = 0.1: must be ...
    """
    # Subclasses are refused too: what they allow, or their probability, could change later.
    if type(value) not in PARTICIPATIONS.values():
        raise TypeError(
            f"participation = {value!r}: must be SingleParticipation(), FixedEpochs(epochs, rounds_per_epoch), "
            "MinSeparation(min_separation, max_participations), or random cohorts, from hubbub.mechanism.participation"
        )


def every_round(rounds: int) -> MinSeparation:
    """The pattern that allows each client in each of ``rounds`` rounds.

    Example:
        >>> every_round(3)
        MinSeparation(min_separation=1, max_participations=3)
    """
    return MinSeparation(min_separation=1, max_participations=rounds)
