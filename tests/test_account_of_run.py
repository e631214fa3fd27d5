"""``account --mechanism RUN`` and ``calibrate --mechanism RUN`` state all that the run promises, not its mechanism alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from hubbub.ledger.promise import Promise
from recorded_runs import BAND, BANDED, COIN, EVEN, PATTERN, THREE, answer, charges, invoke, promise_of, recorded
from refusals import refused

COMMANDS = {"account": ["account"], "calibrate": ["calibrate", "--epsilon", "3"]}
each_command = pytest.mark.parametrize("command", COMMANDS)


def stated(command: str, run: Path, *more: str) -> tuple[str, dict]:
    """What a command prints of a run for people, and what it prints for programs."""
    words = [*COMMANDS[command], "--mechanism", run, "--delta", "1e-5", *more]
    return invoke(*words), answer(*words)


@each_command
def test_the_unit_of_a_run_and_that_it_is_a_simulation_are_stated(tmp_path: Path, command: str) -> None:
    run = recorded(tmp_path / "run", replace(BAND, privacy_unit="example", simulation=True), THREE)
    text, found = stated(command, run)
    assert "for each example" in text
    assert "each client" not in text
    assert "Simulation, not for release" in text
    assert (found["privacy_unit"], found["simulation"]) == ("example", True)


@each_command
def test_the_cost_of_earlier_runs_is_in_that_of_a_run(tmp_path: Path, command: str) -> None:
    earlier = recorded(tmp_path / "earlier", EVEN, THREE, secret=1, close=True)
    promise = replace(BAND, earlier=charges(earlier))
    run = recorded(tmp_path / "run", promise, THREE)
    text, found = stated(command, run)
    assert "together with 1 earlier run" in text
    assert len(found["earlier"]) == 1
    if command == "account":
        assert found["epsilon"] == promise.after(promise.rounds, 1e-5).epsilon > BAND.after(BAND.rounds, 1e-5).epsilon
    else:
        assert found["epsilon"] <= 3
        alone = recorded(tmp_path / "alone", BAND, THREE, secret=2)
        assert found["noise_multiplier"] > stated(command, alone)[1]["noise_multiplier"]


@each_command
def test_a_run_keeps_its_relation_and_its_accountant_unless_others_are_named(tmp_path: Path, command: str) -> None:
    run = recorded(tmp_path / "run", replace(BAND, neighboring_relation="replace-one", accountant="rdp"), THREE)
    _, found = stated(command, run)
    assert (found["neighboring_relation"], found["accountant"]) == ("replace-one", "rdp")
    _, found = stated(command, run, "--neighboring-relation", "zero-out", "--accountant", "tight")
    assert (found["neighboring_relation"], found["accountant"]) == ("zero-out", "tight")


@each_command
def test_terms_that_a_run_does_not_cover_are_refused(tmp_path: Path, command: str) -> None:
    promise = replace(COIN, neighboring_relation="zero-out", settings={**COIN.settings, "parameters": 10**9})
    run = recorded(tmp_path / "run", promise, THREE)
    for named in ([*COMMANDS[command], "--mechanism", run, "--delta", "1e-5"], ["account", run]):
        refused([*named, "--neighboring-relation", "add-or-remove-one"], "states 'zero-out', since its divisor may tell")
        refused([*named, "--delta", "1e-30"], "delta = 1e-30: the noise is made of finitely many bits")


@pytest.mark.parametrize("promise", [BAND, COIN, EVEN], ids=["band", "coin", "even"])
def test_a_run_s_mechanism_costs_what_the_run_promised(tmp_path: Path, promise: Promise) -> None:
    run = recorded(tmp_path / "run", replace(promise, delta=1e-6), THREE)
    found = answer("account", "--mechanism", run)
    assert found["delta"] == 1e-6
    assert found["epsilon"] == promise.after(promise.rounds, 1e-6).epsilon
    assert answer("account", "--mechanism", run, "--delta", "1e-4")["delta"] == 1e-4
    words = invoke("account", "--mechanism", run)
    assert "That is what the run promised" in words
    assert f"hubbub account {run} says what it spent" in words
    for typed in (["--noise-multiplier", "50"], ["--delta", "1e-4"], ["--neighboring-relation", "replace-one"]):
        words = invoke("account", "--mechanism", run, *typed)
        assert "That is not what the run promised" in words


def test_a_run_s_mechanism_under_other_cohorts_keeps_its_unit(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", promise_of(BANDED, PATTERN, 2.0, privacy_unit="example"), THREE)
    found = answer("account", "--mechanism", run, "--min-separation", "4", "--max-participations", "1")
    assert found["privacy_unit"] == "example"
    assert found["l2_sensitivity"] < answer("account", "--mechanism", run)["l2_sensitivity"]


def test_noise_of_fewer_rounds_than_the_strategy_has_is_not_calibrated_for_all_of_them(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", replace(BAND, rounds=3), THREE)
    refused([*COMMANDS["calibrate"], "--mechanism", run, "--delta", "1e-5"], "has 3 of its strat", "--set training.rounds=3")


@each_command
def test_the_first_line_says_which_participation_is_meant(tmp_path: Path, command: str) -> None:
    def first(*more: object) -> str:
        return invoke(*COMMANDS[command], "--delta", "1e-5", *more).splitlines()[0]

    own = ["--rounds", "5", *(["--noise-multiplier", "2"] if command == "account" else [])]
    assert first(*own) == "Participation: any client in any round, since no flag names another"
    assert first(*own, "--min-separation", "2") == "Participation: each client in at most 3 rounds at least 2 apart"
    assert first(*own, "--sampling-probability", "0.1") == "Participation: each client in a round with probability 0.1"
    run = recorded(tmp_path / "run", COIN, THREE)
    assert first("--mechanism", run) == "Participation: each client in a round with probability 0.2"
