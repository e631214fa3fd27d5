"""What a run has really cost: from its records alone."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub import accounting
from hubbub.accounting import PoissonSampled
from hubbub.accounting.wording import ranks_assumption
from hubbub.ledger.actual_cost import spent
from hubbub.ledger.ledger import Ledger
from hubbub.ledger.promise import Promise
from hubbub.mechanism import gaussian
from hubbub.mechanism.participation import FixedSizeSampling, MinSeparation, Participation, PoissonSampling
from hubbub.mechanism.strategies import Identity, toeplitz
from hubbub.mechanism.strategies.strategy import Strategy
from recorded_runs import (
    BANDED,
    PATTERN,
    ROUNDS,
    history_of,
    promise_of,
)


def brute_force(C: np.ndarray, sets: list[list[int]]) -> float:
    """The largest ‖Σ ±C[:, j]‖ over the signs of each set, which is attained by vectors along one line."""
    return max(
        float(np.linalg.norm(C[:, rounds] @ np.array(signs)))
        for rounds in sets
        for signs in itertools.product((1, -1), repeat=len(rounds))
    )


def test_a_pattern_that_was_kept_costs_what_was_promised_so_far() -> None:
    promise = promise_of(BANDED, PATTERN)
    cost = spent(promise, history_of([{1, 2}, {3}, {4}, {1}]))
    assert cost.breaches == cost.warnings() == ()
    assert cost.guarantee.epsilon == promise.after(4, promise.delta).epsilon >= cost.happened.epsilon > 0


def test_the_statement_assumes_once_of_all_processes_that_shared_rounds_that_they_are_one_party(tmp_path: Path) -> None:
    of_three = ranks_assumption(3)
    promise = replace(promise_of(BANDED, PATTERN), further=(of_three,))
    ledger = Ledger(promise, bytes(32), tmp_path / "ledger.jsonl")
    for ranks in (2, 3, 1):
        ledger.start_epoch(0, bytes([ranks]) * 32, "0" * 64, ranks)
    assert '"ranks":3' in (tmp_path / "ledger.jsonl").read_text()
    history = Ledger(promise, bytes(32), tmp_path / "ledger.jsonl").history
    assert [epoch.ranks for epoch in history.epochs] == [2, 3, 1]
    assert spent(promise, history).guarantee.assumptions.count(of_three) == 1
    alone = spent(promise_of(BANDED, PATTERN), history_of([{1}])).guarantee.assumptions
    assert not any("processes that shared" in assumption.text for assumption in alone)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=ROUNDS))
def test_acc_13_epsilon_is_never_below_the_promise_so_far_nor_below_what_happened(cohorts: list[set[int]]) -> None:
    promise, history = promise_of(BANDED, PATTERN), history_of(cohorts)
    cost = spent(promise, history)
    sets = list(map(list, history.participations.sets())) or [[]]
    # No coefficient is negative, so that equal signs are the worst and what a set costs is exact.
    real = brute_force(BANDED.matrix()[: len(cohorts)], sets) / promise.mechanism.stddev
    stated = cost.guarantee.epsilon
    assert stated >= promise.after(len(cohorts), promise.delta).epsilon
    if real:
        assert gaussian.delta(stated, 1 / real) <= promise.delta * (1 + 1e-9)
        assert gaussian.delta(cost.happened.epsilon, 1 / real) == pytest.approx(promise.delta, rel=1e-6)
    assert bool(cost.breaches) == any(not PATTERN.allows(rounds) for rounds in sets)


@pytest.mark.parametrize("strategy", [BANDED, Identity(ROUNDS)], ids=["banded", "independent"])
def test_prt_8_a_broken_pattern_is_charged_as_it_happened(strategy: Strategy) -> None:
    promise = promise_of(strategy, PATTERN)
    cost = spent(promise, history_of([{1}] * ROUNDS))
    real = brute_force(strategy.matrix(), [list(range(ROUNDS))]) / promise.mechanism.stddev
    assert cost.worse
    assert cost.guarantee.epsilon == pytest.approx(gaussian.epsilon(1e-5, 1 / real), rel=1e-9)
    assert "worse than promised: promised epsilon " in cost.warnings()[0]
    assert "1 clients broke MinSeparation" in cost.breaches[0]


def test_a_broken_pattern_of_a_long_run_is_charged_by_the_norms_of_its_columns() -> None:
    long = toeplitz.square_root(3000, 4)
    promise = promise_of(long, MinSeparation(4, 2))
    cost = spent(promise, history_of([{1}, {1}, {1}]))
    real = brute_force(long.leading(3).matrix(), [[0, 1, 2]]) / promise.mechanism.stddev
    assert cost.worse
    assert cost.guarantee.gdp_mu >= real
    assert not cost.guarantee.sensitivity_exact


def test_independent_rounds_beyond_the_promise_are_charged_like_the_others() -> None:
    poisson = promise_of(Identity(4), PoissonSampling(0.25))
    cost = spent(poisson, history_of([set()] * 6))
    assert cost.guarantee.epsilon == accounting.epsilon([(PoissonSampled(1.0, 0.25), 6)], 1e-5, "add-or-remove-one")
    assert cost.worse
    assert "6 rounds were begun, 4 were promised" in cost.breaches
    assert cost.guarantee.rounds == 6
    shorter = replace(promise_of(BANDED, PATTERN), rounds=4)
    assert spent(shorter, history_of([{1}, {2}, {3}, {1}, {2}])).guarantee.epsilon >= shorter.after(4, 1e-5).epsilon


def test_correlated_noise_beyond_its_last_row_has_no_bound() -> None:
    cost = spent(promise_of(BANDED, PATTERN), history_of([set()] * (ROUNDS + 1)))
    assert cost.guarantee.epsilon == math.inf
    assert "nothing bounds what that costs" in cost.warnings()[1]


@pytest.mark.parametrize("participation", [PATTERN, PoissonSampling(0.5)], ids=["pattern", "Poisson"])
def test_noise_from_a_known_seed_or_updates_without_a_bound_cost_everything(participation: Participation) -> None:
    promise = promise_of(Identity(ROUNDS), participation)
    assert spent(promise, history_of([set()], key=None)).guarantee.epsilon == math.inf
    assert spent(promise, history_of([set()], clip_norm=None)).guarantee.epsilon == math.inf
    simulated = replace(promise, simulation=True)
    assert spent(simulated, history_of([set()], key=None)).breaches == ()


def test_larger_updates_than_promised_count_as_less_noise() -> None:
    poisson = promise_of(Identity(4), PoissonSampling(0.25))
    cost = spent(poisson, history_of([set()] * 2, clip_norm=2.0))
    assert cost.guarantee.epsilon == accounting.epsilon([(PoissonSampled(0.5, 0.25), 2)], 1e-5, "add-or-remove-one")
    pattern = promise_of(Identity(4), MinSeparation(1, 4))
    doubled = spent(pattern, history_of([{1}, {1}], clip_norm=2.0)).guarantee
    assert doubled.gdp_mu == pytest.approx(2 * math.sqrt(2), rel=1e-12)
    # Smaller ones go with noise of their own scale, or more.
    assert not spent(pattern, history_of([{1}, {1}], clip_norm=0.5)).worse


@pytest.mark.parametrize("participation", [PoissonSampling(0.25), FixedSizeSampling(1, 4)], ids=["Poisson", "fixed size"])
def test_random_rounds_are_charged_as_they_were_drawn_whoever_turned_up(participation: Participation) -> None:
    promise = promise_of(Identity(4), participation)
    drawn = spent(promise, history_of([set(), set(), set()])).guarantee.epsilon
    assert drawn == promise.after(3, 1e-5).epsilon
    assert spent(promise, history_of([{1}, {1, 2}, set()])).guarantee.epsilon == drawn


def test_a_run_without_privacy_stays_one() -> None:
    cost = spent(Promise(2, None), history_of([{1}]))
    assert cost.guarantee.epsilon == math.inf
    assert not cost.worse
