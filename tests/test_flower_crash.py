"""A federation's process dies at every step of a round, and again as it comes back: nothing uncharged, used twice or lost."""

import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from hubbub.accounting.chain import read_chain
from hubbub.accounting.history import History
from hubbub.flower import DPFedAvgAdaptive, LocalGrid, MatrixFactorizationDP
from hubbub.flower.private import PrivateStrategy
from hubbub.flower.run import PrivateRun
from hubbub.flower.state import ServerState
from hubbub.mechanism import Mechanism
from hubbub.participation import MinSeparation
from hubbub.strategies import toeplitz
from hubbub.training.release import ReleasePath
from hubbub.training.sums import LatticeSum

DIM, ROUNDS = 12, 3
START = ArrayRecord({"w": Array(np.linspace(-1, 1, DIM, dtype=np.float32))})
# What a process does to its folder, and the functions between which a round may stop.
CALLS = ("replace", "fsync", "write", "unlink", "open", "ftruncate", "mkdir")
STEPS: dict[type, tuple[str, ...]] = {
    ReleasePath: ("start", "begin", "row", "commit", "burn"),
    LatticeSum: ("open",),
    PrivateRun: ("resume", "begin", "finish", "_learn", "burn_what_was_left"),
    ServerState: ("restore", "save"),
}


def correlated(folder: Path) -> PrivateStrategy:
    mechanism = Mechanism(toeplitz.square_root(8, bands=3), MinSeparation(3, 4), 1.0)
    return MatrixFactorizationDP(
        FedAvg(), mechanism=mechanism, clip_norm=1.0, num_sampled_clients=3, keys_enforced=True, state=folder
    )


def adaptive(folder: Path) -> PrivateStrategy:
    return DPFedAvgAdaptive(FedAvg(), noise_multiplier=1.0, sampling_probability=0.5, expected_cohort_size=3.0, state=folder)


def grid() -> LocalGrid:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        moved = Array(message.content.array_records["arrays"]["w"].numpy() + np.float32(0.01))
        reply = {"arrays": ArrayRecord({"w": moved}), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(reply), reply_to=message)

    return LocalGrid(app, num_nodes=12)


def rounds(make: Callable[[Path], PrivateStrategy], folder: Path, number: int, tell: Callable[..., None]) -> ArrayRecord:
    """So many rounds, as ``start`` makes them; what leaves the process is told."""
    strategy, on = make(folder), grid()
    arrays = strategy.resumed(START, on)
    for _ in range(number):
        messages = list(strategy.configure_train(1, arrays, ConfigRecord(), on))
        tell(what="messages", round=strategy.rounds_charged - 1)
        made, _ = strategy.aggregate_train(1, on.send_and_receive(messages))
        assert made is not None
        arrays = made
        tell(what="released", round=strategy.rounds_charged - 1)
    strategy._run.state.close()  # type: ignore[union-attr]
    return arrays


class Witness:
    """What happened, in a file that outlives the process; and the step at which the process dies."""

    def __init__(self, path: Path) -> None:
        self.path, self.step, self.deadly, self.calls = path, 0, 0, {name: getattr(os, name) for name in CALLS}

    def tell(self, **event: Any) -> None:
        descriptor = self.calls["open"](self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.calls["write"](descriptor, json.dumps(event).encode() + b"\n")
        os.close(descriptor)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def tick(self) -> None:
        self.step += 1
        if self.step == self.deadly:
            os._exit(9)

    @contextmanager
    def watching(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name, real in self.calls.items():
                patch.setattr(os, name, self._between(real))
            for kind, names in STEPS.items():
                for name in names:
                    patch.setattr(kind, name, self._between(getattr(kind, name), name))
            yield

    def _between(self, real: Callable[..., Any], name: str = "") -> Callable[..., Any]:
        def watched(*arguments: Any, **settings: Any) -> Any:
            self.tick()
            answer = real(*arguments, **settings)
            if name == "row":
                self.tell(what="row", round=arguments[1].round_index, noise=answer.tolist())
            if name == "open":
                self.tell(what="sum", release=answer.tolist())
            self.tick()
            return answer

        return watched

    def dies(self, step: int, work: Callable[[], object]) -> None:
        """Do the work in a process of its own, which dies at a step."""
        child = os.fork()
        if child == 0:
            try:
                self.step, self.deadly = 0, step
                work()
            except BaseException as error:  # noqa: BLE001 # the parent reads of it
                self.tell(what="error", error=repr(error)[:300])
            finally:
                os._exit(0)
        os.waitpid(child, 0)


@pytest.mark.parametrize("every", [29, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [correlated, adaptive])
def test_a_process_that_dies_anywhere_leaves_nothing_uncharged_or_used_twice(
    make: Callable[[Path], PrivateStrategy], every: int, tmp_path: Path
) -> None:
    whole = Witness(tmp_path / "whole.jsonl")
    with whole.watching():
        rounds(make, tmp_path / "whole", ROUNDS, whole.tell)
    assert whole.step > 100
    for step in range(1, whole.step + 1, every):
        folder, witness = tmp_path / f"run-{step}", Witness(tmp_path / f"{step}.jsonl")
        with witness.watching():
            witness.dies(step, lambda: rounds(make, folder, ROUNDS, witness.tell))  # noqa: B023 # done at once
            again = int(np.random.default_rng(step).integers(1, whole.step))
            witness.dies(again, lambda: rounds(make, folder, 2, witness.tell))  # noqa: B023 # done at once
            witness.deadly = 0
            arrays = rounds(make, folder, 1, witness.tell)
        judge(folder, witness.events(), arrays)


def judge(folder: Path, events: list[dict[str, Any]], arrays: ArrayRecord) -> None:
    """Hold what happened against the ledger."""
    states = [entry.state for entry in History.of(read_chain(folder / "ledger.jsonl").records[1:]).rounds]
    assert [event for event in events if event["what"] == "error"] == []
    for event in events:
        if "round" in event:
            assert event["round"] < len(states), "something left for a round that was not charged"
        if event["what"] == "released":
            assert states[event["round"]] == "committed"
    rows = [event for event in events if event["what"] == "row"]
    assert len({row["round"] for row in rows}) == len(rows), "a round has two rows of noise"
    assert len({tuple(row["noise"]) for row in rows}) == len(rows), "a row of noise was used twice"
    # A sum is opened with the row that was given out last.
    released: dict[int, list[float]] = {}
    for row, total in itertools.pairwise(event for event in events if event["what"] in ("row", "sum")):
        if (row["what"], total["what"]) == ("row", "sum"):
            released[row["round"]] = total["release"]
    expected = START["w"].numpy().astype(np.float64)
    for number, state in enumerate(states):
        if state == "committed":
            expected = expected + np.array(released[number][:DIM]) / 3
    np.testing.assert_allclose(arrays["w"].numpy(), expected, atol=1e-4)
