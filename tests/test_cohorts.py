"""Cohorts keep what was promised of them, and what cannot be kept is refused before the first round."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hubbub.accounting.ledger import Ledger
from hubbub.accounting.promise import Promise
from hubbub.errors import ParticipationError
from hubbub.mechanism import Mechanism
from hubbub.participation import (
    FixedEpochs,
    FixedSizeSampling,
    MinSeparation,
    Participation,
    PoissonSampling,
    SingleParticipation,
)
from hubbub.strategies import Identity
from hubbub.training.cohorts import draw, require_feasible
from small_runs import CLIENTS

FALSE_ALARM = 1e-6


def members(participation: Participation, rounds: int, size: float, key: bytes = bytes(32)) -> list[list[int]]:
    ledger = Ledger(Promise(rounds, Mechanism(Identity(rounds), participation, 1.0)), bytes(32))
    cohorts = []
    for t in range(rounds):
        cohort = draw(participation, t, range(CLIENTS), size, key=key, ledger=ledger)
        ledger.burn(ledger.begin(t, cohort, ""))
        cohorts.append([int(str(c)) for c in cohort])
    return cohorts


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 30), st.binary(min_size=32, max_size=32))
def test_separated_cohorts_keep_their_promise_for_as_long_as_is_feasible(b: int, rounds: int, key: bytes) -> None:
    pattern, size = MinSeparation(b, math.ceil(rounds / b)), CLIENTS // b
    require_feasible(pattern, rounds, CLIENTS, size)
    joined: dict[int, list[int]] = {}
    for t, cohort in enumerate(members(pattern, rounds, size, key)):
        assert len(cohort) == size
        for client in cohort:
            joined.setdefault(client, []).append(t)
    assert all(b_ - a >= b for rounds_ in joined.values() for a, b_ in itertools.pairwise(rounds_))
    assert all(len(rounds_) <= math.ceil(rounds / b) for rounds_ in joined.values())


def test_a_rotation_asks_every_client_once_an_epoch_in_the_same_place() -> None:
    cohorts = members(FixedEpochs(2, 4), 8, 3)
    assert sorted(itertools.chain.from_iterable(cohorts[:4])) == list(range(CLIENTS))
    assert cohorts[:4] == cohorts[4:]


def test_once_means_once() -> None:
    cohorts = members(SingleParticipation(), 4, 3)
    assert sorted(itertools.chain.from_iterable(cohorts)) == list(range(CLIENTS))


def test_cohorts_of_a_fixed_size_have_it_and_differ() -> None:
    cohorts = members(FixedSizeSampling(4, CLIENTS), 20, 4)
    assert all(len(set(cohort)) == 4 for cohort in cohorts)
    assert len({tuple(cohort) for cohort in cohorts}) > 10


def test_poisson_coins_are_fair_and_independent() -> None:
    rounds, q = 4000, 0.3
    counts = torch.zeros(rounds, CLIENTS)
    ledger = Ledger(Promise(rounds, None), bytes(32))
    for t in range(rounds):
        for client in draw(PoissonSampling(q), t, range(CLIENTS), 1, key=bytes(32), ledger=ledger):
            counts[t, int(str(client))] = 1
    low, high = stats.binom.ppf([FALSE_ALARM / 24, 1 - FALSE_ALARM / 24], rounds, q)
    assert (counts.sum(dim=0) >= low).all()
    assert (counts.sum(dim=0) <= high).all()
    correlation = torch.corrcoef(counts.T)[torch.triu_indices(CLIENTS, CLIENTS, 1).unbind()].abs().max()
    assert float(correlation) * math.sqrt(rounds) < stats.norm.isf(FALSE_ALARM / 132)


@pytest.mark.parametrize(
    ("pattern", "rounds", "size", "message"),
    [
        (MinSeparation(4, 9), 20, 4, "needs 16 clients, there are 12"),
        (MinSeparation(3, 2), 20, 4, "need 7 participations"),
        (SingleParticipation(), 4, 4, "need 16 clients"),
        (FixedEpochs(2, 3), 7, 4, "the run has 7 rounds"),
        (FixedSizeSampling(4, 13), 6, 4, "population = 13"),
    ],
    ids=repr,
)
def test_what_the_clients_cannot_keep_is_refused_before_the_first_round(
    pattern: MinSeparation, rounds: int, size: int, message: str
) -> None:
    with pytest.raises(ParticipationError, match=message):
        require_feasible(pattern, rounds, CLIENTS, size)
