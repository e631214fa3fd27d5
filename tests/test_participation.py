import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.participation import (
    FixedEpochs,
    FixedSizeSampling,
    MinSeparation,
    PoissonSampling,
    SingleParticipation,
    every_round,
)


def test_a_separation_of_b_allows_rounds_r_and_r_plus_b_and_not_one_less() -> None:
    pattern = MinSeparation(min_separation=485, max_participations=3)
    assert pattern.allows([0, 485, 970])
    assert not pattern.allows([0, 484])


def test_the_order_of_rounds_does_not_matter_and_a_round_counts_once() -> None:
    pattern = MinSeparation(min_separation=2, max_participations=3)
    assert pattern.allows([4, 0, 2])
    assert not pattern.allows([3, 3])
    assert not PoissonSampling(0.5).allows([3, 3])
    assert not SingleParticipation().allows([-1])


def test_no_more_participations_than_promised() -> None:
    assert not MinSeparation(1, 2).allows([0, 1, 2])
    assert not SingleParticipation().allows([0, 7])
    assert not FixedEpochs(2, 5).allows([0, 5, 10])


def test_a_client_of_a_rotation_may_skip_an_epoch() -> None:
    assert FixedEpochs(epochs=3, rounds_per_epoch=10).allows([4, 24])


def test_everybody_may_join_every_round_where_every_round_is_promised() -> None:
    assert every_round(5).allows(range(5))


@pytest.mark.parametrize(
    "pattern",
    [SingleParticipation(), FixedEpochs(3, 2), MinSeparation(2, 3), PoissonSampling(0.1), FixedSizeSampling(2, 9)],
)
def test_what_is_allowed_is_allowed_in_part(pattern: MinSeparation) -> None:
    for rounds in itertools.chain.from_iterable(itertools.combinations(range(6), k) for k in range(1, 5)):
        if pattern.allows(rounds):
            assert all(pattern.allows(part) for part in itertools.combinations(rounds, len(rounds) - 1))


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(1, 6), st.integers(1, 6))
def test_separation_means_what_its_definition_says(rounds: list[int], b: int, k: int) -> None:
    pairwise = all(abs(a - c) >= b for a, c in itertools.combinations(rounds, 2))
    assert MinSeparation(b, k).allows(rounds) == (pairwise and len(rounds) <= k)


@pytest.mark.parametrize("bad", [0, -1, 2.5, True, "3"])
def test_a_pattern_refuses_numbers_that_count_nothing(bad: object) -> None:
    with pytest.raises((ValueError, TypeError), match="min_separation"):
        MinSeparation(bad, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [0.0, -0.1, 1.5, float("nan"), True])
def test_a_sampling_probability_is_above_0_and_at_most_1(bad: float) -> None:
    with pytest.raises((ValueError, TypeError), match="sampling_probability"):
        PoissonSampling(bad)


@given(
    st.sampled_from(
        [
            SingleParticipation(),
            FixedEpochs(3, 2),
            MinSeparation(2, 3),
            MinSeparation(1, 2),
            PoissonSampling(0.1),
            every_round(4),
        ]
    ),
    st.lists(st.integers(0, 9), unique=True, max_size=5).map(sorted),
    st.integers(0, 10),
)
def test_the_quick_answer_for_a_later_round_is_the_answer(pattern: MinSeparation, rounds: list[int], later: int) -> None:
    if pattern.allows(rounds) and (not rounds or later >= rounds[-1]):
        assert pattern.may_follow(rounds, later) == pattern.allows([*rounds, later])
