"""Private evaluation: numbers about clients that are bounded, noised, paid for and on record."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import hubbub
from hubbub import Mechanism, MinSeparation, PoissonSampling, SingleParticipation
from hubbub.accounting import Gaussian, PoissonSampled, epsilon, guarantee
from hubbub.errors import BudgetError, ConfigError, LedgerError, RunFolderError
from hubbub.experiment import config as configs
from hubbub.ledger import Promise, read_chain
from hubbub.ledger.ledger import Ledger, Ticket
from hubbub.mechanism.participation import Participation
from hubbub.mechanism.private_evaluation import Histogram, Mean, PrivateEvaluation, epsilon_of_share
from hubbub.mechanism.strategies import Identity
from hubbub.training.evaluation import Evaluations
from hubbub.training.release import ReleasePath
from hubbub.training.run_folder.record import read_metrics, read_run
from malformed.contents import canonical, chained
from recorded_runs import answer, interrupted_at, trained
from refusals import refused
from small_runs import until

BOTH = (Mean("accuracy"), Mean("loss", 0.0, 5.0), Histogram("loss", (0.0, 0.5, 1.0, 5.0)))


def clients(count: int, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(seed)
    return [(torch.randn(4, 3, generator=drawn), torch.randint(2, (4,), generator=drawn)) for _ in range(count)]


def planned(evaluation: PrivateEvaluation, mechanism: Mechanism | None = None, **changed: object) -> hubbub.Plan:
    mechanism = mechanism or Mechanism(Identity(6), PoissonSampling(0.5), noise_multiplier=2.0)
    return hubbub.Plan(mechanism, 1.0, 1e-5, evaluation=evaluation, **changed)  # type: ignore[arg-type]


EDGES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9, unique=True)
numbers = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))


@settings(max_examples=300, deadline=None)
@given(numbers, numbers, st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), EDGES)
def test_no_client_moves_a_sum_by_more_than_the_norm(
    accuracy: float | None, loss: float | None, low: float, width: float, edges: list[float]
) -> None:
    statistics = (Mean("accuracy"), Mean("loss", low, low + width), Histogram("loss", tuple(sorted(edges))))
    measured = PrivateEvaluation(1.0, statistics)
    values = {name: value for name, value in (("accuracy", accuracy), ("loss", loss)) if value is not None}
    vector = measured.encode(values)
    assert vector.shape == (measured.dim,)
    assert np.isfinite(vector).all()
    assert np.linalg.norm(vector) <= measured.norm * (1 + 1e-15)
    answered = len(values) == 2 and not any(map(math.isnan, values.values()))
    assert vector[-1] == answered
    assert answered or not vector.any()


def test_estimates_of_a_sum_without_noise_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    measured = PrivateEvaluation(1e-9, BOTH)
    accuracies, losses = rng.uniform(0, 1, 999), rng.uniform(0, 5, 999)
    total = sum(measured.encode({"accuracy": a, "loss": x}) for a, x in zip(accuracies, losses, strict=True))
    # Those who do not answer move no estimate.
    total = total + measured.encode(None) + measured.encode({"accuracy": 1.0})
    accuracy, loss, parts = measured.estimates(total)
    assert accuracy.value == pytest.approx(accuracies.mean(), abs=1e-12)
    assert loss.value == pytest.approx(losses.mean(), abs=1e-12)
    counted, _ = np.histogram(losses, (0.0, 0.5, 1.0, 5.0))
    assert parts.parts == pytest.approx(counted / 999)
    for at in (0.0, 0.05, 0.3, 1.0):
        assert (losses <= parts.quantile(at)).mean() == pytest.approx(at, abs=0.02)
    # Nobody is above 1 here.
    assert measured.estimates(measured.encode({"accuracy": 0.0, "loss": 0.7}))[2].quantile(1.0) == 1.0


def test_what_nobody_answers_does_not_look_like_a_measurement() -> None:
    found = PrivateEvaluation(0.05, BOTH).estimates(np.full(6, 0.02))
    assert [(one.value, one.standard_error) for one in found[:2]] == [(0.5, 0.5), (2.5, 2.5)]
    assert found[2].standard_error > 1


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_evaluations_at_a_share_cost_that_share_of_rho(share: float) -> None:
    measured = PrivateEvaluation.at_share(share, rounds=100, epsilon=2.0, delta=1e-5, every=7)
    whole = Mechanism(Identity(1), MinSeparation(1, 1), 1.0)
    z = hubbub.calibrate(whole.strategy, whole.participation, epsilon=2.0, delta=1e-5).noise_multiplier
    assert 14 / measured.noise_multiplier**2 == pytest.approx(share / z**2, rel=1e-5)
    cost = epsilon(((PoissonSampled(measured.noise_multiplier, 1.0), 14),), 1e-5, "zero-out")
    assert cost == pytest.approx(epsilon_of_share(share, 2.0, 1e-5), rel=1e-4)


@pytest.mark.parametrize("participation", [PoissonSampling(0.3), MinSeparation(5, 4)], ids=repr)
def test_a_budget_pays_for_training_and_evaluations_together(participation: Any) -> None:
    by_pattern = Mechanism(Identity(2), MinSeparation(1, 1), 1.0), 2
    found = guarantee(Mechanism(Identity(4), participation, 1.0), 1e-5, "zero-out", evaluation=by_pattern)
    assert "add-or-remove-one" not in found.relations
    measured = PrivateEvaluation.at_share(0.1, rounds=20, epsilon=3.0, delta=1e-5, statistics=BOTH, every=5)
    alone = hubbub.calibrate(Identity(20), participation, epsilon=3.0, delta=1e-5)
    both = hubbub.calibrate(Identity(20), participation, epsilon=3.0, delta=1e-5, evaluation=measured)
    assert both.noise_multiplier > alone.noise_multiplier
    promise = Promise(20, both, settings={"evaluation": measured.record()})
    found = promise.after(20, 1e-5)
    assert 3.0 * (1 - 1e-5) < found.epsilon <= 3.0
    # By the events of the definition, composed by somebody else's order.
    event = PoissonSampled(measured.noise_multiplier, 1.0)
    if isinstance(participation, PoissonSampling):
        own = (PoissonSampled(both.noise_multiplier, 0.3), 20)
    else:
        own = (Gaussian(both.noise_multiplier / 2), 1)
    assert found.epsilon == pytest.approx(epsilon(((event, 4), own), 1e-5, found.neighboring_relation), rel=1e-6)
    # What was begun so far: one evaluation after each five rounds.
    assert [sum(n for e, n in promise.after(t, 1e-5).events if e == event) for t in (0, 4, 5, 19, 20)] == [0, 0, 1, 3, 4]
    assert "4 private evaluations by independent Gaussian noise" in (said := found.statement())
    assert "Also each private evaluation: sums of what clients measured" in said
    with pytest.raises(BudgetError, match="the private evaluations alone cost"):
        hubbub.calibrate(Identity(20), participation, epsilon=0.5, delta=1e-5, evaluation=measured)


class Spoilt(dict[str, float]):
    """An answer that raises whatever its client likes."""

    def __getitem__(self, name: str) -> float:
        raise ZeroDivisionError(name)


def test_an_answer_that_raises_counts_as_none() -> None:
    assert not PrivateEvaluation(2.0, BOTH).encode(Spoilt(accuracy=1.0, loss=1.0)).any()


def test_a_run_measures_its_clients_and_its_record_says_so(tmp_path: Path) -> None:
    population = hubbub.SimulatedPopulation(clients(300), cross_entropy)
    measured = PrivateEvaluation(2.0, BOTH, every=2)
    model = nn.Linear(3, 2)
    results = list(hubbub.train(planned(measured), population, model, hubbub.RunStore(tmp_path / "run")))
    assert [bool(result.evaluation) for result in results] == [False, True] * 3
    exact = [population.measure([n], model)[0] for n in range(300)]
    for found, name in zip(results[-1].evaluation, ("accuracy", "loss"), strict=False):
        truth = np.mean([values[name] for values in exact if values])
        assert found.value == pytest.approx(truth, abs=6 * found.standard_error)
    assert len(list((tmp_path / "run/evaluation/state/releases").iterdir())) == 3
    verdict = hubbub.verify(tmp_path / "run", results[-1].head)
    assert verdict.ok, verdict
    assert {check.name: check.detail for check in verdict.checks}["evaluation"].startswith("3 of 3 evaluations")
    assert verdict.epsilon == results[-1].epsilon
    without = hubbub.Plan(planned(measured).mechanism, 1.0, 1e-5)
    assert results[-1].epsilon > list(hubbub.train(without, population, nn.Linear(3, 2)))[-1].epsilon


@pytest.mark.parametrize("damage", ["release", "gone", "other run", "known seed", "one more"])
def test_a_record_of_evaluations_that_was_changed_is_seen(damage: str, tmp_path: Path) -> None:
    population, measured = hubbub.SimulatedPopulation(clients(20), cross_entropy), PrivateEvaluation(2.0, every=2)
    for name in ("run", "other"):
        list(hubbub.train(planned(measured), population, nn.Linear(3, 2), hubbub.RunStore(tmp_path / name)))
    own = tmp_path / "run/evaluation"
    match damage:
        case "release":
            file = next((own / "state/releases").iterdir())
            file.write_bytes(file.read_bytes()[:-1] + b"\1")
        case "gone":
            own.rename(tmp_path / "evaluation")
        case "other run":
            own.rename(tmp_path / "evaluation")
            (tmp_path / "other/evaluation").rename(own)
        case "known seed":
            records = read_chain(own / "ledger.jsonl").records
            seeded = [canonical(record | ({"key": None} if record["kind"] == "epoch" else {})) for record in records]
            (own / "ledger.jsonl").write_bytes(chained(seeded))
        case "one more":
            # The run's ledger loses its last rounds.
            ledger = tmp_path / "run/ledger.jsonl"
            lines = ledger.read_bytes().splitlines(keepends=True)
            chain = read_chain(ledger).records
            last = max(i for i, record in enumerate(chain) if record["kind"] == "begin" and record["round"] == 4)
            ledger.write_bytes(b"".join(lines[:last]))
    checks = {check.name: check for check in hubbub.verify(tmp_path / "run").checks}
    assert not checks["evaluation"].ok
    assert (damage == "known seed") == ("known seed" in checks["evaluation"].detail)


def test_a_run_that_is_taken_up_makes_each_evaluation_at_most_once(tmp_path: Path) -> None:
    population, measured = hubbub.SimulatedPopulation(clients(20), cross_entropy), PrivateEvaluation(2.0, every=2)
    for stop in (1, 3, 4, 6):
        until(hubbub.train(planned(measured), population, nn.Linear(3, 2), hubbub.RunStore(tmp_path / "run")), stop)
    records = read_chain(tmp_path / "run/evaluation/ledger.jsonl").records
    assert [record["round"] for record in records if record["kind"] == "begin"] == [0, 1, 2]
    assert hubbub.verify(tmp_path / "run").ok


def test_a_run_that_ended_before_its_first_round_has_no_evaluations_and_verifies(tmp_path: Path) -> None:
    population, plan = hubbub.SimulatedPopulation(clients(20), cross_entropy), planned(PrivateEvaluation(2.0, every=2))
    with interrupted_at(1), pytest.raises(KeyboardInterrupt):
        list(hubbub.train(plan, population, nn.Linear(3, 2), hubbub.RunStore(tmp_path / "run")))
    shutil.rmtree(tmp_path / "run/evaluation")
    assert hubbub.verify(tmp_path / "run").ok


@pytest.mark.parametrize(("dim", "pattern"), [(2, MinSeparation(2, 3)), (8, MinSeparation(2, 3)), (8, SingleParticipation())])
def test_a_simulation_cut_off_in_a_round_or_an_evaluation_goes_on_as_if_it_was_not(
    dim: int, pattern: Participation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(PrivateEvaluation(2.0, every=1), mechanism=Mechanism(Identity(6), pattern, 2.0), noise="simulation")
    row = ReleasePath.row

    def trained_in(store: hubbub.RunStore | None) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        list(hubbub.train(plan, hubbub.SimulatedPopulation(clients(40), cross_entropy), model, store))
        return model.weight

    def cut_off(path: ReleasePath, ticket: Ticket) -> torch.Tensor:
        if (path._dim, ticket.round_index) == (dim, 1):
            raise KeyboardInterrupt
        return row(path, ticket)

    monkeypatch.setattr(ReleasePath, "row", cut_off)
    with pytest.raises(KeyboardInterrupt):
        trained_in(hubbub.RunStore(tmp_path / "run"))
    monkeypatch.undo()
    assert torch.equal(trained_in(hubbub.RunStore(tmp_path / "run")), trained_in(None))


def test_a_rolled_back_run_beside_its_evaluations_is_refused(tmp_path: Path) -> None:
    population, measured = hubbub.SimulatedPopulation(clients(20), cross_entropy), PrivateEvaluation(2.0, every=1)
    list(hubbub.train(planned(measured), population, nn.Linear(3, 2), hubbub.RunStore(tmp_path / "run")))
    (tmp_path / "run/evaluation").rename(tmp_path / "kept")
    until(hubbub.train(planned(measured), population, nn.Linear(3, 2), hubbub.RunStore(tmp_path / "new")), 1)
    (tmp_path / "new/evaluation").rename(tmp_path / "own")
    (tmp_path / "kept").rename(tmp_path / "new/evaluation")
    before = (tmp_path / "new/ledger.jsonl").read_bytes()
    with pytest.raises(LedgerError, match="there are 6 private evaluations"):
        read_run(tmp_path / "new")
    with pytest.raises(RunFolderError, match=r"its ledger holds 1 rounds and \d incarnations, but there are 6"):
        next(hubbub.train(planned(measured), population, nn.Linear(3, 2), hubbub.RunStore(tmp_path / "new")))
    assert (tmp_path / "new/ledger.jsonl").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("times", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_standard_error_is_that_of_the_noise(times: int) -> None:
    population = hubbub.SimulatedPopulation(clients(1000), cross_entropy)
    measured = PrivateEvaluation.at_share(0.05, rounds=times, epsilon=20.0, delta=1e-5, statistics=BOTH[:2], every=1)
    own = Mechanism(Identity(times), MinSeparation(1, times), 9.0)
    ledger = Ledger(Promise(times, own, settings={"evaluation": measured.record()}, simulation=True), bytes(32))
    for t in range(times):
        ledger.commit(ledger.begin(t, (), "sum", 1.0), b"release")
    answers = population.measure(range(1000), nn.Linear(3, 2))
    truth = [np.mean([values[name] for values in answers if values]) for name in ("accuracy", "loss")]
    with Evaluations.of(ledger, clients=1000, seed=5, store=None) as evaluations:
        found = [evaluations.release(range(1000), answers) for _ in range(times)]
    errors = [[(one.value - exact) / one.standard_error for one, exact in zip(some, truth, strict=True)] for some in found]
    # Five standard deviations of what so many errors show.
    assert np.std(errors, axis=0) == pytest.approx([1, 1], rel=0.02 + 5 / math.sqrt(2 * times))
    assert np.mean(errors, axis=0) == pytest.approx([0, 0], abs=5 / math.sqrt(times))


def test_examples_are_measured_one_by_one_and_between_rounds(tmp_path: Path) -> None:
    inputs, targets = torch.eye(2).repeat(200, 1), torch.arange(400) % 2
    population = hubbub.ExamplePopulation(inputs, targets, cross_entropy)
    model = nn.Linear(2, 2)
    result = next(hubbub.train(planned(PrivateEvaluation(1.0, every=1)), population, model, hubbub.RunStore(tmp_path)))
    assert read_run(tmp_path).promise.privacy_unit == "example"
    assert result.seconds == pytest.approx(sum(result.phases.values()) - result.phases["evaluate"])
    exact = (model(inputs).argmax(1) == targets).float().mean().item()
    assert result.evaluation[0].value == pytest.approx(exact, abs=6 * result.evaluation[0].standard_error)


def test_what_cannot_be_measured_privately_is_refused() -> None:
    measured = PrivateEvaluation(1.0)
    with pytest.raises(ConfigError, match="evaluation: the server reads"):
        Promise(4, None, settings={"evaluation": measured.record()})
    with pytest.raises(ConfigError, match="each kind of a number once"):
        PrivateEvaluation(1.0, (Mean("a"), Mean("a")))
    for low, high, words in ((1.0, 1.0, "must be increasing"), (0.0, 5e-324, "too close")):
        with pytest.raises(ValueError, match=words):
            Mean("loss", low, high)
    with pytest.raises(ValueError, match="increasing numbers"):
        Histogram("loss", (1.0,))
    with pytest.raises(TypeError, match="must be a tuple of Mean and Histogram"):
        PrivateEvaluation(1.0, ("accuracy",))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the run has 5 rounds"):
        PrivateEvaluation.at_share(0.1, rounds=5, epsilon=1.0, delta=1e-5)
    again = PrivateEvaluation.from_record(PrivateEvaluation(2.0, BOTH, 0.5, 3).record())
    assert again == PrivateEvaluation(2.0, BOTH, 0.5, 3)


@pytest.mark.parametrize("engine", ["process", "flower"])
def test_a_run_by_the_commands_measures_its_clients_resumes_and_verifies(engine: str, tmp_path: Path) -> None:
    layer = {
        "training": {"rounds": 6, "cohort_size": 20, "engine": engine},
        "privacy": {"epsilon": 8.0},
        "data": {"clients": 100},
        "evaluation": {"statistics": ["accuracy", "loss"], "every": 2, "share": 0.2, "loss_bound": 5.0},
    }
    trained(tmp_path, configs.dump(configs.resolve(layer)))
    rows, _ = read_metrics(tmp_path / "run/metrics.jsonl")
    assert [sorted(row.get("evaluation", {})) for row in rows] == [[], ["accuracy", "loss"]] * 3
    assert rows[-1]["epsilon"] <= 8.0
    found = rows[-1]["evaluation"]["accuracy"]
    assert found["value"] == pytest.approx(rows[-1]["accuracy"], abs=0.1 + 6 * found["standard_error"])
    kept = configs.resolve(configs.load(tmp_path / "run/config.toml"))
    promised = read_run(tmp_path / "run").promise
    assert kept.evaluation.noise_multiplier == promised.terms.evaluation.noise_multiplier
    assert promised.after(6, 1e-5).epsilon == pytest.approx(8.0, rel=1e-5)
    assert hubbub.verify(tmp_path / "run").ok
    assert 3.99 < answer("calibrate", "--mechanism", tmp_path / "run", "--epsilon", "4", "--delta", "1e-5")["epsilon"] <= 4
    page = (tmp_path / "run/report.html").read_text()
    assert all(f"Measured by clients under noise: {name}" in page for name in ("accuracy", "loss"))
    refused(["audit", tmp_path / "run/config.toml", "-o", tmp_path / "audit"], "evaluation.statistics: ")
    # Evaluations alone cost a fifth of the budget's rho.
    alone = epsilon(promised.after(6, 1e-5).events[1:], 1e-5, "add-or-remove-one")
    assert alone == pytest.approx(epsilon_of_share(0.2, 8.0, 1e-5), rel=1e-4)
