"""Runs with random cohorts of each kind, from a config to a resumed run: what is drawn is what is charged."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from hubbub import Mechanism, accounting
from hubbub.experiment import config as configs
from hubbub.experiment.build import Run, build
from hubbub.experiment.engine import folder as engine_folder
from hubbub.ledger.chain import read_chain
from hubbub.mechanism import participation as parts
from hubbub.mechanism.strategies import BandedToeplitz, Identity
from hubbub.training import evaluate
from recorded_runs import hubbub

EXAMPLE = Path(__file__).parent.parent / "examples" / "digits.toml"
QUICK = "training.rounds=4 training.cohort_size=10 training.local_epochs=1 data.clients=50 privacy.noise_multiplier=1.0".split()
CYCLIC = "privacy.sampling=cyclic-poisson participation.cycle_length"
KINDS: dict[str, tuple[str, parts.Participation]] = {
    "truncated": (
        "privacy.sampling=truncated-poisson participation.max_cohort_size=14",
        parts.TruncatedPoissonSampling(0.2, 14, 50),
    ),
    "cyclic": (f"{CYCLIC}=2", parts.CyclicPoissonSampling(0.4, 2)),
    "cyclic, correlated": (f"{CYCLIC}=2 privacy.mode=dp-ftrl", parts.CyclicPoissonSampling(0.4, 2)),
    "cyclic, banded": (
        f"{CYCLIC}=3 privacy.mode=dp-ftrl privacy.strategy=banded privacy.bands=2",
        parts.CyclicPoissonSampling(0.6, 3),
    ),
    "bins": ("privacy.sampling=balls-in-bins", parts.BallsInBinsSampling(5)),
}


def made(assignments: str) -> Run:
    return build(configs.resolve(configs.load(EXAMPLE), configs.overrides(QUICK), configs.overrides(assignments.split())))


@pytest.mark.parametrize(("assignments", "participation"), KINDS.values(), ids=KINDS.keys())
def test_a_config_names_each_kind_of_random_cohorts(assignments: str, participation: parts.Participation) -> None:
    plan = made(assignments).plan
    assert (plan.participation, plan.expected_cohort_size) == (participation, 10)
    promised = plan.promise().after(plan.rounds, plan.delta)
    everyone = accounting.guarantee(Mechanism(Identity(4), parts.MinSeparation(2, 2), 1.0), plan.delta, "replace-one")
    assert 0 < promised.epsilon < everyone.epsilon
    assert promised.neighboring_relation == "add-or-remove-one"


def test_cyclic_cohorts_have_as_many_bands_as_groups_and_independent_noise_without_being_asked() -> None:
    runs = (made(f"{CYCLIC}=2 privacy.mode={mode} privacy.epsilon=3") for mode in ("dp-fedavg", "dp-ftrl"))
    independent, correlated = (run.plan.mechanism for run in runs)
    assert isinstance(independent.strategy, Identity)
    assert isinstance(correlated.strategy, BandedToeplitz)
    assert correlated.strategy.bands == 2
    assert correlated.noise_multiplier == pytest.approx(independent.noise_multiplier, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_each_kind_resumes_after_a_stop_and_holds(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rounds = itertools.count()

    def stop_in_the_third(*arguments: Any) -> tuple[float, float]:
        if next(rounds) == 2:
            raise KeyboardInterrupt
        return evaluate(*arguments)

    with monkeypatch.context() as interrupted:
        interrupted.setattr(engine_folder, "evaluate", stop_in_the_third)
        assignments = [word for assignment in (*QUICK, *KINDS[kind][0].split()) for word in ("--set", assignment)]
        assert hubbub("train", str(EXAMPLE), "--out", "run", *assignments) != 0
    assert (hubbub("resume", "run"), hubbub("verify", "run")) == (0, 0)
    records = read_chain(Path("run/ledger.jsonl")).records
    begun = [record for record in records if record["kind"] == "begin"]
    assert (len(begun), sum(record["kind"] == "epoch" for record in records)) == (4, 2)
    assert all(record["clients"] is record["cohort"] is None for record in begun)
    assert not Path("run/ledger.cohorts").exists()
    again = build(configs.resolve(configs.load("run/config.toml")))
    assert again.plan.participation == KINDS[kind][1]
    guarantee = json.loads(Path("run/guarantee.json").read_text())
    assert again.plan.promise().after(4, again.plan.delta).epsilon == guarantee["epsilon"]
