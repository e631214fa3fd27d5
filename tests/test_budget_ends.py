"""A budget that is used up ends a run before the release that would exceed it; a cost that nobody knows, before any."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from conftest import raising
from flower_arms import Federation, fixed
from hubbub import Mechanism, PoissonSampling, accounting
from hubbub.accounting import Gaussian, PoissonSampled, composition
from hubbub.accounting.composition import epsilon_once as remembered
from hubbub.errors import BudgetError
from hubbub.ledger import Ledger, read_chain
from hubbub.mechanism.strategies import Identity
from hubbub.training import RunPlan, RunStore, train
from recorded_runs import hubbub
from release_paths import PROMISE, silent
from release_paths import one_round as round_of
from release_paths import opened as opened_path

pytestmark = pytest.mark.usefixtures("workplace")

SETTINGS = """
[training]
rounds = {rounds}
{training}
[privacy]
mode = "dp-fedavg"
noise_multiplier = 1.0
delta = 1e-3
stop_epsilon = {budget}
{privacy}
[data]
name = "digits"
{data}
"""
KINDS = {
    "clients": ("cohort_size = 3", "", "clients = 12"),
    "examples": ("cohort_size = 20", 'unit = "example"', ""),
    "flower": ('cohort_size = 3\nengine = "flower"', "", "clients = 12"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_acc_10_a_spent_budget_ends_a_run_with_status_3_and_a_model(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    training, privacy, data = KINDS[kind]

    def written(rounds: int, budget: float) -> str:
        settings = {"training": training, "privacy": privacy, "data": data}
        Path("run.toml").write_text(SETTINGS.format(rounds=rounds, budget=budget, **settings))
        return "run.toml"

    hubbub("plan", written(2, 1e6), "--json")
    two = json.loads(capsys.readouterr().out)["epsilon"]
    # What two rounds cost, and a little more: a third would exceed it.
    assert hubbub("train", written(9, two * 1.0001), "--out", "run") == 3
    said = capsys.readouterr().out
    assert "The budget is spent after 2 of 9 rounds" in said
    kinds = [record["kind"] for record in read_chain(Path("run/ledger.jsonl")).records]
    assert kinds.count("begin") == kinds.count("commit") == 2
    assert all(torch.isfinite(part).all() for part in load_file("run/model.safetensors").values())
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert max(row["epsilon"] for row in rows) <= two * 1.0001
    # It does not go on when it is asked again.
    assert hubbub("resume", "run") == 3
    assert [r["kind"] for r in read_chain(Path("run/ledger.jsonl")).records].count("begin") == 2
    # A budget that is never reached ends nothing.
    assert hubbub("train", written(2, 1e6), "--out", "other") == 0


def test_acc_10_the_round_that_would_exceed_a_federations_budget_is_not_begun() -> None:
    budget = float(fixed(3).guarantee(rounds=2).epsilon)
    for stop, allowed in ((budget, 2), (budget * (1 - 1e-9), 1)):
        strategy = fixed(3, stop_epsilon=stop)
        federation, model = Federation(3, lambda model, index: model), {"w": np.zeros(3)}
        for _ in range(allowed):
            model, _ = federation.round(strategy, model)
        with pytest.raises(BudgetError, match="would exceed what is promised"):
            federation.ask(strategy, model)
        assert strategy.rounds_charged == allowed
        assert strategy.guarantee().epsilon <= stop


PARTS = {"tight": ("hubbub.accounting.pld.epsilon", "tight"), "rdp": ("hubbub.accounting.composition.rdp_epsilon", "rdp")}
POISSON = Mechanism(Identity(3), PoissonSampling(0.5), 1.0)


def sampled(accountant: str) -> RunPlan:
    return RunPlan(3, POISSON.participation, 3, POISSON, clip_norm=1.0, accountant=accountant)


def breaks(monkeypatch: pytest.MonkeyPatch, broken: Callable[..., float]) -> None:
    """From now on the accountant is broken, and what it answered before is forgotten."""
    remembered.cache_clear()
    monkeypatch.setattr(composition, "_epsilon", broken)


@pytest.mark.parametrize("answer", [math.nan, -1.0, -math.inf])
@pytest.mark.parametrize("part", PARTS)
def test_acc_11_an_accountant_without_answer_has_no_epsilon(monkeypatch: pytest.MonkeyPatch, part: str, answer: float) -> None:
    name, accountant = PARTS[part]
    monkeypatch.setattr(name, lambda *a, **k: answer)
    for relation in ("add-or-remove-one", "replace-one"):
        with pytest.raises(BudgetError, match="bounds nothing"):
            accounting.epsilon([(PoissonSampled(1.0, 0.1), 3)], 1e-5, relation, accountant=accountant)
    monkeypatch.setattr("hubbub.accounting.pld.delta", lambda *a, **k: answer)
    with pytest.raises(BudgetError, match="bounds nothing"):
        accounting.delta([(PoissonSampled(1.0, 0.1), 3)], 1.0, "add-or-remove-one")


def test_acc_11_one_direction_without_an_answer_is_not_covered_by_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    true, asked = composition.pld.epsilon, list[object]()

    def every_other(*arguments: Any, **more: Any) -> float:
        asked.append(arguments)
        return true(*arguments, **more) if len(asked) % 2 else math.nan

    monkeypatch.setattr(composition.pld, "epsilon", every_other)
    with pytest.raises(BudgetError, match="bounds nothing"):
        accounting.epsilon([(PoissonSampled(1.0, 0.1), 3)], 1e-5, "add-or-remove-one")
    assert len(asked) == 2


@pytest.mark.parametrize(
    "broken", [lambda *a, **k: math.nan, raising(RuntimeError("the accountant broke"))], ids=["nan", "raises"]
)
def test_acc_11_no_run_begins_whose_cost_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Callable[..., float]
) -> None:
    planned = sampled("tight")
    breaks(monkeypatch, broken)
    store = RunStore(tmp_path / "run")
    with pytest.raises((BudgetError, RuntimeError), match=r"bounds nothing|broke"):
        list(train(planned, silent(), nn.Linear(3, 2), store))
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
    assert not list((tmp_path / "run").glob("state/releases/*"))
    with pytest.raises((BudgetError, RuntimeError), match=r"bounds nothing|broke"):
        sampled("tight")
    with pytest.raises((BudgetError, RuntimeError), match=r"bounds nothing|broke"):
        fixed(3)


@pytest.mark.parametrize(
    "broken", [lambda *a, **k: math.nan, raising(RuntimeError("the accountant broke"))], ids=["nan", "raises"]
)
def test_acc_11_no_further_round_is_begun_once_the_accountant_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Callable[..., float]
) -> None:
    run = train(sampled("tight"), silent(), nn.Linear(3, 2), RunStore(tmp_path / "run"))
    next(run)
    breaks(monkeypatch, broken)
    with pytest.raises((BudgetError, RuntimeError), match=r"bounds nothing|broke"):
        list(run)
    # The round under way was promised, and its cost known, before the first one; no other follows it.
    kinds = [record["kind"] for record in read_chain(tmp_path / "run" / "ledger.jsonl").records]
    assert kinds.count("begin") == 2
    monkeypatch.undo()
    # A federation with a budget asks before each round.
    budgeted = fixed(3, stop_epsilon=1e3)
    federation, model = Federation(3, lambda model, index: model), {"w": np.zeros(3)}
    model, _ = federation.round(budgeted, model)
    breaks(monkeypatch, broken)
    with pytest.raises((BudgetError, RuntimeError), match=r"bounds nothing|broke"):
        federation.ask(budgeted, model)
    monkeypatch.undo()
    assert budgeted.rounds_charged == 1


def test_acc_7_a_ledger_answers_the_same_however_often_it_is_asked() -> None:
    ledger = Ledger(PROMISE, bytes(32))
    for round_index in range(3):
        before = ledger.head
        first, second, other = ledger.spent(1e-5), ledger.spent(1e-5), ledger.spent(1e-7)
        assert first.epsilon == second.epsilon == PROMISE.after(round_index, 1e-5).epsilon
        assert other.epsilon >= first.epsilon
        assert (ledger.head, ledger.next_round) == (before, round_index)
        ledger.commit(ledger.begin(round_index, [round_index], "sum"), b"release")
    path = opened_path()
    round_of(path, 1, 2)
    assert path.ledger.spent(1e-5).epsilon == path.ledger.spent(1e-5).epsilon > 0
    assert path.next_round == 1
    events = [(Gaussian(1.0), 3), (PoissonSampled(1.0, 0.1), 4)]
    kept = list(events)
    assert len({accounting.epsilon(events, 1e-5, "zero-out") for _ in range(3)}) == 1
    assert events == kept
