"""What one round costs: the pair of distributions that a guarantee must keep apart, as data.

``noise_multiplier`` is σ/C, the standard deviation of the noise on the sum over the clip norm. Relations are those of
:data:`RELATIONS`; each event knows under which of them a theorem bounds it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from hubbub._util.checks import integer, non_negative, one_of, plain_numbers, probability, scale, shown

NeighboringRelation = Literal["zero-out", "add-or-remove-one", "replace-one"]
RELATIONS: tuple[NeighboringRelation, ...] = get_args(NeighboringRelation)
# More would not be distinguished by the numbers that they are computed with.
MOST_ROUNDS = 10**12
_MOST_SHARES, _MOST_DIM = 10**9, 10**12
# Up to here the terms of a sum are added one by one; the later ones are smaller than the last of them.
_TERMS = 10**5
# Of it e is less than the least float.
_LEAST_EXPONENT = -750.0


@dataclass(frozen=True)
class Gaussian:
    """One release of a sum to which the unit contributes for certain.

    Args:
        noise_multiplier: Standard deviation of the noise over the clip norm; above 0.

    Example:
        >>> Gaussian(noise_multiplier=2)
        Gaussian(noise_multiplier=2.0)

    Source: Balle and Wang 2018, Theorem 8, https://arxiv.org/abs/1805.06530.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        plain_numbers(self, noise_multiplier=scale)


@dataclass(frozen=True)
class PoissonSampled:
    """One release of a sum that the unit joins by Poisson sampling, which nobody sees.

    Args:
        noise_multiplier: Standard deviation of the noise over the clip norm; above 0.
        sampling_probability: That the unit is in the round, above 0 and at most 1, whoever else is.

    Example:
        >>> from hubbub.accounting import epsilon
        >>> event = PoissonSampled(noise_multiplier=1.0, sampling_probability=0.01)
        >>> [round(epsilon([(event, rounds)], 1e-6, "add-or-remove-one"), 2) for rounds in (1, 100, 10_000)]
        [0.36, 0.95, 6.91]

    Source: Mironov, Talwar and Zhang 2019, https://arxiv.org/abs/1908.10530; Zhu, Dong and Wang 2022, Theorem 11,
    https://arxiv.org/abs/2106.08567.
    """

    noise_multiplier: float
    sampling_probability: float

    def __post_init__(self) -> None:
        plain_numbers(self, noise_multiplier=scale, sampling_probability=probability)


@dataclass(frozen=True)
class FixedSizeSampled:
    """One release of the sum over ``cohort_size`` of ``population`` units, drawn without replacement and unseen.

    Under replace-one and add-or-remove-one it costs the profile q·δ_{2/σ}(ln(1 + (e^ε − 1)/q)): a unit takes another's place,
    which moves the sum by twice the clip norm. Zero-out costs less, and more than Poisson sampling.

    Args:
        noise_multiplier: Standard deviation of the noise over the clip norm; above 0.
        cohort_size: Units in the round, from 1 to ``population``.
        population: Units in all; the same number whoever they are.

    Example:
        >>> from hubbub.accounting import epsilon
        >>> event = FixedSizeSampled(noise_multiplier=2.0, cohort_size=100, population=10_000)
        >>> round(epsilon([(event, 1000)], 1e-6, "replace-one"), 2)
        2.51

    Source: Balle, Barthe and Gaboardi 2018, Theorem 9, https://arxiv.org/abs/1807.01647; Zhu, Dong and Wang 2022,
    Theorem 10, https://arxiv.org/abs/2106.08567.
    """

    noise_multiplier: float
    cohort_size: int
    population: int

    def __post_init__(self) -> None:
        plain_numbers(self, noise_multiplier=scale)
        integer("population", self.population, at_least=1, at_most=10**15)
        integer("cohort_size", self.cohort_size, at_least=1, at_most=self.population)

    @property
    def sampling_probability(self) -> float:
        """The chance of one unit to be in the cohort."""
        return self.cohort_size / self.population


@dataclass(frozen=True)
class TruncatedPoissonSampled:
    """One release of a Poisson cohort that is cut to ``max_cohort_size`` members by a random draw where it is larger.

    Under add-or-remove-one the unit that may be missing is one of the ``population``.

    Args:
        noise_multiplier: Standard deviation of the noise over the clip norm; above 0.
        sampling_probability: That a unit is in the cohort before it is cut, above 0 and at most 1.
        max_cohort_size: The most members that are kept, at least 1.
        population: Units in all, at least 1.

    Example:
        >>> from hubbub.accounting import epsilon
        >>> event = TruncatedPoissonSampled(2.0, sampling_probability=0.01, max_cohort_size=150, population=10_000)
        >>> round(epsilon([(event, 1000)], 1e-6, "add-or-remove-one"), 2)
        0.72

    Source: Ganesh et al. 2025, https://arxiv.org/abs/2508.15089.
    """

    noise_multiplier: float
    sampling_probability: float
    max_cohort_size: int
    population: int

    def __post_init__(self) -> None:
        plain_numbers(self, noise_multiplier=scale, sampling_probability=probability)
        integer("population", self.population, at_least=1, at_most=10**15)
        integer("max_cohort_size", self.max_cohort_size, at_least=1)


@dataclass(frozen=True)
class BallsInBins:
    """A whole run of ``rounds`` rounds with independent noise, in which each unit draws one of ``bins`` bins, once and unseen.

    A unit of bin s takes part in the rounds s, s + bins, s + 2·bins, …

    Args:
        noise_multiplier: Standard deviation of the noise over the clip norm; above 0.
        bins: From 1 to ``rounds``; each is equally likely.
        rounds: Of the whole run, at least 1.

    Example:
        >>> from hubbub.accounting import epsilon
        >>> round(epsilon([(BallsInBins(noise_multiplier=1.0, bins=100, rounds=100), 10)], 1e-6, "add-or-remove-one"), 2)
        1.96

    Source: Chua et al. 2025, https://arxiv.org/abs/2412.16802.
    """

    noise_multiplier: float
    bins: int
    rounds: int

    def __post_init__(self) -> None:
        plain_numbers(self, noise_multiplier=scale)
        integer("rounds", self.rounds, at_least=1, at_most=MOST_ROUNDS)
        integer("bins", self.bins, at_least=1, at_most=self.rounds)


@dataclass(frozen=True)
class TreeAggregation:
    """One tree over ``rounds`` rounds, whose every node is released with noise of its own; a restart is another such event.

    Args:
        noise_multiplier: Standard deviation of the noise of a node over the clip norm.
        rounds: Of the tree.
        max_participations: Rounds of this tree that one unit may join.
        min_separation: A unit that joins round r may join again in round r + this.

    Example:
        >>> from hubbub.accounting import epsilon
        >>> round(epsilon([(TreeAggregation(noise_multiplier=5.0, rounds=1024), 1)], 1e-6, "zero-out"), 2)
        3.08

    Source: Kairouz et al. 2021, Appendix D, https://arxiv.org/abs/2103.00039.
    """

    noise_multiplier: float
    rounds: int
    max_participations: int = 1
    min_separation: int = 1

    def __post_init__(self) -> None:
        plain_numbers(self, noise_multiplier=scale)
        integer("rounds", self.rounds, at_least=1, at_most=10**7)
        integer("max_participations", self.max_participations, at_least=1)
        integer("min_separation", self.min_separation, at_least=1)


@dataclass(frozen=True)
class MixtureOfGaussians:
    """One release to which the unit contributes with a norm drawn by chance, unseen.

    Args:
        noise_multiplier: Standard deviation of the noise over the clip norm.
        sensitivities: Norms that may be drawn, over the clip norm, each at least 0 and one above 0.
        probabilities: Of each; they sum to 1.

    Example:
        >>> from hubbub.accounting import PoissonSampled, epsilon
        >>> event = MixtureOfGaussians(noise_multiplier=1.0, sensitivities=(0.0, 1.0), probabilities=(0.9, 0.1))
        >>> [round(epsilon([(kind, 10)], 1e-6, "zero-out"), 3) for kind in (event, PoissonSampled(1.0, 0.1))]
        [3.466, 3.466]

    Source: Choquette-Choo et al. 2023, https://arxiv.org/abs/2310.15526.
    """

    noise_multiplier: float
    sensitivities: tuple[float, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        plain_numbers(self, noise_multiplier=scale)
        for name, check in (("sensitivities", non_negative), ("probabilities", probability)):
            values = getattr(self, name)
            if isinstance(values, str) or not isinstance(values, Iterable):
                raise TypeError(f"{name} = {values!r}: must be a tuple of numbers")
            object.__setattr__(self, name, tuple(check(name, value) for value in values))
        if len(self.sensitivities) != len(self.probabilities):
            raise ValueError(
                f"probabilities = {self.probabilities!r}: there are {len(self.sensitivities)} sensitivities, each needs one"
            )
        if not self.sensitivities or max(self.sensitivities) == 0:
            raise ValueError(f"sensitivities = {self.sensitivities!r}: one must be above 0")
        scale("sensitivities", max(self.sensitivities))
        if abs(math.fsum(self.probabilities) - 1) > 1e-12:
            raise ValueError(f"probabilities = {self.probabilities!r}: must sum to 1, not {math.fsum(self.probabilities)!r}")


@dataclass(frozen=True)
class DiscreteGaussianShares:
    """One release of a sum of whole numbers to which the unit contributes for certain, and of the shares of noise in it.

    Each share is a discrete Gaussian, up to a statistical distance that delta counts. Their sum is not, and is known by its
    Rényi divergences alone.

    Args:
        noise_multiplier: √shares × ``share_stddev`` over the clip norm in steps, or less.
        shares: How many are in the sum, or fewer.
        share_stddev: Standard deviation of a share in steps, or less: a whole number.
        dim: Numbers in the sum, or more.

    Example:
        >>> from hubbub.accounting import epsilon
        >>> event = DiscreteGaussianShares(noise_multiplier=2.0, shares=100, share_stddev=20, dim=1000)
        >>> [round(epsilon([(kind, 10)], 1e-6, "zero-out"), 2) for kind in (Gaussian(2.0), event)]
        [8.31, 8.85]

    Source: Kairouz, Liu and Steinke 2021, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
    Aggregation", Proposition 14 (for a ``share_stddev`` of at least 1/2), https://arxiv.org/abs/2102.06387.
    """

    noise_multiplier: float
    shares: int
    share_stddev: int
    dim: int

    def __post_init__(self) -> None:
        plain_numbers(self, noise_multiplier=scale)
        integer("shares", self.shares, at_least=1, at_most=_MOST_SHARES)
        integer("share_stddev", self.share_stddev, at_least=1, at_most=2**40)
        integer("dim", self.dim, at_least=1, at_most=_MOST_DIM)

    @cached_property
    def excess(self) -> float:
        """τ: how much more a number of the sum may lose than one discrete Gaussian of the same variance does, from above."""
        exponent = -2 * (math.pi * self.share_stddev) ** 2
        single = range(1, min(self.shares, _TERMS))
        terms = [math.exp(exponent * (k / (k + 1))) for k in single if exponent / 2 > _LEAST_EXPONENT]
        last = terms[-1] if terms else 0.0
        return 10 * (math.fsum(terms) + (self.shares - 1 - len(single)) * last) * (1 + 1e-9)


Event = (
    Gaussian
    | PoissonSampled
    | FixedSizeSampled
    | TruncatedPoissonSampled
    | BallsInBins
    | TreeAggregation
    | MixtureOfGaussians
    | DiscreteGaussianShares
)


def require_event(event: object) -> Event:
    """The event, checked: a ``TypeError`` if it is none."""
    if not isinstance(event, get_args(Event)):
        raise TypeError(
            f"event = {shown(event)}: must be an event of hubbub.accounting, such as Gaussian(noise_multiplier=1.0), not "
            f"{type(event).__name__}"
        )
    return event  # type: ignore[no-any-return] # isinstance with the union's own members


def counted(events: object) -> list[tuple[Event, int]]:
    """The events that happen at all, equal ones together.

    Args:
        events: Pairs (event, number of rounds that cost it).
    """
    if isinstance(events, str | Event) or not isinstance(events, Iterable):
        raise TypeError(f"events = {shown(events)}: must be a list of pairs (event, rounds), such as [(event, 2000)]")
    together: dict[Event, int] = {}
    for pair in events:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise TypeError(f"events: {shown(pair)} is no pair (event, rounds), such as (event, 2000)")
        event = require_event(pair[0])
        together[event] = together.get(event, 0) + integer("rounds", pair[1], at_least=0, at_most=MOST_ROUNDS)
    return [(event, integer("rounds", number, at_least=1, at_most=MOST_ROUNDS)) for event, number in together.items() if number]


def require_relation(neighboring_relation: str) -> NeighboringRelation:
    """The relation, checked: a ``ValueError`` if there is no such one."""
    return one_of("neighboring_relation", neighboring_relation, RELATIONS)  # type: ignore[return-value] # one of its words
