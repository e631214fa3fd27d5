"""Several ranks beside one: the wall time of a round, what the exchange costs, and the memory of noise.

Ranks are processes of one thread on this machine, and exchange by gloo. The round is of a run with its folder: a network of
21,840 parameters, 100 clients of 600 MNIST images (with --quick of 100), secure sums, banded noise.
"""

import multiprocessing
import os
import resource
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

import _runner
from _peer_process import DEFAULT_FOLDER, Environment, Peer
from _runner import Row, Skipped
from _simulation_sides import cnn, images, mnist_work
from hubbub.datasets import iid
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import FixedEpochs
from hubbub.mechanism.strategies import toeplitz
from hubbub.noise import NoiseStream
from hubbub.training import LocalTraining, RunPlan, RunStore, SimulatedPopulation, train
from hubbub.training.ranks import Ranks, divided

ROUNDS, CLIENTS, NUMBERS, BANDS = 4, 100, 10**6, 64
EXCHANGE_LIMIT, SHARE_LIMIT = 0.030, 0.05


def _one(rank: int, size: int, port: int, what: Callable[..., Any], args: tuple[Any, ...], told: Any) -> None:
    torch.set_num_threads(1)
    if size > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(size)}
    told.send(what(Ranks.launched(), *args))
    told.recv()
    os._exit(0)


def on_ranks(size: int, what: Callable[..., Any], *args: Any) -> list[Any]:
    """What a function returns on each rank."""
    context = multiprocessing.get_context("spawn")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    pipes = [context.Pipe() for _ in range(size)]
    for rank, (_, theirs) in enumerate(pipes):
        context.Process(target=_one, args=(rank, size, port, what, args, theirs), daemon=True).start()
        # A rank that fails closes its end.
        theirs.close()
    answers = [mine.recv() for mine, _ in pipes]
    for mine, _ in pipes:
        mine.send(None)
    return answers


def rounds(ranks: Ranks, samples: int, folder: str) -> float:
    """Wall seconds of the fastest round after the first."""
    torch.manual_seed(0)
    data = images()
    parts = [part[:samples] for part in iid(len(data.train_inputs), CLIENTS, 0)]
    clients = [(data.train_inputs[part], data.train_targets[part]) for part in parts]
    everyone = FixedEpochs(ROUNDS, 1)
    mechanism = Mechanism(toeplitz.square_root(ROUNDS, bands=3), everyone, 1.0)
    plan = RunPlan(ROUNDS, everyone, CLIENTS, mechanism=mechanism, clip_norm=0.5)
    population = SimulatedPopulation(clients, F.cross_entropy, LocalTraining(batch_size=10, learning_rate=0.05), ranks=ranks)
    results = list(train(plan, population, cnn(), RunStore(Path(folder) / str(ranks.size))))
    return min(result.seconds for result in results[1:])


def exchanges(ranks: Ranks, repeats: int) -> float:
    """Wall seconds to add up a sum and to gather a row."""
    ends = divided(NUMBERS, ranks.size)
    first, stop = ends[ranks.rank]
    zero, part = torch.zeros(NUMBERS, dtype=torch.int64), torch.zeros(stop - first, dtype=torch.float64)
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        ranks.summed([lambda total: total.add_(1).numel()] * ranks.size, zero)
        ranks.gathered(lambda: part, ends, torch.float64)
        found.append(time.perf_counter() - began)
    return min(found)


def peak(ranks: Ranks, dim: int, of: int) -> float:
    """Bytes by which a rank's noise, of so many ranks, raises the memory of its process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mechanism = Mechanism(toeplitz.square_root(BANDS + 2, bands=BANDS), FixedEpochs(1, BANDS + 2), 1.0)
    stream = NoiseStream(mechanism, dim, part=divided(dim, of)[0])
    for _ in range(BANDS + 1):
        stream.next_row()
    return 1024.0 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def exchanges_of_a_round(ranks: Ranks, repeats: int) -> float:
    """Wall seconds of all exchanges of a round of the network, without its work."""
    dim, found = 21_840, []
    ends, zero = [(0, dim), *[(dim, dim)] * (ranks.size - 1)], torch.zeros(dim, dtype=torch.int64)
    row = torch.zeros(dim, dtype=torch.float64) if ranks.leads else None
    for _ in range(repeats):
        began = time.perf_counter()
        # Cohort, ticket, check, commit, checkpoint, epsilon, evaluation.
        for _ in range(7):
            ranks.lead(lambda: list(range(CLIENTS)))
        ranks.summed([lambda total: total.add_(1).numel()] * 4, zero, lambda: list(range(CLIENTS)))
        ranks.gathered(lambda: row, ends, torch.float64)
        found.append(time.perf_counter() - began)
    return min(found)


def time_rows(seconds: float) -> list[Row]:
    """A round, and what of it are exchanges."""
    quick = seconds <= _runner.QUICK
    with tempfile.TemporaryDirectory() as folder:
        found = {size: on_ranks(size, rounds, 100 if quick else 600, folder) for size in (1, 2)}
    alone, two = max(found[1]), max(found[2])
    exchange = max(on_ranks(2, exchanges, 5 if quick else 20))
    small = max(on_ranks(2, exchanges_of_a_round, 20))
    name = f"a round of {CLIENTS} clients, CNN of 21,840 parameters"
    wall = "wall seconds"
    return [
        Row(f"{name}, two ranks; peer: one rank", two, alone, 1 / 0.6, unit=wall),
        Row("exchanges of that round; peer: a twentieth of one rank's round", small, SHARE_LIMIT * alone, 1.0, unit=wall),
        Row(f"sum and row of {NUMBERS:,} numbers, two ranks; peer: a limit", exchange, EXCHANGE_LIMIT, 1.0, unit=wall),
    ]


def flower_rows(seconds: float) -> list[Row | Skipped]:
    """That round beside one of Flower, which neither clips nor adds noise, on as many Ray actors."""
    samples, peers = 100 if seconds <= _runner.QUICK else 600, Environment(DEFAULT_FOLDER)
    name = f"a round of {CLIENTS} clients, CNN of 21,840 parameters, two ranks; peer: Flower on two Ray actors"
    if not peers.installed:
        return [Skipped(name, "peer not installed: run simulation.py --peers")]
    with tempfile.TemporaryDirectory() as folder:
        mnist_work(cnn(), CLIENTS, samples).save(Path(folder) / "work.pt")
        with Peer(peers, "_peer_flower", f"{folder}/work.pt", "2") as flower:
            theirs = min([flower.round().wall_seconds for _ in range(ROUNDS)][1:])
        return [Row(name, max(on_ranks(2, rounds, samples, folder)), theirs, 2.5, unit="wall seconds")]


def memory_rows(seconds: float) -> list[Row]:
    """The memory of noise, of one rank after the other; whole it takes 10 GB."""
    dim = 2 * 10 ** (6 if seconds <= _runner.QUICK else 7)
    of_one, of_four = (on_ranks(1, peak, dim, of)[0] for of in (1, 4))
    name = f"noise of {BANDS} bands x {dim:,} numbers, one of four ranks; peer: all"
    return [Row(name, of_four, of_one, 1 / 0.3, unit="bytes")]


if __name__ == "__main__":
    _runner.main(__doc__, time_rows, flower_rows, memory_rows)
