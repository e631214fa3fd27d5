"""Private evaluation on Flower: what clients measure is noised, paid for and on record, whatever they send."""

import math
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import hubbub
from hubbub.errors import LedgerError
from hubbub.flower import DPFedAvgFixed, LocalGrid
from hubbub.ledger.chain import read_chain
from hubbub.mechanism.private_evaluation import Histogram, Mean, PrivateEvaluation
from hubbub.training import HeadHook

START = ArrayRecord({"w": Array(np.zeros(5, np.float32))})
MEASURED = PrivateEvaluation(0.5, (Mean("accuracy"), Histogram("loss", (0.0, 1.0, 2.0))), every=2)


pytestmark = pytest.mark.usefixtures("quiet")


def federation(nodes: int, bad: int = -1) -> LocalGrid:
    """Node n has accuracy 0.25 or 0.75 and loss 0.5; the bad one sends what it likes."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": message.content.array_records["arrays"]}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        n = int(context.node_config["partition-id"])
        told = {"accuracy": 0.25 + 0.5 * (n % 2), "loss": 0.5, "num-examples": 3}
        if n == bad:
            told = [{"accuracy": math.nan, "loss": 1.0}, {"accuracy": 1e300, "loss": -math.inf}, {"other": 1.0}][n % 3]
        return Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)

    return LocalGrid(app, nodes)


def strategy(evaluation: object, **changed: object) -> DPFedAvgFixed:
    settings = {"num_sampled_clients": 5, "rounds": 20, **changed}
    return DPFedAvgFixed(FedAvg(), clip_norm=1.0, noise_multiplier=4.0, evaluation=evaluation, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [-1, 0, 1, 2])
def test_what_clients_measure_is_released_under_noise_and_paid_for(bad: int, tmp_path: Path) -> None:
    made = strategy(MEASURED, state=tmp_path / "state")
    result = made.start(federation(60, bad), START, num_rounds=5)
    assert sorted(result.evaluate_metrics_clientapp) == [2, 4]
    for found in result.evaluate_metrics_clientapp.values():
        error = found["accuracy-standard-error"]
        assert found["accuracy"] == pytest.approx(0.5, abs=6 * error + 1 / 60)
        assert 0 < error < 0.02
        assert found["loss-histogram"][0] == pytest.approx(1.0, abs=6 * found["loss-histogram-standard-error"] + 1 / 60)
    assert made.guarantee().epsilon > strategy("off").guarantee(rounds=5).epsilon
    assert "2 private evaluations" in made.statement()
    assert "exact" not in made.statement().partition("It does not cover")[2]
    with pytest.raises(LedgerError, match="another mechanism"):
        strategy("off", state=tmp_path / "state").guarantee()
    verdict = hubbub.verify(tmp_path / "state", made.ledger_head)
    assert verdict.ok, verdict


def test_a_server_that_starts_again_evaluates_once_for_each_due_round(tmp_path: Path) -> None:
    for _ in range(3):
        strategy(MEASURED, state=tmp_path / "state").start(federation(20), START, num_rounds=3)
    records = read_chain(tmp_path / "state/evaluation/ledger.jsonl").records
    assert [record["round"] for record in records if record["kind"] == "begin"] == [0, 1, 2, 3]
    again = strategy(MEASURED, state=tmp_path / "state")
    assert again.resumed(START, federation(20))
    # No round was finished since the start: nobody is asked.
    assert list(again.configure_evaluate(1, START, ConfigRecord(), federation(20))) == []
    assert hubbub.verify(tmp_path / "state").ok


class Outside(HeadHook):
    """Somebody who takes every head but those of evaluations."""

    required, taken = True, 0

    def __init__(self) -> None:
        pass

    def give(self, run: str, rounds: int, head: str) -> str:
        self.first = getattr(self, "first", run)
        self.taken += run == self.first or not rounds
        return "" if run == self.first or not rounds else "outside: away"


def test_cra_19_an_evaluation_whose_head_nobody_took_does_not_leave_the_server(tmp_path: Path) -> None:
    hook = Outside()
    made = strategy(MEASURED, state=tmp_path / "state", head_hook=hook)
    with pytest.raises(LedgerError, match="the head after 1 rounds was not taken"):
        made.start(federation(20), START, num_rounds=5)
    # Two promises, and the two rounds before the evaluation.
    assert (made.rounds_charged, hook.taken) == (2, 4)
    with pytest.raises(LedgerError, match="the head after 1 rounds was not taken"):
        strategy(MEASURED, state=tmp_path / "state", head_hook=hook).start(federation(20), START, num_rounds=5)


def test_the_word_alone_measures_accuracy_at_a_twentieth_of_rho() -> None:
    off, private = strategy("off"), strategy("private")
    both, alone = private.guarantee(rounds=20), off.guarantee(rounds=20)
    assert both.unamplified_zcdp_rho == pytest.approx(1.05 * alone.unamplified_zcdp_rho, rel=1e-6)
    result = private.start(federation(30), START, num_rounds=10)
    assert list(result.evaluate_metrics_clientapp) == [10]
    assert set(result.evaluate_metrics_clientapp[10]) == {"accuracy", "accuracy-standard-error"}
