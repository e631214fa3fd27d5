import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.mechanism import participation as parts
from small_runs import PATTERNS, SAMPLED

EVERY_KIND = [*PATTERNS, *SAMPLED, parts.MinSeparation(2, 3), parts.MinSeparation(1, 2), parts.every_round(4)]


def test_the_order_of_rounds_does_not_matter_and_a_round_counts_once() -> None:
    pattern = parts.MinSeparation(min_separation=2, max_participations=3)
    assert pattern.allows([4, 0, 2])
    assert not pattern.allows([3, 3])
    assert not parts.PoissonSampling(0.5).allows([3, 3])
    assert not parts.SingleParticipation().allows([-1])


@pytest.mark.parametrize("slots", [parts.CyclicPoissonSampling(0.5, 4), parts.BallsInBinsSampling(4)], ids=repr)
def test_a_client_of_a_group_or_a_slot_joins_rounds_of_one_remainder_only(slots: parts.BallsInBinsSampling) -> None:
    assert slots.allows([1, 5, 13])
    assert not slots.allows([1, 4])
    assert not slots.allows([1, 3])
    assert not slots.allows([5, 5])
    assert slots.allows([])


@pytest.mark.parametrize("rounds", [1, 3, 6])
@pytest.mark.parametrize("participation", EVERY_KIND, ids=repr)
def test_the_covering_pattern_allows_all_that_is_allowed(participation: parts.Participation, rounds: int) -> None:
    pattern = parts.covering(participation, rounds)
    for joined in itertools.chain.from_iterable(itertools.combinations(range(rounds), k) for k in range(rounds + 1)):
        if participation.allows(joined):
            assert pattern.allows(joined)
        elif not isinstance(participation, parts.FixedEpochs):
            assert not pattern.allows(joined)


@pytest.mark.parametrize("pattern", EVERY_KIND, ids=repr)
def test_what_is_allowed_is_allowed_in_part(pattern: parts.Participation) -> None:
    for rounds in itertools.chain.from_iterable(itertools.combinations(range(6), k) for k in range(1, 5)):
        if pattern.allows(rounds):
            assert all(pattern.allows(part) for part in itertools.combinations(rounds, len(rounds) - 1))


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(1, 6), st.integers(1, 6))
def test_separation_means_what_its_definition_says(rounds: list[int], b: int, k: int) -> None:
    pairwise = all(abs(a - c) >= b for a, c in itertools.combinations(rounds, 2))
    assert parts.MinSeparation(b, k).allows(rounds) == (pairwise and len(rounds) <= k)


@given(st.sampled_from(EVERY_KIND), st.lists(st.integers(0, 9), unique=True, max_size=5).map(sorted), st.integers(0, 10))
def test_the_quick_answer_for_a_later_round_is_the_answer(pattern: parts.Participation, rounds: list[int], later: int) -> None:
    if pattern.allows(rounds) and (not rounds or later >= rounds[-1]):
        may = pattern.may_follow(np.array([len(rounds)]), np.array(rounds[-1:] or [0]), later)
        assert bool(may[0]) == pattern.allows([*rounds, later])
