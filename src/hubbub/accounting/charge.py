"""What a mechanism costs: its rounds as events, and the relation under which they are stated."""

from hubbub._checks import one_of
from hubbub.accounting.events import RELATIONS, Event, FixedSizeSampled, Gaussian, NeighboringRelation, PoissonSampled
from hubbub.errors import ConfigError
from hubbub.mechanism import Mechanism
from hubbub.participation import FixedSizeSampling, Participation, PoissonSampling
from hubbub.strategies import Identity

__all__ = ["default_relation", "event_of", "stated_relation"]


def default_relation(participation: Participation) -> NeighboringRelation:
    """Add-or-remove-one for Poisson cohorts, zero-out for all others."""
    return "add-or-remove-one" if isinstance(participation, PoissonSampling) else "zero-out"


def event_of(mechanism: Mechanism, rounds: int) -> tuple[Event, int]:
    """What the first rounds cost, as one event and how often it happens.

    Raises:
        ConfigError: Random cohorts together with correlated noise.
    """
    participation, z = mechanism.participation, mechanism.noise_multiplier
    match participation:
        case PoissonSampling() | FixedSizeSampling() if type(mechanism.strategy) is not Identity:
            raise ConfigError(
                f"strategy = {type(mechanism.strategy).__name__} with {type(participation).__name__}: random cohorts are "
                "accounted for independent noise only; use the identity strategy, or a participation pattern"
            )
        case PoissonSampling(sampling_probability):
            return PoissonSampled(z, sampling_probability), rounds
        case FixedSizeSampling(cohort_size, population):
            return FixedSizeSampled(z, cohort_size, population), rounds
        case _:
            return Gaussian(1 / mechanism.mu_after(max(rounds, 1))), min(rounds, 1)


def stated_relation(participation: Participation, relation: str | None) -> NeighboringRelation:
    """The relation to state. Cohorts that a ledger draws depend on who is there, so adding a unit is not covered there."""
    stated = one_of("neighboring_relation", default_relation(participation) if relation is None else relation, RELATIONS)
    if stated == "add-or-remove-one" and not isinstance(participation, PoissonSampling):
        raise ValueError(
            "neighboring_relation = 'add-or-remove-one': not offered for cohorts that follow a pattern or have a fixed size, "
            "whose other members would change; state 'zero-out' or 'replace-one', or draw Poisson cohorts"
        )
    return stated  # type: ignore[return-value] # one_of has checked that it is one of the literal's words
