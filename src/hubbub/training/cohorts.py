"""Who takes part in a round.

Random cohorts are never filtered: a client that is left out for any reason breaks the coins that amplification counts on.
Cohorts that follow a pattern are drawn from the clients that the ledger lets join, and the ledger checks them again.
"""

import math
from collections.abc import Hashable, Sequence

import numpy as np

from hubbub.accounting.ledger import Ledger
from hubbub.errors import ParticipationError
from hubbub.participation import (
    FixedEpochs,
    FixedSizeSampling,
    MinSeparation,
    Participation,
    PoissonSampling,
    SingleParticipation,
)
from hubbub.randomness import bits, derive, uniform_choice

__all__ = ["draw", "require_feasible"]


def draw(
    participation: Participation,
    round_index: int,
    clients: Sequence[Hashable],
    size: float,
    *,
    key: bytes,
    ledger: Ledger,
) -> list[Hashable]:
    """The cohort of a round, a function of the key and, for patterns, of who took part before.

    Args:
        participation: How cohorts are drawn.
        round_index: Which round.
        clients: All clients, in a fixed order.
        size: Of the cohort, for a pattern.
        key: Secret in a real run.
        ledger: Asked who may join, for a pattern.

    Raises:
        ParticipationError: Too few clients may join.
    """
    coins = derive(key, "cohort", round_index)
    match participation:
        case PoissonSampling(sampling_probability):
            # 53 of 64 random bits: the probability is never above what was stated, and within 2^-53 of it.
            limit = math.floor(sampling_probability * 2.0**53)
            chosen = np.flatnonzero((bits(coins, len(clients)) >> np.uint64(11)) < np.uint64(limit)).tolist()
        case FixedSizeSampling(cohort_size):
            chosen = uniform_choice(coins, len(clients), cohort_size)
        case FixedEpochs(rounds_per_epoch=rounds_per_epoch):
            # One secret order for the whole run deals the clients to the rounds of an epoch.
            order = np.argsort(bits(derive(key, "rotation"), len(clients)), kind="stable")
            chosen = sorted(order[round_index % rounds_per_epoch :: rounds_per_epoch].tolist())
        case SingleParticipation() | MinSeparation():
            chosen = _eligible(round_index, clients, int(size), coins, ledger)
    return [clients[i] for i in chosen]


def _eligible(round_index: int, clients: Sequence[Hashable], size: int, coins: bytes, ledger: Ledger) -> list[int]:
    """``size`` of the clients that may join, those that took part least often first, ties by chance."""
    ties = bits(coins, len(clients))
    able = [i for i, client in enumerate(clients) if ledger.may_join(client, round_index)]
    if len(able) < size:
        raise ParticipationError(
            f"round {round_index}: {len(able)} of {len(clients)} clients may join, the cohort needs {size}; the promise is "
            "not relaxed: lower the cohort size, or plan fewer rounds"
        )
    able.sort(key=lambda i: (len(ledger.participations(clients[i])), int(ties[i])))
    return sorted(able[:size])


def require_feasible(participation: Participation, rounds: int, clients: int, size: float) -> None:
    """Refuse, before the first round, a pattern that this many clients cannot keep.

    Raises:
        ParticipationError: Too few clients for the separation or for the number of participations.
    """
    if isinstance(participation, FixedSizeSampling) and participation.population != clients:
        raise ParticipationError(f"population = {participation.population}: there are {clients} clients")
    match participation:
        case SingleParticipation() if rounds * size > clients:
            raise ParticipationError(
                f"pattern 'single': {rounds} rounds of {size:g} clients need {rounds * size:g} clients, there are {clients}"
            )
        case FixedEpochs(epochs, rounds_per_epoch) if epochs * rounds_per_epoch < rounds:
            raise ParticipationError(f"epochs = {epochs} of {rounds_per_epoch} rounds: the run has {rounds} rounds")
        case FixedEpochs(rounds_per_epoch=rounds_per_epoch) if rounds_per_epoch > clients:
            raise ParticipationError(
                f"rounds_per_epoch = {rounds_per_epoch}: there are {clients} clients, so that some rounds would have none"
            )
        case MinSeparation(min_separation, max_participations):
            separation, most = min(min_separation, rounds), max_participations
        case _:
            return
    if separation * size > clients:
        raise ParticipationError(
            f"min_separation = {min_separation}: with cohorts of {size:g} it needs {separation * size:g} clients, there are "
            f"{clients}; lower cohort_size to {clients // separation} or min_separation to {int(clients // size)}"
        )
    if rounds * size > most * clients:
        raise ParticipationError(
            f"max_participations = {most}: {rounds} rounds of {size:g} clients need "
            f"{math.ceil(rounds * size / clients)} participations of each of {clients} clients"
        )
