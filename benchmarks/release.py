"""What hiding and recording a round costs: secure noise, the ledger, and a whole secure run beside a simulation.

Three of the peers are no library: limits of 40 ms for a million numbers of secure noise and of 5 ms a round for the ledger,
and our own simulation. Two draw noise that is not secure: Opacus' formula for its secure mode, on torch's own generator, and
NumPy's default generator. The last writes two lines and waits for the disk after each, as a ledger must.

Noise and runs are measured in CPU seconds, the ledger in wall seconds, since it waits for the disk. Folders are made, and
removed, in the current directory: start it on the disk that matters.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Hashable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

import _runner
from hubbub._util.prf import fresh_key
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import MinSeparation, PoissonSampling
from hubbub.mechanism.strategies import Identity
from hubbub.models import Cnn
from hubbub.noise import SecureSource
from hubbub.noise.lattice import Lattice
from hubbub.training import (
    LatticeSum,
    LocalTraining,
    PlainSum,
    Population,
    ReleasePath,
    RunPlan,
    RunStore,
    SimulatedPopulation,
    Sum,
    train,
)

DIM, CLIP_NORM, NOISE = 10**6, 0.55, 1.5
NOISE_LIMIT, LEDGER_LIMIT, APPENDS_GOAL = 0.040, 0.005, 0.2
# Ours rounds to a lattice and adds a sum of integers; the peers add to one in floating point.
OPACUS_GOAL, NUMPY_GOAL = 0.4, 0.4
# Of deviations of a million numbers, each known to 0.07%.
TOLERANCE = 0.005
# As in examples/mnist.toml, with random images in place of MNIST's.
CLIENTS, COHORT, SAMPLES, PARAMETERS = 1000, 100, 60, 21_840
# How many clients train in a turn, and more rounds than are measured.
SHARES, MOST_ROUNDS = 1, 20_000
RUN_GOAL = 1 / 1.05


def opacus_noise(deviation: float, dim: int) -> torch.Tensor:
    """What Opacus draws in secure mode (``opacus/optimizers/optimizer.py``): one number discarded, four vectors summed."""
    torch.normal(mean=0, std=deviation, size=(1, 1))
    total = torch.zeros(dim)
    for _ in range(4):
        total += torch.normal(mean=0, std=deviation, size=(dim,))
    return total / 2


def noise_rows(seconds: float) -> list[_runner.Row]:
    lattice, source = Lattice(CLIP_NORM), SecureSource(fresh_key())
    whole = torch.zeros(DIM, dtype=torch.int64)
    plain, plain64 = torch.zeros(DIM), np.zeros(DIM)
    numbers, deviation = iter(range(10**9)), NOISE * CLIP_NORM
    generator = np.random.default_rng()

    def ours() -> npt.NDArray[np.float64]:
        return lattice.release(whole, source.row(next(numbers), DIM) * deviation).numpy()

    peers = {
        "Opacus' formula": (lambda: (plain + opacus_noise(deviation, DIM)).numpy(), OPACUS_GOAL),
        "NumPy's default": (lambda: plain64 + generator.normal(scale=deviation, size=DIM), NUMPY_GOAL),
    }
    rows, best = [], float("inf")
    for peer, (draw, goal) in peers.items():
        name = f"secure noise, {DIM:,} numbers; peer: {peer}"
        measured = _runner.measure(ours, draw, seconds)
        _runner.require_agreement(name, np.std(measured.our_answer), np.std(measured.peer_answer), TOLERANCE)
        rows.append(_runner.Row(name, measured.ours, measured.peer, goal))
        best = min(best, measured.ours)
    limit = f"secure noise, {DIM:,} numbers; peer: a limit of {1000 * NOISE_LIMIT:g} ms"
    return [_runner.Row(limit, best, NOISE_LIMIT, 1.0), *rows]


class TimedStore(RunStore):
    """A folder that knows how long it took to write the last release, which is no cost of the ledger."""

    writing = 0.0

    def save_release(self, round_index: int, release: torch.Tensor, step: float | None = None) -> bytes:
        begin = time.perf_counter()
        content = super().save_release(round_index, release, step)
        self.writing = time.perf_counter() - begin
        return content


def bare_appends(path: Path) -> None:
    """What two durable records cost at the least: two lines, each on disk before the next."""
    for _ in range(2):
        with path.open("ab") as file:
            file.write(bytes(1000))
            file.flush()
            os.fsync(file.fileno())


def ledger_rows(folder: Path, rounds: int) -> list[_runner.Row]:
    """What begin and commit take, less the write of the release itself, beside two bare appends on the same disk."""
    separation = CLIENTS // COHORT
    pattern = MinSeparation(separation, rounds)
    plan = RunPlan(rounds, pattern, COHORT, Mechanism(Identity(rounds), pattern, NOISE), CLIP_NORM)
    total = LatticeSum(torch.zeros(PARAMETERS, dtype=torch.int64), Lattice(CLIP_NORM), {})
    store = TimedStore(folder)
    ours, bare = [], []
    with store.locked():
        path = ReleasePath(plan.promise(), PARAMETERS, clients=CLIENTS, store=store)
        path.start()
        for t in range(rounds):
            cohort = range(t % separation, CLIENTS, separation)
            begin = time.perf_counter()
            ticket = path.begin(cohort, total, CLIP_NORM)
            charged = time.perf_counter() - begin
            release = total.open(path.row(ticket))
            begin = time.perf_counter()
            path.commit(ticket, release)
            committed = time.perf_counter()
            ours.append(charged + committed - begin - store.writing)
            bare_appends(folder / "bare")
            bare.append(time.perf_counter() - committed)
    name = f"ledger, a round of {COHORT} clients; peer: "
    cost = quietest(ours)
    return [
        _runner.Row(f"{name}a limit of {1000 * LEDGER_LIMIT:g} ms", cost, LEDGER_LIMIT, 1.0, unit="wall seconds"),
        _runner.Row(f"{name}two bare appends", cost, quietest(bare), APPENDS_GOAL, unit="wall seconds"),
    ]


def quietest(spent: list[float], size: int = 10) -> float:
    """The median round of the ten in a row that other work on the disk disturbed least."""
    return min(statistics.median(spent[i : i + size]) for i in range(len(spent) - size + 1))


class ReadySum(Population):
    """A population whose sums cost nothing, so that a round costs what it costs once: all but the clients' shares."""

    clients = range(CLIENTS)

    def __init__(self, total: Sum) -> None:
        self._total = total

    def collect(
        self, cohort: Sequence[Hashable], model: nn.Module, clip_norm: float | None, round_index: int, split: object = None
    ) -> Sum:
        return self._total


def run_row(folder: Path, seconds: float) -> _runner.Row:
    """A round as clients' shares and what it costs once, both measured in short turns.

    Turns of whole rounds, two seconds each, would differ by up to a tenth between two runs of the very same plan.
    """
    data = [(torch.rand(SAMPLES, 1, 28, 28), torch.randint(10, (SAMPLES,))) for _ in range(SHARES)]
    local, model = LocalTraining(batch_size=10, learning_rate=0.1), Cnn((1, 28, 28), 10)

    def shares(lattice: bool) -> Callable[[], npt.NDArray[np.float64]]:
        population = SimulatedPopulation(data, F.cross_entropy, local, lattice=lattice)
        return lambda: population.collect(range(SHARES), model, CLIP_NORM, round_index=0).open(None).numpy()

    mechanism = Mechanism(Identity(MOST_ROUNDS), PoissonSampling(COHORT / CLIENTS), NOISE)
    secure = RunPlan(MOST_ROUNDS, mechanism.participation, COHORT, mechanism, CLIP_NORM, noise="secure")

    def once(plan: RunPlan, total: Sum) -> Callable[[], int]:
        results = train(plan, ReadySum(total), deepcopy(model), RunStore(folder / plan.noise))
        # The first one also starts the run.
        next(results)
        return lambda: next(results).round_index

    name = f"a secure run, one round of {COHORT} clients x {SAMPLES} images; peer: our simulation"
    of_clients = _runner.measure(shares(lattice=True), shares(lattice=False), 5 * seconds)
    # Batches are drawn alike; only the rounding to the lattice tells the sums apart.
    _runner.require_agreement(name, of_clients.our_answer, of_clients.peer_answer, 1e-4)
    whole = LatticeSum(torch.zeros(PARAMETERS, dtype=torch.int64), Lattice(CLIP_NORM), {})
    plain = PlainSum(torch.zeros(PARAMETERS, dtype=torch.float64), {})
    of_round = _runner.measure(once(secure, whole), once(replace(secure, noise="simulation"), plain), seconds)
    ours, peer = (COHORT / SHARES * c + r for c, r in ((of_clients.ours, of_round.ours), (of_clients.peer, of_round.peer)))
    return _runner.Row(name, ours, peer, RUN_GOAL, projected=True)


def rows(seconds: float) -> list[_runner.Row]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix=".release-", dir=Path.cwd()) as folder:
        ledger = ledger_rows(Path(folder) / "ledger", rounds=int(20 * seconds))
        run = run_row(Path(folder), seconds)
    return [*noise_rows(seconds), *ledger, run]


if __name__ == "__main__":
    _runner.main(__doc__, rows)
