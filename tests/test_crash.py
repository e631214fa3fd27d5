"""Kill -9 at random moments: no release is lost, no row of noise meets two sums, every charge stands."""

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub.accounting.chain import read_chain
from hubbub.accounting.ledger import Ledger
from hubbub.accounting.promise import Promise
from hubbub.mechanism import Mechanism
from hubbub.noise import SecureSource
from hubbub.participation import MinSeparation
from hubbub.strategies import BinaryTree, Identity, toeplitz
from hubbub.training import LocalTraining, RunPlan, RunStore, SimulatedPopulation, train
from hubbub.training.state import RunState
from hubbub.utility import noising_matrix

ROUNDS, CLIENTS, COHORT, DIM = 24, 12, 3, 8
# Clients without examples: what is released is the noise alone, which the judge draws again from the keys.
SILENT = [(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))] * CLIENTS
SLOWEST_START = 2.0


def plan_for(strategy: Identity) -> RunPlan:
    pattern = MinSeparation(4, 6)
    return RunPlan(ROUNDS, pattern, COHORT, Mechanism(strategy, pattern, 0.7), clip_norm=0.5)


def work(strategy: Identity, folder: Path) -> None:
    """Run, or go on with the run, and note beside the folder what left it and how long the start took."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    population, begun = SimulatedPopulation(SILENT, F.cross_entropy, LocalTraining()), time.perf_counter()
    beginning = RunState.start

    def timed(*arguments: object, **named: object) -> RunState:
        state = beginning(*arguments, **named)
        note(folder, "starts", time.perf_counter() - begun)
        return state

    RunState.start = timed
    for result in train(plan_for(strategy), population, nn.Linear(3, 2), RunStore(folder)):
        note(folder, "left", result.round_index)


def note(folder: Path, name: str, value: float) -> None:
    with folder.with_suffix(f".{name}").open("a") as file:
        file.write(f"{value}\n")


def notes(folder: Path, name: str) -> list[float]:
    file = folder.with_suffix(f".{name}")
    return [float(line) for line in file.read_text().split()] if file.exists() else []


def records(folder: Path) -> list[dict]:
    lines = (folder / "ledger.jsonl").read_bytes().split(b"\n")
    return [json.loads(line)["body"] for line in lines[:-1]]


@pytest.mark.parametrize(
    ("strategy", "kills", "runs"),
    [
        pytest.param(
            strategy, kills, runs, marks=pytest.mark.slow if runs > 2 else (), id=f"{type(strategy).__name__}, {kills} kills"
        )
        for strategy in (Identity(ROUNDS), toeplitz.square_root(ROUNDS, 4), BinaryTree(ROUNDS))
        for kills, runs in ((17, 2), (340, 35))
    ],
)
def test_a_killed_run_loses_no_release_and_uses_no_row_of_noise_twice(
    strategy: Identity, kills: int, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubbub.training.state.CHECKPOINT_EVERY", 7)
    # What a first run imports is imported before the workers are forked.
    list(train(plan_for(strategy), SimulatedPopulation(SILENT, F.cross_entropy, LocalTraining()), nn.Linear(3, 2)))
    moments, context = random.Random(kills), multiprocessing.get_context("fork")  # noqa: S311 # moments of a test
    killed, before_run, run, attempts = 0, 0, 0, 0
    while killed < kills or run < runs:
        folder, before = tmp_path / str(run), notes(tmp_path / str(run), "left")
        worker = context.Process(target=work, args=(strategy, folder))
        worker.start()
        # No more than a dozen kills a run, so that many runs are killed.
        worker.join(moments.uniform(0.003, 0.15) if attempts < 12 else 60)
        attempts += 1
        if worker.is_alive():
            os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        killed += worker.exitcode == -signal.SIGKILL
        assert worker.exitcode in (0, -signal.SIGKILL)
        assert set(before) <= set(notes(folder, "left"))
        if worker.exitcode == 0:
            judge(strategy, folder, kills=killed - before_run)
            before_run, run, attempts = killed, run + 1, 0
    print(f"{killed} kills over {run} runs")  # noqa: T201 # what was shown


def judge(strategy: Identity, folder: Path, kills: int) -> None:
    """Draw the whole stream again from the keys and compare; count charges and participations."""
    plan, bodies, store = plan_for(strategy), records(folder), RunStore(folder)
    begun = [b["round"] for b in bodies if b["kind"] == "begin"]
    assert begun == list(range(ROUNDS)), "a row of noise met two sums, or none was charged"
    assert max(notes(folder, "starts")) < SLOWEST_START
    epochs = [b["first_row"] for b in bodies if b["kind"] == "epoch"]
    keys = [store.noise_key(epoch) for epoch in range(len(epochs))]
    assert len(set(keys)) == len(keys)
    assert sum(b["kind"] == "burn" for b in bodies) <= kills, "a kill costs at most the round that was under way"
    z = torch.zeros(strategy.matrix().shape[0], DIM, dtype=torch.float64)
    for row in range(len(z)):
        owner = max(e for e, first in enumerate(epochs) if first <= row)
        z[row] = SecureSource(keys[owner]).row(row, DIM)
    expected = plan.mechanism.stddev * plan.clip_norm * torch.from_numpy(noising_matrix(strategy)) @ z
    promise = Promise.from_record(read_chain(store.ledger_path).records[0], store.load_strategy())
    ledger = Ledger(promise, store.secret(), store.ledger_path)
    left = notes(folder, "left")
    assert len(set(left)) == len(left), "a round left twice"
    assert all(ledger.rounds[int(t)] == "committed" for t in left), "what left is not on record"
    for t in range(ROUNDS):
        if ledger.rounds[t] == "committed":
            released = store.load_release(t, ledger.release_digest(t), DIM)
            # To the nearest of the whole multiples of 2^-25.
            torch.testing.assert_close(released, expected[t], rtol=0, atol=2**-26 + 1e-12)
    assert ledger.spent(1e-5).epsilon == plan.promise().after(ROUNDS, 1e-5).epsilon
    for client in range(CLIENTS):
        assert plan.participation.allows(ledger.participations(client))
