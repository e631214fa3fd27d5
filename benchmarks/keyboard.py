"""A whole run at the size of a keyboard, once: 2,000 rounds of 6,500 of a million clients, from the start to ``verify``.

The clients are a grid in this process that makes each reply when it is pulled. Everything else is what a run does: cohorts of
a pattern, banded noise under secret keys, ledger, releases on disk, checkpoints. Without ``--full`` it has a few rounds.
"""

import argparse
import logging
import shutil
import tempfile
import time
from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from torch import nn

import _runner
from _clients import Clients
from hubbub import MinSeparation, RunStore, calibrate, train, verify
from hubbub.flower import GridPopulation
from hubbub.mechanism.strategies import toeplitz
from hubbub.training import RunPlan, ServerOptimizer

BANDS, EVERY = 16, 100


class Many(Clients):
    """Clients of which each answers with one of 64 updates, made once a round: so many have to answer.

    Args:
        count: Of clients.
        dim: Numbers in the model.
        norm: Of an update, about.
    """

    def __init__(self, count: int, dim: int, norm: float) -> None:
        super().__init__(count, dim, norm)
        self._sent: RecordDict | None = None
        self._made: list[RecordDict] = []

    def _reply(self, message: Message) -> Message:
        if message.content is not self._sent:
            self._sent, sent = message.content, message.content["arrays"]["w"].numpy()
            updates = (self._updates[at : at + self._dim] for at in range(64))
            self._made = [RecordDict({"arrays": ArrayRecord({"w": Array(sent + update)})}) for update in updates]
        return Message(self._made[message.metadata.dst_node_id % 64], reply_to=message)


class Vector(nn.Module):
    """A model of so many numbers.

    Args:
        dim: How many.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(dim))


def main() -> None:
    """Train, verify, and say what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="all rounds, all clients: the better part of an hour")
    parser.add_argument("--parameters", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="where the run is kept; by default it is thrown away")
    asked = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    rounds, cohort, count = (2000, 6500, 10**6) if asked.full else (20, 650, 10**5)
    folder = asked.folder or Path(tempfile.mkdtemp()) / "run"
    pattern = MinSeparation(min(140, rounds), -(-rounds // 140))
    mechanism = calibrate(toeplitz.square_root(rounds, BANDS), pattern, epsilon=8.0, delta=1e-9)
    plan = RunPlan(rounds, pattern, cohort, mechanism, clip_norm=1.0, server=ServerOptimizer(), delta=1e-9)
    grid = Many(count, asked.parameters, 0.8)
    population = GridPopulation(grid, range(1, count + 1), lattice=True)
    idle, begin, cpu = _runner._peak_bytes(), time.perf_counter(), time.process_time()
    first = 0.0
    for result in train(plan, population, Vector(asked.parameters), RunStore(folder)):
        first = first or time.perf_counter() - begin
        if (result.round_index + 1) % EVERY == 0:
            print(
                f"round {result.round_index + 1}: {time.perf_counter() - begin:.0f} s, epsilon {result.epsilon:.3f}", flush=True
            )
    wall, spent, peak = time.perf_counter() - begin, time.process_time() - cpu, _runner._peak_bytes() - idle
    begin = time.perf_counter()
    verdict = verify(folder)
    if not verdict.ok:
        raise SystemExit(str(verdict))
    sizes = {path.name: path.stat().st_size for path in (folder / "ledger.jsonl", folder / "ledger.cohorts")}
    whole = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{rounds:,} rounds of {cohort:,} of {count:,} clients, {asked.parameters:,} parameters, {BANDS} bands")
    print(f"wall {wall:.0f} s, the first round {first:.1f} s; CPU {spent:.0f} s")
    print(f"a reply, its making counted: {1e6 * spent / rounds / cohort:.0f} µs of CPU")
    print(f"memory over the idle process {peak / 1e6:.0f} MB; disk {whole / 1e6:.1f} MB, of which {sizes}")
    print(f"verified in {time.perf_counter() - begin:.1f} s")
    if asked.folder is None:
        shutil.rmtree(folder.parent)


if __name__ == "__main__":
    main()
