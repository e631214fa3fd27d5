"""What a mechanism costs: its rounds as events, and the relation under which they are stated.

Random cohorts amplify where a theorem says so, by the number of bands of C, which must be square and lower triangular:

* one band, independent noise: every round is an event of its own;
* at most as many bands as there are groups of cyclic cohorts: two columns of one client share no row, so that the client's
  rounds are Poisson-sampled Gaussians, one after the other, each with the noise of its column's norm or more.

Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", Theorems 4 and 5, https://arxiv.org/abs/2306.08153.
"""

import math
from fractions import Fraction

import numpy as np

from hubbub._util import least_root
from hubbub._util.checks import integer
from hubbub.accounting.events import (
    RELATIONS,
    BallsInBins,
    DiscreteGaussianShares,
    Event,
    FixedSizeSampled,
    Gaussian,
    NeighboringRelation,
    PoissonSampled,
    TruncatedPoissonSampled,
    require_relation,
)
from hubbub.errors import ConfigError
from hubbub.mechanism import Mechanism, NoiseShares
from hubbub.mechanism import participation as parts
from hubbub.mechanism.sensitivity import bands_of, is_triangular
from hubbub.mechanism.strategies import Strategy, own

# No event has less: what costs less costs this.
_LEAST_MU_SQUARED = Fraction(1, 10**24)


def default_relation(participation: parts.Participation) -> NeighboringRelation:
    """Add-or-remove-one for cohorts that each unit joins at random, zero-out for patterns and cohorts of a fixed size."""
    match participation:
        case parts.SingleParticipation() | parts.FixedEpochs() | parts.MinSeparation() | parts.FixedSizeSampling():
            return "zero-out"
        case (
            parts.PoissonSampling()
            | parts.TruncatedPoissonSampling()
            | parts.CyclicPoissonSampling()
            | parts.BallsInBinsSampling()
        ):
            return "add-or-remove-one"


def mechanism_events(mechanism: Mechanism, rounds: int) -> tuple[tuple[Event, int], ...]:
    """What the first rounds cost: events, and how often each happens. No round costs nothing.

    Args:
        mechanism: Its noise multiplier is over the largest column norm of C, as that of an event is over the norm of one
            contribution.
        rounds: From 0.

    Raises:
        ValueError: ``rounds`` below 0.
        ConfigError: Random cohorts together with correlated noise for which no theorem holds.

    Example:
        >>> from hubbub.mechanism.strategies import Identity, toeplitz
        >>> mechanism_events(Mechanism(Identity(100), parts.PoissonSampling(0.1), 2.0), rounds=30)
        ((PoissonSampled(noise_multiplier=2.0, sampling_probability=0.1), 30),)
        >>> cyclic = Mechanism(toeplitz.square_root(100, bands=8), parts.CyclicPoissonSampling(0.4, cycle_length=8), 2.0)
        >>> mechanism_events(cyclic, rounds=100)
        ((PoissonSampled(noise_multiplier=2.0, sampling_probability=0.4), 13),)
    """
    z = mechanism.noise_multiplier
    _require_theorem(mechanism.strategy, mechanism.participation)
    if integer("rounds", rounds, at_least=0) == 0:
        return ()
    match mechanism.participation:
        case parts.SingleParticipation() | parts.FixedEpochs() | parts.MinSeparation():
            if mechanism.shares is not None:
                # Of independent noise the squared sensitivity is the number of a client's rounds.
                return ((shares_of(mechanism, mechanism.shares), round(mechanism.sensitivity_after(rounds).value ** 2)),)
            return ((one_release(mechanism.mu_squared(mechanism.least_sensitivity(rounds))), 1),)
        case parts.PoissonSampling(sampling_probability):
            return ((PoissonSampled(z, sampling_probability), rounds),)
        case parts.FixedSizeSampling(cohort_size, population):
            return ((FixedSizeSampled(z, cohort_size, population), rounds),)
        case parts.TruncatedPoissonSampling(sampling_probability, max_cohort_size, population):
            return ((TruncatedPoissonSampled(z, sampling_probability, max_cohort_size, population), rounds),)
        case parts.CyclicPoissonSampling(sampling_probability, cycle_length):
            return ((PoissonSampled(z, sampling_probability), -(-rounds // cycle_length)),)
        case parts.BallsInBinsSampling(bins):
            # The first rounds of a cycle show less than all of it: they cost as much as the whole cycle.
            return ((BallsInBins(z, bins, max(rounds, bins)), 1),)


def one_release(mu_squared: Fraction) -> Gaussian:
    """The Gaussian release that costs what one of this μ² does: its noise multiplier is the largest float not above 1/μ.

    Example:
        >>> one_release(Fraction(4))
        Gaussian(noise_multiplier=0.5)
    """
    square = 1 / max(mu_squared, _LEAST_MU_SQUARED)
    multiplier = least_root(square)
    if Fraction(multiplier) ** 2 > square:
        multiplier = math.nextafter(multiplier, 0.0)
    if multiplier < 1e-12:
        raise ValueError(
            f"noise_multiplier: is so small that all releases together are one with {multiplier!r}, below 1e-12; raise it"
        )
    return Gaussian(multiplier)


def shares_of(mechanism: Mechanism, shares: NoiseShares) -> DiscreteGaussianShares:
    """What one round costs a client that takes part in it, where the clients bring the noise along."""
    z = mechanism.noise_multiplier
    return DiscreteGaussianShares(z, shares.clients, shares.least_stddev(z), shares.dim)


def covered_relations(participation: parts.Participation) -> tuple[NeighboringRelation, ...]:
    """The neighboring relations under which a theorem covers these cohorts: of a pattern not add-or-remove-one."""
    return tuple(r for r in RELATIONS if r != "add-or-remove-one" or isinstance(participation, parts.RandomParticipation))


def stated_relation(participation: parts.Participation, relation: str | None) -> NeighboringRelation:
    """The relation to state, by default that of the cohorts."""
    stated = require_relation(default_relation(participation) if relation is None else relation)
    if stated not in covered_relations(participation):
        raise ValueError(
            "neighboring_relation = 'add-or-remove-one': not offered for cohorts that follow a pattern, whose other "
            "members would change; state 'zero-out' or 'replace-one', or draw random cohorts"
        )
    return stated


def _require_theorem(strategy: Strategy, participation: parts.Participation) -> None:
    """Refuse random cohorts whose amplification no theorem gives for this C."""
    if not isinstance(participation, parts.RandomParticipation):
        return
    bands, named = _bands(strategy), f"strategy = {type(strategy).__name__} with {type(participation).__name__}"
    if not isinstance(participation, parts.CyclicPoissonSampling):
        if bands != 1:
            raise ConfigError(
                f"{named}: random cohorts other than cyclic ones are accounted for independent noise only; use the identity "
                "strategy, a banded one with cyclic Poisson cohorts, or a participation pattern, without amplification"
            )
    elif bands is None:
        raise ConfigError(
            f"{named}: its C is not square and lower triangular, and cyclic cohorts are accounted for banded noise only; use a "
            "banded strategy, the identity, or a participation pattern"
        )
    elif bands > participation.cycle_length:
        raise ConfigError(
            f"{named}: has {bands} bands, cycle_length = {participation.cycle_length}: two contributions of one client would "
            f"meet in one release, and no theorem amplifies that; use at most {participation.cycle_length} bands, or a "
            f"cycle_length of at least {bands}"
        )


def _bands(strategy: Strategy) -> int | None:
    """The most diagonals that C has, if it is square and lower triangular; ``None`` if it is not."""
    if said := own(strategy):
        return said.matrix_bands
    C = np.asarray(strategy.matrix(), dtype=np.float64)
    return bands_of(C) if is_triangular(C) else None
