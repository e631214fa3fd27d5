"""Runs in which every example is a unit by itself, and learning rates that cool down, from the settings to the statement."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub import FixedEpochs, Mechanism
from hubbub.accounting.statement import RunFacts
from hubbub.errors import LedgerError
from hubbub.experiment import config as configs
from hubbub.experiment.planner import planned
from hubbub.mechanism.strategies import Identity
from hubbub.training import ExamplePopulation, RunPlan, RunStore, ServerOptimizer, train
from hubbub.training.simulation.functional import FlatModel
from odd_modules import made
from small_runs import until

CENTRAL: dict[str, Any] = {
    "training": {"rounds": 3, "cohort_size": 100, "learning_rate": 0.5},
    "privacy": {"unit": "example", "epsilon": 8.0, "delta": 1e-4},
    "data": {"name": "digits"},
}


def settings(**changes: dict[str, Any]) -> configs.Config:
    return configs.resolve(CENTRAL, changes)


def cooled(name: str = "fedavgm", **changes: Any) -> RunPlan:
    participation, server = FixedEpochs(4, 2), ServerOptimizer(name, 0.3, 0.8, cooldown=0.5, cooldown_to=0.1)
    mechanism = Mechanism(Identity(7), participation, 0.7)
    plan = RunPlan(7, participation, 5, mechanism, 0.5, noise="simulation", server=server, privacy_unit="example")
    return replace(plan, **changes)


def trained(plan: RunPlan, store: RunStore | None = None, stop: int | None = None) -> torch.Tensor:
    module, inputs, targets = made("perceptron", 10)
    until(train(plan, ExamplePopulation(inputs, targets, F.cross_entropy, lattice=False), module, store), stop)
    return FlatModel(module).vector.double()


def test_a_learning_rate_falls_in_a_straight_line_over_the_last_rounds() -> None:
    server = ServerOptimizer(cooldown=0.25, cooldown_to=0.05)
    assert ServerOptimizer(cooldown=0.07).rate(92, rounds=100) == 1.0
    rates = [server.rate(t, 2000) for t in range(2000)]
    assert rates[:1500] == [1.0] * 1500
    assert rates[-1] == pytest.approx(0.05)
    np.testing.assert_allclose(np.diff(rates[1499:]), -0.95 / 500)
    assert [ServerOptimizer().rate(t, 5) for t in range(5)] == [1.0] * 5


@pytest.mark.parametrize("name", ["fedavg", "fedavgm"])
def test_the_models_are_the_rows_of_the_workload_times_the_releases(name: str, tmp_path: Path) -> None:
    plan, store = cooled(name), RunStore(tmp_path / "run")
    module, _, _ = made("perceptron", 10)
    start = FlatModel(module).vector.double()
    trained(plan, store)
    releases = torch.stack([store.parse_release(t, store.release_content(t)) for t in range(7)])
    workload = torch.from_numpy(plan.server.workload(7).matrix())
    models = start + workload @ releases * (plan.server.learning_rate / plan.expected_cohort_size)
    for rounds in (1, 4, 7):
        torch.testing.assert_close(trained(plan, stop=rounds), models[rounds - 1], rtol=1e-5, atol=1e-6)
    assert len(set(plan.server.workload(7).learning_rates or ())) > 1


@pytest.mark.parametrize("stop", [1, 4, 6])
def test_a_run_that_goes_on_cools_down_as_one_that_never_stopped(stop: int, tmp_path: Path) -> None:
    plan = cooled()
    store = RunStore(tmp_path / "run")
    trained(plan, store, stop)
    assert torch.equal(trained(plan, store), trained(plan))


def test_a_run_is_not_resumed_with_another_cooldown(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "run")
    trained(cooled(), store, 2)
    with pytest.raises(LedgerError, match=r"settings\.cooldown was \[0\.5, 0\.1\], is \[0\.5, 0\.2\]"):
        trained(cooled(server=ServerOptimizer("fedavgm", 0.3, 0.8, cooldown=0.5, cooldown_to=0.2)), store)


def test_noise_is_for_the_learning_rates_that_the_server_has() -> None:
    changes = {"mode": "dp-ftrl", "strategy": "banded", "bands": 4}
    training = [{"rounds": 14, "momentum": 0.9, "cooldown": cooldown} for cooldown in (0.0, 0.5)]
    plans = [planned(settings(training=each, privacy=changes), 1400) for each in training]
    workloads = [plan.server.workload(14) for plan in plans]
    assert [workload.toeplitz for workload in workloads] == [True, False]

    def error(plan: RunPlan, workload: np.ndarray) -> float:
        noising = np.linalg.inv(np.asarray(plan.mechanism.strategy.matrix()))
        return float(np.linalg.norm(workload @ noising)) * plan.mechanism.sensitivity.value

    assert error(plans[1], workloads[1].matrix()) < error(plans[0], workloads[1].matrix())
    assert error(plans[0], workloads[0].matrix()) < error(plans[1], workloads[0].matrix())


@pytest.mark.parametrize(
    "assignments",
    [
        "privacy.sampling=poisson",
        "privacy.sampling=balls-in-bins training.cohort_size=default participation.bins=3",
        "privacy.sampling=cyclic-poisson participation.cycle_length=3",
        "privacy.sampling=fixed-size",
        "privacy.sampling=truncated-poisson participation.max_cohort_size=150",
        "privacy.mode=dp-ftrl participation.min_separation=3 participation.max_participations=1",
        "privacy.mode=none privacy.epsilon=default",
        "privacy.neighboring_relation=replace-one privacy.sampling=fixed-size",
    ],
)
def test_a_statement_about_examples_speaks_of_no_client(assignments: str) -> None:
    settings = configs.resolve(CENTRAL, configs.overrides(assignments.split()))
    answer = planned(settings, 1437).promise().after(3, 1e-4)
    text = answer.statement(RunFacts(clip_norm=1.0, expected_cohort_size=100)) + answer.sentence()
    assert "client" not in text
    assert "one example" in text


def test_a_run_over_examples_records_its_unit_and_no_setting_of_clients() -> None:
    one = planned(settings(), 1437)
    assert one.privacy_unit == "example"
    assert one.promise().record()["privacy_unit"] == "example"
    assert set(one.settings) == {"training.validation", "data.name", "model.name", "keep_releases"}
