"""What runs have really cost: from the records alone, alone and together, and where a run starts with what was spent."""

import itertools
import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub import accounting, gaussian
from hubbub.accounting import Gaussian, PoissonSampled
from hubbub.accounting.beside import calibrate_beside
from hubbub.accounting.chain import Chain
from hubbub.accounting.history import History
from hubbub.accounting.ledger import Ledger
from hubbub.accounting.promise import Promise
from hubbub.accounting.runs import RunCharge
from hubbub.accounting.spent import spent
from hubbub.accounting.together import compose_runs, run_charges
from hubbub.cli import main
from hubbub.errors import BudgetError, ConfigError, LedgerError
from hubbub.mechanism import Mechanism
from hubbub.participation import FixedEpochs, FixedSizeSampling, MinSeparation, Participation, PoissonSampling
from hubbub.strategies import Identity, toeplitz
from hubbub.strategies.record import strategy_arrays
from hubbub.strategies.strategy import Strategy
from hubbub.training import RunStore
from hubbub.training.record import read_run
from hubbub.verification import verify
from malformed import CONFIG, Line

ROUNDS = 8
BANDED = toeplitz.square_root(ROUNDS, 3)
PATTERN = MinSeparation(3, 2)
DIGEST = "0" * 64


def promise_of(strategy: Strategy, participation: Participation, z: float = 1.0, **more: object) -> Promise:
    return Promise(strategy.rounds, Mechanism(strategy, participation, z), settings={"clip_norm": 1.0}, **more)


def history_of(cohorts: list[set[int]], key: str | None = DIGEST, clip_norm: float | None = 1.0) -> History:
    """What records say, whoever wrote them: nothing is refused here."""
    history = History()
    history.apply({"kind": "epoch", "epoch": 0, "first_row": 0, "key": key, "sampler": DIGEST})
    for t, cohort in enumerate(cohorts):
        clients = [f"{client:032x}" for client in sorted(cohort)]
        history.apply({"kind": "begin", "round": t, "epoch": 0, "clients": clients, "sum": DIGEST, "clip_norm": clip_norm})
        history.apply({"kind": "burn", "round": t})
    return history


def brute_force(C: np.ndarray, sets: list[list[int]]) -> float:
    """The largest ‖Σ ±C[:, j]‖ over the signs of each set, which is attained by vectors along one line."""
    return max(
        float(np.linalg.norm(C[:, rounds] @ np.array(signs)))
        for rounds in sets
        for signs in itertools.product((1, -1), repeat=len(rounds))
    )


# One run


def test_a_pattern_that_was_kept_costs_what_was_promised_so_far() -> None:
    promise = promise_of(BANDED, PATTERN)
    cost = spent(promise, history_of([{1, 2}, {3}, {4}, {1}]))
    assert cost.breaches == cost.warnings() == ()
    assert cost.guarantee.epsilon == promise.after(4, promise.delta).epsilon >= cost.happened.epsilon > 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=ROUNDS))
def test_epsilon_is_never_below_the_promise_so_far_nor_below_what_happened(cohorts: list[set[int]]) -> None:
    promise, history = promise_of(BANDED, PATTERN), history_of(cohorts)
    cost = spent(promise, history)
    sets = list(history.joined.values()) or [[]]
    # No coefficient is negative, so that equal signs are the worst and what a set costs is exact.
    real = brute_force(BANDED.matrix()[: len(cohorts)], sets) / promise.mechanism.stddev
    stated = cost.guarantee.epsilon
    assert stated >= promise.after(len(cohorts), promise.delta).epsilon
    if real:
        assert gaussian.delta(stated, 1 / real) <= promise.delta * (1 + 1e-9)
        assert gaussian.delta(cost.happened.epsilon, 1 / real) == pytest.approx(promise.delta, rel=1e-6)
    assert bool(cost.breaches) == any(not PATTERN.allows(rounds) for rounds in sets)


@pytest.mark.parametrize("strategy", [BANDED, Identity(ROUNDS)], ids=["banded", "independent"])
def test_a_broken_pattern_is_charged_as_it_happened(strategy: Strategy) -> None:
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


# Several runs, as folders


def recorded(folder: Path, promise: Promise, cohorts: list[list[str]], secret: int = 0, close: bool = False) -> Path:
    """A run's folder with a ledger of these rounds."""
    folder.mkdir(exist_ok=True)
    store = RunStore(folder)
    store.save_strategy(strategy_arrays(promise.mechanism.strategy) if promise.mechanism else {})
    ledger = Ledger(promise, bytes([secret]) * 32, folder / "ledger.jsonl")
    start = len(ledger.rounds)
    ledger.start_epoch(start, None if promise.simulation else bytes([start]) * 32, DIGEST)
    for t, cohort in enumerate(cohorts, start=start):
        ledger.commit(ledger.begin(t, cohort, f"sum {t} {secret}", 1.0), b"release")
    if close:
        ledger._append({"kind": "close"})  # what end_run writes
    return folder


def hubbub(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code or 0


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict:
    capsys.readouterr()
    assert hubbub(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


BAND = promise_of(BANDED, PATTERN, 2.0)
EVEN = promise_of(Identity(6), FixedEpochs(3, 2), 3.0)
COIN = promise_of(Identity(5), PoissonSampling(0.2), 1.5)
THREE = [["a"], ["b"], ["c"]]


def test_gaussian_runs_add_their_squared_mu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = recorded(tmp_path / "one", BAND, THREE, close=True)
    two = recorded(tmp_path / "two", EVEN, [["a"], ["b"]] * 3, secret=1)
    found = answer(capsys, "account", one, two)
    mu = math.hypot(BAND.after(3, 1e-5).gdp_mu, EVEN.after(6, 1e-5).gdp_mu)
    assert found["gdp_mu"] == pytest.approx(mu, rel=1e-12)
    assert found["epsilon"] == pytest.approx(gaussian.epsilon(1e-5, 1 / mu), rel=1e-9)
    assert [(run["state"], run["rounds"]) for run in found["runs"]] == [("closed", 3), ("finished", 6)]
    assert answer(capsys, "account", two, one)["epsilon"] == pytest.approx(found["epsilon"], rel=1e-12)
    assert answer(capsys, "account", one)["epsilon"] == BAND.after(3, 1e-5).epsilon


def test_random_and_other_runs_compose_their_events_under_the_relation_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = recorded(tmp_path / "one", BAND, THREE), recorded(tmp_path / "two", COIN, THREE[:2], secret=1)
    assert hubbub("account", one, two) == 2
    assert "'add-or-remove-one' and 'zero-out'" in capsys.readouterr().err
    assert hubbub("account", one, two, "--neighboring-relation", "add-or-remove-one") == 2
    assert "no theorem covers" in capsys.readouterr().err
    for relation in ("zero-out", "replace-one"):
        found = answer(capsys, "account", one, two, "--neighboring-relation", relation, "--delta", "1e-6")
        mu = BAND.after(3, 1e-5).gdp_mu
        events = [(Gaussian(1 / mu), 1), (PoissonSampled(1.5, 0.2), 2)]
        assert found["epsilon"] == pytest.approx(accounting.epsilon(events, 1e-6, relation), rel=1e-9)
        assert found["delta"] == 1e-6
        assert found["without_amplification"]["epsilon"] > found["epsilon"]


def test_runs_of_several_deltas_need_one_for_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = recorded(tmp_path / "one", BAND, THREE)
    two = recorded(tmp_path / "two", replace(EVEN, delta=1e-7), THREE[:2], secret=1)
    assert hubbub("account", one, two) == 2
    assert "1e-07 and 1e-05" in capsys.readouterr().err


def test_runs_that_hide_other_units_are_refused(tmp_path: Path) -> None:
    one = recorded(tmp_path / "one", BAND, THREE)
    two = recorded(tmp_path / "two", replace(EVEN, privacy_unit="example"), THREE[:2], secret=1)
    with pytest.raises(ConfigError, match="hides each 'example'"):
        compose_runs(run_charges([read_run(one), read_run(two)]), 1e-5)


def test_one_run_is_counted_once_however_it_comes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = recorded(tmp_path / "run", BAND, THREE)
    copy, fork = (Path(shutil.copytree(run, tmp_path / name)) for name in ("copy", "fork"))
    assert hubbub("account", run, copy) == 2
    assert "are the same ledger" in capsys.readouterr().err
    recorded(run, BAND, [["d"]])
    assert hubbub("account", copy, run) == 2
    assert "copy: is an older copy of" in capsys.readouterr().err
    recorded(fork, BAND, [["e"]])
    assert hubbub("account", fork, run) == 2
    assert "went on separately" in capsys.readouterr().err
    other = recorded(tmp_path / "other", EVEN, [["a"]])
    assert hubbub("account", run, other) == 2
    assert "under one key" in capsys.readouterr().err


def test_a_simulation_is_labelled_and_a_run_without_privacy_costs_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = recorded(tmp_path / "real", BAND, THREE)
    simulated = recorded(tmp_path / "simulated", replace(EVEN, simulation=True), THREE[:2], secret=1)
    assert hubbub("account", real, simulated) == 0
    assert capsys.readouterr().out.count("imulation, not for release") == 2
    bare = recorded(tmp_path / "bare", Promise(3, None), THREE, secret=2)
    assert answer(capsys, "account", real, bare)["epsilon"] is None
    assert hubbub("account", bare, real) == 0
    assert "no privacy guarantee" in capsys.readouterr().out


def test_what_is_worse_than_promised_is_reported_by_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as edited:
        edited.setattr(Ledger, "_allows", lambda *ignored: True)
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
    assert answer(capsys, "ledger", run)["epsilon"] == pytest.approx(real, rel=1e-9)
    found = answer(capsys, "account", run, recorded(tmp_path / "other", BAND, THREE, secret=1))
    assert found["runs"][0]["worse_than_promised"] is True
    assert found["gdp_mu"] == pytest.approx(math.hypot(math.sqrt(6) / 3, BAND.after(3, 1e-5).gdp_mu), rel=1e-9)
    # Who would go on with it is refused.
    with pytest.raises(LedgerError, match="breaks the promised"):
        Ledger(EVEN, bytes(32), run / "ledger.jsonl")


def test_a_statement_of_runs_names_every_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        recorded(tmp_path / name, promise, THREE, secret=i) for i, (name, promise) in enumerate((("one", BAND), ("two", EVEN)))
    ]
    assert hubbub("account", *runs, "--statement") == 0
    shown = capsys.readouterr().out
    assert all(read_run(run).chain.head in shown for run in runs)
    assert "(12) Record" in shown


def test_flags_of_a_mechanism_do_not_go_with_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = recorded(tmp_path / "run", BAND, THREE)
    assert hubbub("account", run, "--noise-multiplier", "1") == 2
    assert "--noise-multiplier" in capsys.readouterr().err


# A run that is told of earlier ones


def charges(*folders: Path) -> tuple[RunCharge, ...]:
    return run_charges([read_run(folder) for folder in folders])


def test_a_run_that_is_told_of_earlier_ones_starts_with_their_charge(tmp_path: Path) -> None:
    one = recorded(tmp_path / "one", BAND, THREE)
    later = replace(EVEN, earlier=charges(one))
    assert later.after(0, 1e-5).epsilon == pytest.approx(BAND.after(3, 1e-5).epsilon, rel=1e-12)
    mu = math.hypot(BAND.after(3, 1e-5).gdp_mu, EVEN.after(6, 1e-5).gdp_mu)
    assert later.after(6, 1e-5).epsilon == pytest.approx(gaussian.epsilon(1e-5, 1 / mu), rel=1e-9)
    assert "together with 1 earlier run" in later.after(6, 1e-5).sentence()
    assert read_run(one).chain.head[:16] in later.after(6, 1e-5).statement()
    coins = replace(COIN, neighboring_relation="zero-out", earlier=charges(one))
    assert coins.after(2, 1e-5).gdp_mu is None
    with pytest.raises(ConfigError, match="no theorem covers"):
        replace(COIN, earlier=charges(one)).after(2, 1e-5)


def test_an_earlier_run_counts_once_beside_the_run_that_was_told_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = recorded(tmp_path / "one", BAND, THREE)
    old = Path(shutil.copytree(one, tmp_path / "old"))
    two = recorded(tmp_path / "two", replace(EVEN, earlier=charges(one)), THREE[:2], secret=1)
    alone, both = answer(capsys, "account", two), answer(capsys, "account", one, two)
    assert both["epsilon"] == pytest.approx(alone["epsilon"], rel=1e-12)
    three = recorded(tmp_path / "three", replace(EVEN, earlier=charges(two)), THREE[:1], secret=2)
    assert len(read_run(three).promise.earlier) == 2
    recorded(one, BAND, [["d"], ["e"]])
    grown = answer(capsys, "account", one, two)
    mu = math.hypot(BAND.after(5, 1e-5).gdp_mu, EVEN.after(2, 1e-5).gdp_mu)
    assert grown["gdp_mu"] == pytest.approx(mu, rel=1e-9)
    four = recorded(tmp_path / "four", replace(EVEN, earlier=charges(one)), THREE[:1], secret=3)
    assert hubbub("account", two, four) == 2
    assert "at another head" in capsys.readouterr().err
    assert hubbub("account", old, four) == 2
    assert "was rolled back" in capsys.readouterr().err


@pytest.mark.parametrize("cohorts", [PATTERN, PoissonSampling(0.3)], ids=["pattern", "Poisson"])
def test_noise_is_calibrated_so_that_all_runs_together_meet_the_budget(tmp_path: Path, cohorts: Participation) -> None:
    earlier = charges(recorded(tmp_path / "one", BAND, THREE))
    spent_before = BAND.after(3, 1e-5).epsilon
    budget = spent_before + 1.0
    found = calibrate_beside(earlier, Identity(ROUNDS), cohorts, epsilon=budget, delta=1e-5, neighboring_relation="zero-out")
    for z, within in ((found.noise_multiplier, True), (found.noise_multiplier * 0.999, False)):
        mechanism = Mechanism(Identity(ROUNDS), cohorts, z)
        total = accounting.guarantee(mechanism, 1e-5, "zero-out", earlier=earlier).epsilon
        assert (total <= budget) is within
    with pytest.raises(BudgetError, match="earlier runs alone cost"):
        calibrate_beside(earlier, Identity(ROUNDS), PATTERN, epsilon=spent_before, delta=1e-5)


def test_a_trained_run_keeps_its_earlier_charge_over_stop_resume_and_verify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Line, "may_learn", True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    recorded(tmp_path / "one", BAND, THREE, close=True)
    text = CONFIG.replace("rounds = 12", "rounds = 4").replace(
        "noise_multiplier = 1.0", 'epsilon = 6.0\nearlier_runs = ["one"]'
    )
    (tmp_path / "run.toml").write_text(text)
    begin, begun = Ledger.begin, []

    def stopped(ledger: Ledger, round_index: int, *arguments: object) -> object:
        begun.append(round_index)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return begin(ledger, round_index, *arguments)

    with monkeypatch.context() as interrupted:
        interrupted.setattr(Ledger, "begin", stopped)
        assert hubbub("train", "run.toml", "--out", "two", "--allow-import") == 130
    shutil.rmtree(tmp_path / "one")
    assert hubbub("verify", "two") == 0
    assert hubbub("resume", "two", "--allow-import") == 0
    assert "together with 1 earlier run" in capsys.readouterr().out
    assert hubbub("verify", "two") == 0
    stated = json.loads((tmp_path / "two" / "guarantee.json").read_text())
    assert 6.0 * (1 - 1e-3) <= stated["epsilon"] <= 6.0
    rows = [json.loads(line) for line in (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["epsilon"] > BAND.after(3, 1e-5).epsilon
    assert rows[-1]["epsilon"] == stated["epsilon"] == answer(capsys, "account", "two")["epsilon"]


def test_the_settings_refuse_what_is_no_earlier_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "run.toml").write_text(CONFIG)
    recorded(tmp_path / "played", replace(BAND, simulation=True), THREE, close=True)
    for value, words in {
        '"one"': "must be a list",
        "[1]": "must be a list",
        "7": "must be a list",
        '["nowhere"]': "nowhere: is no run",
        '["played"]': "is a simulation",
        '["played", "played"]': "the same ledger",
    }.items():
        assert hubbub("plan", "run.toml", "--allow-import", "--set", f"privacy.earlier_runs={value}") == 2
        assert words in capsys.readouterr().err
    recorded(tmp_path / "real", BAND, THREE, close=True)
    for budget, words in (("stop_epsilon", "the earlier runs alone cost"), ("epsilon", "earlier runs alone cost")):
        told = ("--set", 'privacy.earlier_runs=["real"]', "--set", f"privacy.{budget}=0.5")
        assert hubbub("plan", "run.toml", "--allow-import", *told) == 2
        assert words in capsys.readouterr().err


def test_a_run_whose_folder_shows_more_than_its_ledger_or_that_may_go_on_is_refused_before_its_charge_is_promised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Line, "may_learn", True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "run.toml").write_text(CONFIG)
    one = recorded(tmp_path / "one", BAND, THREE)
    told = ("run.toml", "--allow-import", "--set", 'privacy.earlier_runs=["one"]')
    for command in (("plan", *told), ("train", *told, "--out", "two")):
        assert hubbub(*command) == 2
        shown = capsys.readouterr().err
        for words in ("one: 3 of the 8 rounds", "hubbub resume one", "hubbub close one --early"):
            assert words in shown
    assert hubbub("close", "one", "--early") == 0
    assert hubbub("plan", *told) == 0
    release = one / "state" / "releases" / "3.safetensors"
    release.write_bytes(b"a release")
    for command in (("plan", *told), ("train", *told, "--out", "two")):
        capsys.readouterr()
        assert hubbub(*command) == 2
        assert "state/releases/3.safetensors is no release of it: it was rolled back" in capsys.readouterr().err
    assert not (tmp_path / "two").exists()


def test_what_follows_a_run_without_a_bound_has_none(tmp_path: Path) -> None:
    bare = recorded(tmp_path / "bare", Promise(3, None), THREE)
    later = replace(EVEN, earlier=charges(bare))
    two = recorded(tmp_path / "two", later, THREE[:2], secret=1)
    assert later.after(2, 1e-5).epsilon == math.inf
    assert spent(read_run(two).promise, read_run(two).history).guarantee.epsilon == math.inf
    assert {check.name for check in verify(two).checks} >= {"promise", "epsilon"}
    with pytest.raises(BudgetError, match="cost ∞"):
        calibrate_beside(charges(bare), Identity(4), PATTERN, epsilon=8.0, delta=1e-5)


# What a file may say of earlier runs


RECORD = {
    "first": "a" * 64,
    "head": "b" * 64,
    "rounds": 3,
    "planned": 5,
    "events": [{"event": "Gaussian", "count": 1, "noise_multiplier": 2.0}],
    "neighboring_relation": "zero-out",
    "relations": ["zero-out"],
    "privacy_unit": "client",
    "simulation": False,
}
WRONG = {
    "first": (None, 1, "a" * 63, "A" * 64, "g" * 64, ["a" * 64]),
    "head": (None, "", "b" * 65),
    "rounds": (None, -1, 1.5, True, "3", 10**30),
    "planned": (0, -1, None, True, 10**30),
    "events": (
        {},
        "none",
        [1],
        [{}],
        [{"event": "Nothing", "count": 1}],
        [{"event": "Gaussian", "count": 0, "noise_multiplier": 2.0}],
        [{"event": "Gaussian", "count": True, "noise_multiplier": 2.0}],
        [{"event": "Gaussian", "count": 1}],
        [{"event": "Gaussian", "count": 1, "noise_multiplier": 0.0}],
        [{"event": "Gaussian", "count": 1, "noise_multiplier": "2"}],
        [{"event": "Gaussian", "count": 1, "noise_multiplier": 2.0, "more": 1}],
        [{"event": "PoissonSampled", "count": 1, "noise_multiplier": 2.0, "sampling_probability": 2.0}],
        [{"event": "BallsInBins", "count": 1, "noise_multiplier": 2.0, "bins": 1, "rounds": 10**30}],
    ),
    "neighboring_relation": (None, "", "nobody", 5),
    "relations": (None, "zero-out", ["nobody"], [None], {}),
    "privacy_unit": (None, 5, "\x1b[31m"),
    "simulation": (None, 0, "no"),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values], ids=str)
def test_a_record_of_an_earlier_run_is_checked_value_by_value(name: str, value: object) -> None:
    assert RunCharge.from_record(RECORD).record() == RECORD
    for wrong in ({**RECORD, name: value}, {key: v for key, v in RECORD.items() if key != name}, {**RECORD, "more": 1}):
        with pytest.raises((ValueError, TypeError)):
            RunCharge.from_record(wrong)


@pytest.mark.parametrize("earlier", [None, {}, "x", [1], [RECORD, RECORD], []], ids=lambda value: str(value)[:10])
def test_a_promise_with_false_earlier_runs_is_no_promise(tmp_path: Path, earlier: object) -> None:
    run = recorded(tmp_path / "run", BAND, THREE)
    records = [dict(record) for record in read_run(run).chain.records]
    (run / "ledger.jsonl").unlink()
    chain = Chain(run / "ledger.jsonl")
    for record in [{**records[0], "schema": 3, "earlier": earlier}, *records[1:]]:
        chain.append(record)
    assert hubbub("verify", run) == 1
    with pytest.raises(LedgerError):
        Ledger(BAND, bytes(32), run / "ledger.jsonl")


def test_an_older_hubbub_refuses_a_ledger_with_earlier_runs_and_ours_reads_one_without(tmp_path: Path) -> None:
    one = recorded(tmp_path / "one", BAND, THREE)
    two = recorded(tmp_path / "two", replace(EVEN, earlier=charges(one)), THREE[:1], secret=1)
    assert read_run(one).chain.records[0]["schema"] == 2
    assert "earlier" not in read_run(one).chain.records[0]
    assert read_run(two).chain.records[0]["schema"] == 3
    assert Ledger(replace(EVEN, earlier=charges(one)), bytes([1]) * 32, two / "ledger.jsonl").next_round == 1
    with pytest.raises(LedgerError, match="another promise"):
        Ledger(EVEN, bytes([1]) * 32, two / "ledger.jsonl")
