"""Cohorts keep what was promised of them, and what cannot be kept is refused before the first round."""

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hubbub.errors import ParticipationError
from hubbub.ledger.ledger import Ledger
from hubbub.ledger.promise import Promise
from hubbub.mechanism import Mechanism
from hubbub.mechanism import participation as parts
from hubbub.mechanism.strategies import Identity
from hubbub.training.cohorts import CohortKeys, draw, require_feasible
from small_runs import CLIENTS

FALSE_ALARM = 1e-6
KEYS = CohortKeys(bytes(32), bytes(32))


def members(participation: parts.Participation, rounds: int, size: float, key: bytes = bytes(32)) -> list[list[int]]:
    ledger = Ledger(Promise(rounds, Mechanism(Identity(rounds), participation, 1.0)), bytes(32))
    cohorts = []
    for t in range(rounds):
        cohort = draw(participation, t, range(CLIENTS), size, keys=CohortKeys(key, key), ledger=ledger)
        ledger.abort(ledger.begin(t, cohort, ""))
        cohorts.append([int(str(c)) for c in cohort])
    return cohorts


def drawn(
    participation: parts.Participation, rounds: int, clients: Sequence[Hashable], keys: CohortKeys = KEYS
) -> list[list[Hashable]]:
    ledger = Ledger(Promise(rounds, None), bytes(32))
    return [draw(participation, t, clients, 1, keys=keys, ledger=ledger) for t in range(rounds)]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 30), st.binary(min_size=32, max_size=32))
def test_prt_1_prt_2_separated_cohorts_keep_their_promise_for_as_long_as_is_feasible(b: int, rounds: int, key: bytes) -> None:
    pattern, size = parts.MinSeparation(b, math.ceil(rounds / b)), CLIENTS // b
    require_feasible(pattern, rounds, CLIENTS, size)
    joined: dict[int, list[int]] = {}
    for t, cohort in enumerate(members(pattern, rounds, size, key)):
        assert len(cohort) == size
        for client in cohort:
            joined.setdefault(client, []).append(t)
    assert all(b_ - a >= b for rounds_ in joined.values() for a, b_ in itertools.pairwise(rounds_))
    assert all(len(rounds_) <= math.ceil(rounds / b) for rounds_ in joined.values())


@pytest.mark.parametrize("pattern", [parts.FixedEpochs(3, 4), parts.BallsInBinsSampling(4)], ids=repr)
def test_a_rotation_and_bins_ask_every_client_once_an_epoch_in_the_same_place(pattern: parts.Participation) -> None:
    cohorts = members(pattern, 12, 3)
    assert sorted(itertools.chain.from_iterable(cohorts[:4])) == list(range(CLIENTS))
    assert cohorts[:4] == cohorts[4:8] == cohorts[8:]


def test_cohorts_of_a_fixed_size_have_it_and_differ() -> None:
    cohorts = members(parts.FixedSizeSampling(4, CLIENTS), 20, 4)
    assert all(len(set(cohort)) == 4 for cohort in cohorts)
    assert len({tuple(cohort) for cohort in cohorts}) > 10


def test_poisson_coins_are_fair_and_independent() -> None:
    rounds, q = 4000, 0.3
    counts = torch.zeros(rounds, CLIENTS)
    for joined, cohort in zip(counts, drawn(parts.PoissonSampling(q), rounds, range(CLIENTS)), strict=True):
        joined[cohort] = 1
    low, high = stats.binom.ppf([FALSE_ALARM / 24, 1 - FALSE_ALARM / 24], rounds, q)
    assert (counts.sum(dim=0) >= low).all()
    assert (counts.sum(dim=0) <= high).all()
    correlation = torch.corrcoef(counts.T)[torch.triu_indices(CLIENTS, CLIENTS, 1).unbind()].abs().max()
    assert float(correlation) * math.sqrt(rounds) < stats.norm.isf(FALSE_ALARM / 132)


def test_a_truncated_cohort_is_a_poisson_cohort_cut_to_a_random_part_of_it() -> None:
    rounds, most = 4000, 3
    whole = drawn(parts.PoissonSampling(0.3), rounds, range(CLIENTS))
    cut = drawn(parts.TruncatedPoissonSampling(0.3, most, CLIENTS), rounds, range(CLIENTS))
    for before, after in zip(whole, cut, strict=True):
        assert set(after) <= set(before)
        assert len(after) == min(len(before), most)
    kept = Counter(itertools.chain.from_iterable(cut))
    sizes = stats.binom(CLIENTS, 0.3)
    chance = sum(sizes.pmf(k) * min(k, most) for k in range(CLIENTS + 1)) / CLIENTS
    low, high = stats.binom.ppf([FALSE_ALARM / 24, 1 - FALSE_ALARM / 24], rounds, chance)
    assert all(low <= kept[client] <= high for client in range(CLIENTS))


def test_clients_of_cyclic_cohorts_keep_their_group_and_toss_a_fair_coin_in_each_of_its_rounds() -> None:
    rounds, groups, q = 6000, 3, 0.4
    joined: dict[Hashable, list[int]] = {}
    for t, cohort in enumerate(drawn(parts.CyclicPoissonSampling(q, groups), rounds, range(CLIENTS))):
        for client in cohort:
            joined.setdefault(client, []).append(t)
    assert len(joined) == CLIENTS
    assert all(len({t % groups for t in mine}) == 1 for mine in joined.values())
    low, high = stats.binom.ppf([FALSE_ALARM / 24, 1 - FALSE_ALARM / 24], rounds // groups, q)
    assert all(low <= len(mine) <= high for mine in joined.values())


def test_bins_are_equally_likely_and_clients_fall_independently() -> None:
    clients, bins = 30_000, 7
    slots = [set(cohort) for cohort in drawn(parts.BallsInBinsSampling(bins), bins, range(clients))]
    assert stats.chisquare([len(slot) for slot in slots]).pvalue > FALSE_ALARM
    together = sum(any({i, i + 1} <= slot for slot in slots) for i in range(0, clients, 2))
    assert stats.binomtest(together, clients // 2, 1 / bins).pvalue > FALSE_ALARM


@pytest.mark.parametrize("participation", [parts.BallsInBinsSampling(3), parts.CyclicPoissonSampling(1.0, 3)], ids=repr)
def test_the_slot_of_a_client_does_not_depend_on_who_else_is_there(participation: parts.Participation) -> None:
    everyone = drawn(participation, 3, [f"client {i}" for i in range(40)])
    fewer = drawn(participation, 3, [f"client {i}" for i in range(39, -1, -1) if i % 4])
    for cohort, rest in zip(everyone, fewer, strict=True):
        assert set(rest) == {client for client in cohort if int(str(client).split()[1]) % 4}


def test_a_new_start_keeps_groups_and_slots_and_tosses_new_coins() -> None:
    cyclic = parts.CyclicPoissonSampling(0.5, 2)
    again = KEYS.renewed(cyclic, bytes([1] * 32))
    first, second = (drawn(cyclic, 40, range(CLIENTS), keys) for keys in (KEYS, again))
    assert first != second
    group = {client: t % 2 for t, cohort in enumerate(first) for client in cohort}
    assert all(group[client] == t % 2 for t, cohort in enumerate(second) for client in cohort)
    bins = parts.BallsInBinsSampling(3)
    assert drawn(bins, 6, range(CLIENTS)) == drawn(bins, 6, range(CLIENTS), KEYS.renewed(bins, bytes([1] * 32)))
    assert KEYS.renewed(parts.MinSeparation(1, 2), bytes([1] * 32)) == KEYS


@pytest.mark.parametrize(
    ("pattern", "rounds", "size", "message"),
    [
        (parts.MinSeparation(4, 9), 20, 4, "needs 16 clients, there are 12"),
        (parts.MinSeparation(3, 2), 20, 4, "need 7 participations"),
        (parts.SingleParticipation(), 4, 4, "need 16 clients, there are 12; .*rounds to 3 or cohort_size to 3"),
        (parts.SingleParticipation(), 13, 1, "another pattern, or lower rounds to 12$"),
        (parts.FixedEpochs(2, 3), 7, 4, "the run has 7 rounds; raise epochs to 3, or lower rounds to 6"),
        (parts.MinSeparation(3, 2), 6, 0.5, "expected_cohort_size = 0.5: .* a whole number of at least 1"),
        (parts.SingleParticipation(), 2, 2.7, "expected_cohort_size = 2.7"),
        (parts.FixedSizeSampling(4, 13), 6, 4, "population = 13"),
        (parts.TruncatedPoissonSampling(0.3, 4, 11), 6, 4, "population = 11"),
    ],
    ids=repr,
)
def test_what_clients_cannot_keep_is_refused(pattern: parts.MinSeparation, rounds: int, size: float, message: str) -> None:
    with pytest.raises(ParticipationError, match=message):
        require_feasible(pattern, rounds, CLIENTS, size)
