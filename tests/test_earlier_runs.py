"""A run that starts with what earlier ones have spent."""

import json
import math
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hubbub import accounting, calibrate, verify
from hubbub.accounting.runs import RunCharge
from hubbub.accounting.wording import same_units
from hubbub.errors import BudgetError, ConfigError, LedgerError
from hubbub.ledger import Ledger, Promise, spent
from hubbub.mechanism import Mechanism, gaussian
from hubbub.mechanism.participation import Participation, PoissonSampling
from hubbub.mechanism.strategies import Identity
from hubbub.training.run_folder.record import read_run
from malformed import CONFIG
from recorded_runs import BAND, COIN, EVEN, PATTERN, THREE, answer, charges, hubbub, interrupted_at, invoke, recorded, rewritten
from refusals import refused


def test_acc_12_a_run_that_is_told_of_earlier_ones_starts_with_their_charge(tmp_path: Path) -> None:
    one = recorded(tmp_path / "one", BAND, THREE)
    later = replace(EVEN, earlier=(held := list(charges(one))))
    held.clear()
    assert later.after(0, 1e-5).epsilon == pytest.approx(BAND.after(3, 1e-5).epsilon, rel=1e-12)
    mu = math.hypot(BAND.after(3, 1e-5).gdp_mu, EVEN.after(6, 1e-5).gdp_mu)
    assert later.after(6, 1e-5).epsilon == pytest.approx(gaussian.epsilon(1e-5, 1 / mu), rel=1e-9)
    assert "together with 1 earlier run" in later.after(6, 1e-5).sentence()
    assert read_run(one).chain.head[:16] in later.after(6, 1e-5).statement()
    coins = replace(COIN, neighboring_relation="zero-out", earlier=charges(one))
    assert coins.after(2, 1e-5).gdp_mu is None
    with pytest.raises(ConfigError, match="no theorem covers"):
        replace(COIN, earlier=charges(one)).after(2, 1e-5)


def test_an_earlier_run_counts_once_beside_the_run_that_was_told_of_it(tmp_path: Path) -> None:
    one = recorded(tmp_path / "one", BAND, THREE)
    old = Path(shutil.copytree(one, tmp_path / "old"))
    two = recorded(tmp_path / "two", replace(EVEN, earlier=charges(one)), THREE[:2], secret=1)
    alone, both = answer("account", two), answer("account", one, two)
    assert both["epsilon"] == pytest.approx(alone["epsilon"], rel=1e-12)
    three = recorded(tmp_path / "three", replace(EVEN, earlier=charges(two)), THREE[:1], secret=2)
    assert len(read_run(three).promise.earlier) == 2
    recorded(one, BAND, [["d"], ["e"]])
    grown = answer("account", one, two)
    mu = math.hypot(BAND.after(5, 1e-5).gdp_mu, EVEN.after(2, 1e-5).gdp_mu)
    assert grown["gdp_mu"] == pytest.approx(mu, rel=1e-9)
    four = recorded(tmp_path / "four", replace(EVEN, earlier=charges(one)), THREE[:1], secret=3)
    refused(["account", two, four], "at another head")
    refused(["account", old, four], "was rolled back")


@pytest.mark.parametrize("cohorts", [PATTERN, PoissonSampling(0.3)], ids=["pattern", "Poisson"])
def test_acc_12_noise_is_calibrated_so_that_all_runs_together_meet_the_budget(tmp_path: Path, cohorts: Participation) -> None:
    earlier = charges(recorded(tmp_path / "one", BAND, THREE))
    spent_before = BAND.after(3, 1e-5).epsilon
    budget = spent_before + 1.0
    strategy, terms = Identity(BAND.rounds), {"delta": 1e-5, "neighboring_relation": "zero-out"}
    found = calibrate(strategy, cohorts, prior=earlier, epsilon=budget, **terms)
    for z, within in ((found.noise_multiplier, True), (found.noise_multiplier * 0.999, False)):
        mechanism = Mechanism(strategy, cohorts, z)
        total = accounting.guarantee(mechanism, 1e-5, "zero-out", earlier=earlier).epsilon
        assert (total <= budget) is within
    with pytest.raises(BudgetError, match="earlier runs alone cost"):
        calibrate(strategy, PATTERN, prior=earlier, epsilon=spent_before, delta=1e-5)


@pytest.mark.usefixtures("own_code")
def test_a_run_keeps_its_earlier_charge_over_stop_resume_and_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "one", BAND, THREE, close=True)
    text = CONFIG.replace("rounds = 12", "rounds = 4")
    (tmp_path / "run.toml").write_text(text.replace("noise_multiplier = 1.0", 'epsilon = 6.0, earlier_runs = ["one"]'))
    with interrupted_at(3):
        assert hubbub("train", "run.toml", "--out", "two", "--allow-import") == 130
    begun = (tmp_path / "two" / "config.toml").read_text()
    other = recorded(tmp_path / "other", EVEN, THREE[:1], secret=1, close=True)
    (tmp_path / "two" / "config.toml").write_text(begun.replace("earlier_runs = [", f'earlier_runs = ["{other}",'))
    refused(["resume", "two", "--allow-import"], "privacy.earlier_runs: ", "none that this run counted when it began")
    (tmp_path / "two" / "config.toml").write_text(begun)
    shutil.rmtree(tmp_path / "one")
    assert hubbub("verify", "two") == 0
    (tmp_path / "two" / "guarantee.json").unlink()
    # Nor does it run its own code again unasked.
    assert hubbub("resume", "two") == 2
    assert hubbub("resume", "two", "--allow-import") == 0
    assert "together with 1 earlier run" in capsys.readouterr().out
    assert hubbub("verify", "two") == 0
    stated = json.loads((tmp_path / "two" / "guarantee.json").read_text())
    assert 6.0 * (1 - 1e-3) <= stated["epsilon"] <= 6.0
    rows = [json.loads(line) for line in (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["epsilon"] > BAND.after(3, 1e-5).epsilon
    assert rows[-1]["epsilon"] == stated["epsilon"] == answer("account", "two")["epsilon"]


@pytest.mark.usefixtures("own_code")
def test_the_settings_refuse_what_is_no_earlier_run(tmp_path: Path) -> None:
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
        refused(["plan", "run.toml", "--allow-import", "--set", f"privacy.earlier_runs={value}"], words)
    recorded(tmp_path / "real", BAND, THREE, close=True)
    for budget, words in (("stop_epsilon", "the earlier runs alone cost"), ("epsilon", "earlier runs alone cost")):
        told = ("--set", 'privacy.earlier_runs=["real"]', "--set", f"privacy.{budget}=0.5")
        refused(["plan", "run.toml", "--allow-import", *told], words)


DEAL = {"data.name": "digits", "data.partition": "iid", "data.clients": 40, "data.alpha": 0.5, "training.validation": 0.0}
OTHER_DEALS = {"data.clients": 20, "data.partition": "user", "data.seed": 7, "training.validation": 0.1}


def dealt(**change: object) -> Promise:
    return replace(EVEN, settings={**EVEN.settings, **DEAL, "data.seed": 0, **change})


@pytest.mark.parametrize("other", OTHER_DEALS)
def test_acc_12_runs_that_deal_the_same_data_differently_have_no_epsilon_together(tmp_path: Path, other: str) -> None:
    changed = dealt(**{other: OTHER_DEALS[other]})
    one, two = (recorded(tmp_path / f"{n}", run, THREE, n, close=True) for n, run in enumerate((dealt(), changed)))
    refused(["account", one, two], "no epsilon is known", "or account each run alone")
    (tmp_path / "run.toml").write_text("data.clients = 40\nprivacy.noise_multiplier = 1.0")
    plan = ["plan", tmp_path / "run.toml", "--set", f"privacy.earlier_runs=['{two}']"]
    refused(plan, f"{two} and this run: have {other} = {OTHER_DEALS[other]!r} and", "give all runs the same data.seed")


def test_runs_whose_clients_are_alike_or_whose_promise_does_not_say_so_are_counted_together(tmp_path: Path) -> None:
    users = {"data.partition": "user"}
    pairs = (
        (dealt(), dealt(**{"data.alpha": 0.1})),
        (dealt(**users), dealt(**users, **{"data.seed": 7})),
        (dealt(), EVEN),
        (dealt(), dealt(**{"data.name": "own:data", "data.seed": 7})),
    )
    for number, pair in enumerate(pairs):
        runs = [recorded(tmp_path / f"{number}-{n}", run, THREE, n) for n, run in enumerate(pair)]
        assert answer("account", *runs)["epsilon"] == pytest.approx(answer("account", *runs[::-1])["epsilon"])
    assert f"- {same_units('client')}" in invoke("account", *runs, "--statement")
    assert same_units("client") in replace(EVEN, earlier=charges(runs[0])).after(6, 1e-5).assumptions


@pytest.mark.slow
@pytest.mark.usefixtures("own_code")
def test_a_run_with_little_budget_left_says_what_noise_that_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    earlier = charges(recorded(tmp_path / "one", BAND, THREE, close=True))
    for more in (0.05, 5.0):
        budget = round(BAND.after(3, 1e-5).epsilon + more, 4)
        own = f'epsilon = {budget}, earlier_runs = ["one"]'
        (tmp_path / "run.toml").write_text(CONFIG.replace("noise_multiplier = 1.0", own))
        assert hubbub("train", "run.toml", "--out", f"run-{more}", "--allow-import") == 0
        assert hubbub("plan", "run.toml", "--allow-import", "--no-alternatives") == 0
        said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Earlier runs have used up most of ")]
        mechanism = read_run(tmp_path / f"run-{more}").promise.mechanism
        meets = partial(calibrate, mechanism.strategy, mechanism.participation, epsilon=budget, delta=1e-5)
        with_them, without = (meets(prior=prior).noise_multiplier for prior in (earlier, ()))
        line = f"{with_them:.4g}, is {with_them / without:.3g} times what it would be without them ({without:.4g})."
        line = f"Earlier runs have used up most of privacy.epsilon = {budget:g}: the noise multiplier, {line}"
        assert said == ([line] * 2 if more < 1 else [])
        assert (with_them > 3 * without) is (more < 1)


@pytest.mark.usefixtures("own_code")
def test_a_run_that_shows_more_than_its_ledger_or_may_go_on_is_refused_before_its_charge_is_promised(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    one = recorded(tmp_path / "one", BAND, THREE)
    told = ("run.toml", "--allow-import", "--set", 'privacy.earlier_runs=["one"]')
    for command in (("plan", *told), ("train", *told, "--out", "two")):
        refused(command, "one: 3 of the 8 rounds", "hubbub resume one", "hubbub close one --early")
    assert hubbub("close", "one", "--early") == 0
    assert hubbub("plan", *told) == 0
    release = one / "state" / "releases" / "3.safetensors"
    release.write_bytes(b"a release")
    for command in (("plan", *told), ("train", *told, "--out", "two")):
        refused(command, "state/releases/3.safetensors is no release of it: it was rolled back")
    assert not (tmp_path / "two").exists()


def test_what_follows_a_run_without_a_bound_has_none(tmp_path: Path) -> None:
    bare = recorded(tmp_path / "bare", Promise(3, None), THREE)
    later = replace(EVEN, earlier=charges(bare))
    two = recorded(tmp_path / "two", later, THREE[:2], secret=1)
    assert later.after(2, 1e-5).epsilon == math.inf
    assert spent(read_run(two).promise, read_run(two).history).guarantee.epsilon == math.inf
    assert {check.name for check in verify(two).checks} >= {"promise", "epsilon"}
    with pytest.raises(BudgetError, match="cost ∞"):
        calibrate(Identity(4), PATTERN, prior=charges(bare), epsilon=8.0, delta=1e-5)


GAUSSIAN = {"event": "Gaussian", "count": 1, "noise_multiplier": 2.0}
RECORD = {
    "first": "a" * 64, "head": "b" * 64, "rounds": 3, "planned": 5, "events": [GAUSSIAN], "neighboring_relation": "zero-out",
    "relations": ["zero-out"], "privacy_unit": "client", "simulation": False, "further": [], "not_covered": [], "setting": "",
}  # fmt: skip
WRONG = {
    "first": (None, "a" * 63, "A" * 64, "g" * 64),
    "head": ("b" * 65,),
    "rounds": (-1, 1.5, True, "3", 10**30),
    "planned": (0,),
    "events": (
        {},
        [1],
        [{"event": "Nothing", "count": 1}],
        [{"event": "Gaussian", "count": 1}],
        *([GAUSSIAN | change] for change in ({"count": 0}, {"count": True}, {"noise_multiplier": 0.0}, {"more": 1})),
        [{"event": "PoissonSampled", "count": 1, "noise_multiplier": 2.0, "sampling_probability": 2.0}],
        [{"event": "BallsInBins", "count": 1, "noise_multiplier": 2.0, "bins": 1, "rounds": 10**30}],
    ),
    "neighboring_relation": (None, "nobody"),
    "relations": ("zero-out", ["nobody"]),
    "privacy_unit": (5, "\x1b[31m"),
    "simulation": (None, 0),
    "further": ([{"text": "x"}],),
    "not_covered": ([""],),
    "setting": ("two\nlines",),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values], ids=str)
def test_a_record_of_an_earlier_run_is_checked_value_by_value(name: str, value: object) -> None:
    assert RunCharge.from_record(RECORD).record() == RECORD
    for wrong in ({**RECORD, name: value}, {key: v for key, v in RECORD.items() if key != name}, {**RECORD, "more": 1}):
        with pytest.raises((ValueError, TypeError)):
            RunCharge.from_record(wrong)


@pytest.mark.parametrize("earlier", [None, {}, "x", [1], [RECORD, RECORD]], ids=lambda value: str(value)[:10])
def test_a_promise_with_false_earlier_runs_is_no_promise(tmp_path: Path, earlier: object) -> None:
    run = recorded(tmp_path / "run", BAND, THREE)
    rewritten(run, lambda records: records[0].update(earlier=earlier))
    assert hubbub("verify", run) == 1
    with pytest.raises(LedgerError):
        Ledger(BAND, bytes(32), run / "ledger.jsonl")


@pytest.mark.parametrize("settings", [{"layers": (1, 2)}, {"a": {1: 2}}, {"a": [math.nan]}, {"a": {1}}], ids=str)
def test_a_promise_that_its_record_would_not_give_back_is_refused(tmp_path: Path, settings: dict) -> None:
    with pytest.raises(ConfigError, match=r"settings = .*must be strict JSON values"):
        replace(EVEN, settings=settings)
    with pytest.raises(ConfigError, match="earlier: has 2 runs; name each once"):
        replace(EVEN, earlier=2 * charges(recorded(tmp_path, BAND, THREE)))


def test_a_run_of_another_version_is_refused_in_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", BAND, THREE)
    rewritten(run, lambda records: records[0].update(schema=2))
    for command in ("account", "ledger"):
        said = refused([command, run], "use the version that began it, or begin a new run")
        assert said.count("begun with another version of hubbub") == 1


def test_a_later_run_keeps_its_promise_to_count_the_earlier_ones(tmp_path: Path) -> None:
    one = recorded(tmp_path / "one", BAND, THREE)
    two = recorded(tmp_path / "two", replace(EVEN, earlier=charges(one)), THREE[:1], secret=1)
    assert Ledger(replace(EVEN, earlier=charges(one)), bytes([1]) * 32, two / "ledger.jsonl").next_round == 1
    with pytest.raises(LedgerError, match="another promise"):
        Ledger(EVEN, bytes([1]) * 32, two / "ledger.jsonl")
