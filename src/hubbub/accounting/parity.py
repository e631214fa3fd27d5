"""dp_accounting as a second opinion, for parity with numbers that were published with it; nothing unchecked reaches it."""

import math
from collections.abc import Sequence
from typing import Any

from hubbub._checks import open_unit
from hubbub.accounting.events import (
    BallsInBins,
    DiscreteGaussianShares,
    Event,
    FixedSizeSampled,
    Gaussian,
    MixtureOfGaussians,
    NeighboringRelation,
    PoissonSampled,
    TreeAggregation,
    TruncatedPoissonSampled,
)
from hubbub.accounting.trees import as_gaussian
from hubbub.errors import BudgetError

__all__ = ["delta", "epsilon"]

# At a smaller multiplier its grid asks for gigabytes.
_LEAST_MULTIPLIER = 0.1


def epsilon(events: Sequence[tuple[Event, int]], delta: float, relation: NeighboringRelation) -> float:
    """Epsilon by dp_accounting's PLD accountant at its default mesh.

    It is meant as an upper bound; for very many rounds or a very small delta it can fall below the truth.

    Raises:
        BudgetError: An event that it does not account, or noise so small that it would not answer.
    """
    answer = float(_composed(events, relation).get_epsilon(open_unit("delta", delta)))
    return math.inf if math.isnan(answer) else answer


def delta(events: Sequence[tuple[Event, int]], epsilon: float, relation: NeighboringRelation) -> float:
    """Delta by dp_accounting's PLD accountant at its default mesh.

    Raises:
        BudgetError: An event that it does not account, or noise so small that it would not answer.
    """
    answer = float(_composed(events, relation).get_delta(epsilon))
    return 1.0 if math.isnan(answer) else answer


def _composed(events: Sequence[tuple[Event, int]], relation: NeighboringRelation) -> Any:
    """The peer's accountant with the events in it; every number that reaches it is a float, every count is told apart."""
    from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.dp_event import MixtureOfGaussiansDpEvent, TruncatedSubsampledGaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    known = {
        "zero-out": NeighboringRelation.REPLACE_SPECIAL,
        "add-or-remove-one": NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace-one": NeighboringRelation.REPLACE_ONE,
    }
    # Where nothing depends on the difference, its own default is the one that publications used.
    plain = relation != "replace-one" and not any(isinstance(event, TruncatedPoissonSampled) for event, _ in events)
    accountant = PLDAccountant(known["add-or-remove-one" if plain else relation])
    for event, rounds in events:
        match event:
            case Gaussian(z):
                # Rounds of one Gaussian are one Gaussian: exact, and no rounding piles up.
                accountant.compose(GaussianDpEvent(_large_enough(float(z / math.sqrt(rounds)))))
            case TreeAggregation():
                whole = as_gaussian(event).noise_multiplier / math.sqrt(rounds)
                accountant.compose(GaussianDpEvent(_large_enough(float(whole))))
            case PoissonSampled(z, q):
                release = PoissonSampledDpEvent(float(q), GaussianDpEvent(_large_enough(float(z))))
                accountant.compose(SelfComposedDpEvent(release, int(rounds)))
            case TruncatedPoissonSampled(z, q, most, population):
                cut = TruncatedSubsampledGaussianDpEvent(int(population), float(q), int(most), _large_enough(float(z)))
                accountant.compose(SelfComposedDpEvent(cut, int(rounds)))
            case MixtureOfGaussians(z, sensitivities, probabilities) if plain:
                mixed = MixtureOfGaussiansDpEvent(_large_enough(float(z)), list(sensitivities), list(probabilities))
                accountant.compose(SelfComposedDpEvent(mixed, int(rounds)))
            case FixedSizeSampled() | BallsInBins() | MixtureOfGaussians() | DiscreteGaussianShares():
                raise BudgetError(
                    f"accountant = 'pld': dp_accounting has no tight bound for {type(event).__name__}; use 'tight'"
                )
    return accountant


def _large_enough(noise_multiplier: float) -> float:
    if noise_multiplier < _LEAST_MULTIPLIER:
        raise BudgetError(
            f"accountant = 'pld': a noise multiplier of {noise_multiplier:.3g} for the whole composition is below "
            f"{_LEAST_MULTIPLIER}, where dp_accounting's grid outgrows memory; use 'tight'"
        )
    return noise_multiplier
