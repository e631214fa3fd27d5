"""What privacy adds to a simulated round: clip and lattice for each client, secure noise and the ledger once."""

import tempfile
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import nn

import _runner
from _peer_turns import Work
from _simulation_sides import cnn, mnist_work, population
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import MinSeparation
from hubbub.mechanism.strategies import Identity
from hubbub.training import Population, RunPlan, RunStore, Sum, train

CLIENTS, SHARE = 100, 20
# Every update is clipped.
CLIP_NORM, NOISE_MULTIPLIER = 0.5, 2.0
# More than are measured.
ROUNDS = 1000
GOAL = 1 / 1.05


class Timed(Population):
    """A population that counts the CPU seconds of its sums."""

    def __init__(self, population: Population) -> None:
        self._population = population
        self.seconds = 0.0

    @property
    def clients(self) -> Sequence[Hashable]:
        return self._population.clients

    def collect(
        self, cohort: Sequence[Hashable], model: nn.Module, clip_norm: float | None, round_index: int, split: object = None
    ) -> Sum:
        begin = time.process_time()
        total = self._population.collect(cohort, model, clip_norm, round_index)
        self.seconds += time.process_time() - begin
        return total


def privacy_rows(seconds: float) -> list[_runner.Row]:
    """A round of 100 clients put together from the clients' share, and from what train() adds to a sum.

    Both are measured in short turns: whole rounds would differ by more than the goal allows between two runs of the same plan.
    """
    work = mnist_work(cnn(), SHARE)
    share = _runner.measure(_sum(work, private=True), _sum(work, private=False), 5 * seconds)
    with tempfile.TemporaryDirectory(prefix=".simulation-", dir=Path.cwd()) as folder:
        once = _once(Path(folder), rounds=int(5 * seconds))
    name = f"privacy, CNN, a round of {CLIENTS} clients; peer: without clip, lattice, noise and ledger"
    peer = CLIENTS / SHARE * share.peer
    ours = CLIENTS / SHARE * share.ours + once
    note = f"train() adds {1000 * once:.3g} ms to the sum of a round"
    return [_runner.Row(name, ours, peer, GOAL, projected=True, note=note)]


def _sum(work: Work, *, private: bool) -> Callable[[], npt.NDArray[np.float64]]:
    clients, clip_norm = population(work, lattice=private), CLIP_NORM if private else None
    return lambda: clients.collect(clients.clients, work.model, clip_norm, 0).open(None).numpy()


def _once(folder: Path, rounds: int) -> float:
    """The least that a round of train() took beside its sum, of clients with one batch each."""
    work = mnist_work(cnn(), CLIENTS, samples=10)
    clients = Timed(population(work, lattice=True))
    pattern = MinSeparation(1, ROUNDS)
    mechanism = Mechanism(Identity(ROUNDS), pattern, NOISE_MULTIPLIER)
    plan = RunPlan(ROUNDS, pattern, CLIENTS, mechanism, CLIP_NORM, noise="secure")
    results = train(plan, clients, work.model, RunStore(folder))
    # The first one also starts the run.
    next(results)
    spent = []
    for _ in range(rounds):
        clients.seconds = 0.0
        begin = time.process_time()
        next(results)
        spent.append(time.process_time() - begin - clients.seconds)
    results.close()
    return min(spent)
