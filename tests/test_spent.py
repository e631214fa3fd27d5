"""What a run has really cost, from its records alone, and what several runs over the same people cost together."""

import itertools
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub import accounting
from hubbub.accounting import Gaussian, PoissonSampled
from hubbub.accounting.events_of_mechanism import mechanism_events
from hubbub.accounting.wording import ranks_assumption
from hubbub.errors import ConfigError, LedgerError
from hubbub.ledger import Ledger, Promise, compose_runs, run_charges, spent
from hubbub.mechanism import gaussian
from hubbub.mechanism.participation import FixedEpochs, FixedSizeSampling, MinSeparation, Participation, PoissonSampling
from hubbub.mechanism.private_evaluation import PrivateEvaluation
from hubbub.mechanism.strategies import Identity, Strategy, toeplitz
from hubbub.report.summary import summary
from hubbub.training.run_folder.record import read_run
from recorded_runs import BAND, BANDED, COIN, EVEN, PATTERN, ROUNDS, THREE, answer, history_of, hubbub, promise_of, recorded
from refusals import refused


def brute_force(C: np.ndarray, sets: list[list[int]]) -> float:
    """The largest ‖Σ ±C[:, j]‖ over the signs of each set, which is attained by vectors along one line."""
    signed = ((rounds, signs) for rounds in sets for signs in itertools.product((1, -1), repeat=len(rounds)))
    return max(float(np.linalg.norm(C[:, rounds] @ np.array(signs))) for rounds, signs in signed)


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


def test_prt_8_independent_rounds_beyond_the_promise_are_charged_like_the_others() -> None:
    poisson = promise_of(Identity(4), PoissonSampling(0.25))
    cost = spent(poisson, history_of([set()] * 6))
    assert cost.guarantee.epsilon == accounting.epsilon([(PoissonSampled(1.0, 0.25), 6)], 1e-5, "add-or-remove-one")
    assert cost.worse
    assert "6 rounds were begun, 4 were promised" in cost.breaches
    assert cost.guarantee.rounds == 6
    measured = replace(poisson, settings={**poisson.settings, "evaluation": PrivateEvaluation(1.0, every=1).record()})
    both = [(PoissonSampled(1.0, 0.25), 6), *mechanism_events(*measured.evaluations(6))]
    assert spent(measured, history_of([set()] * 6)).guarantee.epsilon == accounting.epsilon(both, 1e-5, "add-or-remove-one")
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


def test_acc_12_gaussian_runs_add_their_squared_mu(tmp_path: Path) -> None:
    one = recorded(tmp_path / "one", BAND, THREE, close=True)
    two = recorded(tmp_path / "two", EVEN, [["a"], ["b"]] * 3, secret=1)
    found = answer("account", one, two)
    mu = math.hypot(BAND.after(3, 1e-5).gdp_mu, EVEN.after(6, 1e-5).gdp_mu)
    assert found["gdp_mu"] == pytest.approx(mu, rel=1e-12)
    assert found["epsilon"] == pytest.approx(gaussian.epsilon(1e-5, 1 / mu), rel=1e-9)
    assert [(run["state"], run["rounds"]) for run in found["runs"]] == [("closed", 3), ("finished", 6)]
    assert answer("account", two, one)["epsilon"] == pytest.approx(found["epsilon"], rel=1e-12)
    assert answer("account", one)["epsilon"] == BAND.after(3, 1e-5).epsilon


def test_acc_9_acc_12_random_and_other_runs_compose_their_events_under_the_relation_that_is_named(tmp_path: Path) -> None:
    one, two = recorded(tmp_path / "one", BAND, THREE), recorded(tmp_path / "two", COIN, THREE[:2], secret=1)
    refused(["account", one, two], "'add-or-remove-one' and 'zero-out'")
    refused(["account", one, two, "--neighboring-relation", "add-or-remove-one"], "no theorem covers")
    for relation in ("zero-out", "replace-one"):
        found = answer("account", one, two, "--neighboring-relation", relation, "--delta", "1e-6")
        mu = BAND.after(3, 1e-5).gdp_mu
        events = [(Gaussian(1 / mu), 1), (PoissonSampled(1.5, 0.2), 2)]
        assert found["epsilon"] == pytest.approx(accounting.epsilon(events, 1e-6, relation), rel=1e-9)
        assert found["delta"] == 1e-6
        assert found["without_amplification"]["epsilon"] > found["epsilon"]


def test_runs_that_hide_other_units_are_refused(tmp_path: Path) -> None:
    one = recorded(tmp_path / "one", BAND, THREE)
    two = recorded(tmp_path / "two", replace(EVEN, privacy_unit="example"), THREE[:2], secret=1)
    with pytest.raises(ConfigError, match="hides each 'example'"):
        compose_runs(run_charges([read_run(one), read_run(two)]), 1e-5)


def test_acc_12_one_run_is_counted_once_however_it_comes(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", BAND, THREE)
    copy, fork = (Path(shutil.copytree(run, tmp_path / name)) for name in ("copy", "fork"))
    refused(["account", run, copy], "are the same ledger")
    recorded(run, BAND, [["d"]])
    refused(["account", copy, run], "copy: is an older copy of")
    recorded(fork, BAND, [["e"]])
    refused(["account", fork, run], "went on separately")
    other = recorded(tmp_path / "other", EVEN, [["a"]])
    refused(["account", run, other], "under one key")


def test_a_simulation_is_labelled_and_no_privacy_costs_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = recorded(tmp_path / "real", BAND, THREE)
    simulated = recorded(tmp_path / "simulated", replace(EVEN, simulation=True), THREE[:2], secret=1)
    assert hubbub("account", real, simulated) == 0
    told = capsys.readouterr().out
    assert "; simulation, not for release" in told
    assert "Not for release: a simulation is among the runs" in told
    bare = recorded(tmp_path / "bare", Promise(3, None), THREE, secret=2)
    assert answer("account", real, bare)["epsilon"] is None
    assert hubbub("account", bare, real) == 0
    assert "no privacy guarantee" in capsys.readouterr().out


def test_what_is_worse_than_promised_is_reported_by_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as edited:
        edited.setattr(FixedEpochs, "may_follow", lambda _, counts, *ignored: np.ones(len(counts), dtype=bool))
        run = recorded(tmp_path / "run", EVEN, [["a"]] * 6)
    real = gaussian.epsilon(1e-5, 3.0 / math.sqrt(6))
    happened, promised = accounting.rounded_up(real), accounting.rounded_up(EVEN.after(6, 1e-5).epsilon)
    for command in ("account", "ledger", "verify"):
        capsys.readouterr()
        assert hubbub(command, run) == (1 if command == "verify" else 0)
        shown = capsys.readouterr().out
        assert "orse than promised" in shown
        assert f"promised {promised}" in shown or f"promised epsilon {promised}" in shown
        assert f"happened {happened}" in shown
    assert answer("ledger", run)["epsilon"] == pytest.approx(real, rel=1e-9)
    # Nor does a report show less after fewer rounds.
    assert {summary(run).epsilon_after(rounds) for rounds in range(1, 7)} == {summary(run).guarantee.epsilon}
    found = answer("account", run, recorded(tmp_path / "other", BAND, THREE, secret=1))
    assert found["runs"][0]["worse_than_promised"] is True
    assert found["gdp_mu"] == pytest.approx(math.hypot(math.sqrt(6) / 3, BAND.after(3, 1e-5).gdp_mu), rel=1e-9)
    # Who would go on with it is refused.
    with pytest.raises(LedgerError, match="1 clients broke FixedEpochs"):
        Ledger(EVEN, bytes(32), run / "ledger.jsonl")


def test_acc_12_acc_13_a_statement_of_runs_names_every_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [recorded(tmp_path / str(secret), promise, THREE, secret) for secret, promise in enumerate((BAND, EVEN))]
    assert hubbub("account", *runs, "--statement") == 0
    shown = capsys.readouterr().out
    assert all(read_run(run).chain.head in shown for run in runs)
    assert "(12) Record" in shown
