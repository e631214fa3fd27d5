"""Server and holders of an encrypted run die at every step: no row of noise meets two sums, and no round is opened twice."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from hubbub.accounting.chain import read_chain
from hubbub.accounting.history import History
from hubbub.flower import DPFedAvgFixed, LocalGrid, Paillier, encrypting_mod, hold
from hubbub.flower.opening import GridHolders
from hubbub.flower.run import PrivateRun
from hubbub.flower.state import ServerState
from hubbub.secagg import key_files, threshold
from hubbub.secagg.holder import Holder
from hubbub.secagg.shares import KeyShare, ThresholdKey
from hubbub.training.encrypted import EncryptedSum
from hubbub.training.holder_noise import HolderNoise
from hubbub.training.release import ReleasePath
from small_keys import VECTORS, number

START = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
# In steps of the lattice; each of two clients moves the model by it.
UPDATE = np.array([512.0, -64.0, 7.0])
STEP = 2.0**-14
# What processes do to their folders, and the functions between which they may stop.
CALLS = ("replace", "fsync", "write", "unlink", "open", "mkdir")
STEPS: dict[type, tuple[str, ...]] = {
    ReleasePath: ("start", "begin", "row", "commit", "burn"),
    EncryptedSum: ("open",),
    PrivateRun: ("resume", "begin", "finish", "_learn", "burn_what_was_left"),
    ServerState: ("restore", "save"),
    GridHolders: ("find", "add_noise", "open"),
    HolderNoise: ("row",),
    Holder: ("noise", "open"),
}


@cache
def key() -> tuple[ThresholdKey, tuple[KeyShare, ...]]:
    """Two holders open sums together, and both add noise."""
    case = next(case for case in VECTORS["threshold_dj"] if case["bits"] == 2048)
    return threshold.deal(number(case["p"]), number(case["q"]), holders=2, threshold=2, min_contributions=2)


def federation(folder: Path) -> LocalGrid:
    app = hold(ClientApp(mods=[encrypting_mod]))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        moved = message.content.array_records["arrays"]["w"].numpy() + np.float32(UPDATE * STEP)
        return Message(RecordDict({"arrays": ArrayRecord({"w": Array(moved.astype(np.float32))})}), reply_to=message)

    return LocalGrid(app, 2, lambda index: {"paillier-share": str(folder / f"holder-{index + 1}" / "share.json")})


def rounds(folder: Path, count: int) -> ArrayRecord:
    """So many rounds of one start of all processes."""
    secagg = Paillier(key()[0], noise_by="holders")
    strategy = DPFedAvgFixed(
        FedAvg(), clip_norm=1.0, noise_multiplier=1e-6, num_sampled_clients=2, secagg=secagg, state=folder / "state"
    )
    on = federation(folder)
    arrays = strategy.resumed(START, on)
    for _ in range(count):
        messages = list(strategy.configure_train(1, arrays, ConfigRecord(), on))
        arrays = strategy.aggregate_train(1, on.send_and_receive(messages))[0] or arrays
    strategy._run.state.close()  # type: ignore[union-attr]
    return arrays


class Witness:
    """What happened, in a file that outlives the processes; and the step at which they die."""

    def __init__(self, path: Path) -> None:
        self.path, self.step, self.deadly = path, 0, 0
        # The step right after each of the functions, of its first call.
        self.after: dict[str, int] = {}
        self._calls = {name: getattr(os, name) for name in CALLS}

    def tell(self, *event: Any) -> None:
        descriptor = self._calls["open"](self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._calls["write"](descriptor, json.dumps(event).encode() + b"\n")
        os.close(descriptor)

    def told(self, what: str) -> list[tuple[Any, ...]]:
        lines = [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []
        return [tuple(rest) for kind, *rest in lines if kind == what]

    @contextmanager
    def watching(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name, real in self._calls.items():
                patch.setattr(os, name, self._between(real))
            for kind, names in STEPS.items():
                for name in names:
                    patch.setattr(kind, name, self._between(getattr(kind, name)))
            yield

    def _between(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **settings: Any) -> Any:
            self._tick()
            answer = real(*arguments, **settings)
            match arguments[:2]:
                case (HolderNoise() as stream, int(round_index)):
                    self.tell("row", str(stream._folder), round_index)
                case (Holder() as holder, request) if real.__name__ == "open":
                    self.tell("opened", holder.name, request.round_index, request.digest.hex())
            self._tick()
            self.after.setdefault(real.__qualname__, self.step)
            return answer

        return watched

    def _tick(self) -> None:
        self.step += 1
        if self.step == self.deadly:
            os._exit(9)

    def dies(self, step: int, work: Callable[[], object]) -> None:
        """Do the work in a process of its own, which dies at a step."""
        child = os.fork()
        if child == 0:
            try:
                self.step, self.deadly = 0, step
                work()
            except BaseException as error:  # noqa: BLE001 # the parent reads of it
                self.tell("error", repr(error)[:300])
            finally:
                os._exit(0)
        os.waitpid(child, 0)


# When noise was given, or added by all, when one holder or all have opened the sum, and when the release is on disk.
MOMENTS = ("HolderNoise.row", "GridHolders.add_noise", "Holder.open", "EncryptedSum.open", "ReleasePath.commit")


@pytest.mark.parametrize("anywhere", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_processes_that_die_use_no_row_and_open_no_round_twice(tmp_path: Path, anywhere: bool) -> None:
    def made(name: str) -> Path:
        for share in key()[1]:
            place = tmp_path / name / f"holder-{share.holder}"
            place.mkdir(parents=True)
            key_files.write_share(place / "share.json", share)
        return tmp_path / name

    whole = Witness(tmp_path / "whole.jsonl")
    with whole.watching():
        rounds(made("whole"), 2)
    assert whole.step > 100
    for step in range(1, whole.step + 1) if anywhere else [whole.after[moment] for moment in MOMENTS]:
        folder, witness = made(f"run-{step}"), Witness(tmp_path / f"{step}.jsonl")
        with witness.watching():
            witness.dies(step, lambda: rounds(folder, 2))  # noqa: B023 # done at once
            witness.deadly = 0
            arrays = rounds(folder, 1)
        judge(folder, witness, arrays)


def judge(folder: Path, witness: Witness, arrays: ArrayRecord) -> None:
    """Hold what happened against the ledger."""
    states = [entry.state for entry in History.of(read_chain(folder / "state" / "ledger.jsonl").records[1:]).rounds]
    assert witness.told("error") == []
    rows = Counter(witness.told("row"))
    assert set(rows.values()) == {1}, "a holder gave a row of noise twice"
    assert max(round_index for _, round_index in rows) < len(states), "a round was not charged"
    opened = {
        (holder, round_index): {d for h, r, d in witness.told("opened") if (h, r) == (holder, round_index)}
        for holder, round_index, _ in witness.told("opened")
    }
    assert all(len(digests) == 1 for digests in opened.values()), "a holder opened two sums of a round"
    # Each release moved the model by the mean, once.
    assert states[-1] == "committed"
    expected = states.count("committed") * UPDATE * STEP
    np.testing.assert_array_equal(arrays["w"].numpy(), expected.astype(np.float32))
