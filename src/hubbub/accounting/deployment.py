"""What a mechanism is chosen for: so many rounds of so many clients, and a budget.

Letters: n rounds, N clients, m clients a round, b the rounds after which N clients are through, ⌊N/m⌋.
"""

import math
from dataclasses import dataclass

from hubbub._checks import integer, one_of, open_unit, rounds_count, scale
from hubbub.accounting.calibrate import calibrate
from hubbub.accounting.composition import ACCOUNTANTS
from hubbub.accounting.events import require_relation
from hubbub.errors import ConfigError
from hubbub.mechanism import Mechanism
from hubbub.participation import (
    BallsInBinsSampling,
    CyclicPoissonSampling,
    FixedEpochs,
    FixedSizeSampling,
    MinSeparation,
    Participation,
    PoissonSampling,
    SingleParticipation,
    TruncatedPoissonSampling,
)
from hubbub.strategies import Strategy

__all__ = ["Budget", "Deployment", "sampling_word"]


@dataclass(frozen=True)
class Deployment:
    """How many rounds there are to be, and how many clients.

    Args:
        rounds: n.
        population: N, the clients that there are.
        cohort_size: m, the clients that are to take part in a round, exactly or on average.
        min_separation: Rounds from one participation of a client to the next, in patterns; by default the most, ⌊N/m⌋.
    """

    rounds: int
    population: int
    cohort_size: int
    min_separation: int | None = None

    def __post_init__(self) -> None:
        rounds_count(self.rounds)
        integer("population", self.population, at_least=1)
        integer("cohort_size", self.cohort_size, at_least=1, at_most=self.population)
        if self.min_separation is not None:
            most = self.population // self.cohort_size
            separation = integer("min_separation", self.min_separation, at_least=1)
            if separation > most:
                raise ConfigError(
                    f"min_separation = {separation}: {self.population} clients in cohorts of {self.cohort_size} are through "
                    f"after {most} rounds; lower it to {most}, or the cohort size to {self.population // separation}"
                )

    @property
    def cycle(self) -> int:
        """b: as many cohorts as the clients make, at most one a round."""
        return min(self.rounds, self.population // self.cohort_size)

    @property
    def pattern(self) -> MinSeparation:
        """What the server can promise of each client without a coin."""
        separation = min(self.rounds, self.min_separation or self.cycle)
        return MinSeparation(separation, math.ceil(self.rounds / separation))

    @property
    def independent(self) -> tuple[Participation, ...]:
        """The cohorts for which independent noise is accounted."""
        poisson = PoissonSampling(self.cohort_size / self.population)
        fixed = FixedSizeSampling(self.cohort_size, self.population)
        return poisson, fixed, self.pattern

    def cyclic(self, bands: int) -> CyclicPoissonSampling:
        """Cyclic cohorts of as many groups as bands: more groups are amplified less."""
        return CyclicPoissonSampling(bands * self.cohort_size / self.population, bands)


@dataclass(frozen=True)
class Budget:
    """What may be spent.

    Args:
        epsilon: From 1e-12 to 1e12.
        delta: Strictly between 0 and 1.
        neighboring_relation: The same for all, so that they compare.
        accountant: As for :func:`hubbub.accounting.epsilon`.
    """

    epsilon: float
    delta: float
    neighboring_relation: str = "zero-out"
    accountant: str = "tight"

    def __post_init__(self) -> None:
        scale("epsilon", self.epsilon)
        open_unit("delta", self.delta)
        require_relation(self.neighboring_relation)
        one_of("accountant", self.accountant, ACCOUNTANTS)

    def meets(self, strategy: Strategy, participation: Participation) -> Mechanism:
        """The mechanism with the least noise that meets it."""
        return calibrate(
            strategy,
            participation,
            epsilon=self.epsilon,
            delta=self.delta,
            neighboring_relation=self.neighboring_relation,
            accountant=self.accountant,
        )


def sampling_word(participation: Participation) -> str:
    """``"pattern"``, or the kind of random cohorts."""
    match participation:
        case SingleParticipation() | FixedEpochs() | MinSeparation():
            return "pattern"
        case PoissonSampling():
            return "poisson"
        case TruncatedPoissonSampling():
            return "truncated-poisson"
        case CyclicPoissonSampling():
            return "cyclic-poisson"
        case BallsInBinsSampling():
            return "balls-in-bins"
        case FixedSizeSampling():
            return "fixed-size"
