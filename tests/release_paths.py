"""A release path on small sums, for tests of it and of its folder."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub import Mechanism, MinSeparation
from hubbub.ledger import Promise, read_chain
from hubbub.mechanism.strategies import Identity, toeplitz
from hubbub.noise.lattice import Lattice
from hubbub.training import LatticeSum, LocalTraining, ReleasePath, RunPlan, RunStore, SimulatedPopulation, train
from small_runs import until

ROUNDS, CLIENTS, DIM, CLIP = 6, 12, 8, 0.5
PATTERN = MinSeparation(3, 2)
PROMISE = Promise(ROUNDS, Mechanism(toeplitz.square_root(ROUNDS, 3), PATTERN, 1.0))


def opened(store: RunStore | None = None, promise: Promise = PROMISE, head: str | None = None) -> ReleasePath:
    path = ReleasePath(promise, DIM, clients=CLIENTS, store=store, head=head, noise_in_sums=promise.noise_in_sums)
    path.start()
    return path


def total(value: int = 0, clip_norm: float = CLIP, bits: int = 24) -> LatticeSum:
    return LatticeSum(torch.full((DIM,), value), Lattice(clip_norm, bits), {})


def one_round(path: ReleasePath, *clients: int, value: int = 0) -> torch.Tensor:
    ticket = path.begin(clients, total(value), CLIP)
    release = total(value).open(path.row(ticket))
    path.commit(ticket, release)
    return release


def locked(folder: Path) -> RunStore:
    store = RunStore(folder)
    with store.locked():
        pass
    return store


def plan(strategy: Identity, **others: object) -> RunPlan:
    return replace(RunPlan(ROUNDS, PATTERN, 3, Mechanism(strategy, PATTERN, 0.8), clip_norm=CLIP), **others)


def silent() -> SimulatedPopulation:
    nothing = (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    return SimulatedPopulation([nothing] * CLIENTS, F.cross_entropy, LocalTraining())


def some_rounds(folder: Path, rounds: int, strategy: Identity | None = None, keep_releases: bool = True) -> RunPlan:
    planned = plan(strategy or toeplitz.square_root(ROUNDS, 3))
    until(train(planned, silent(), nn.Linear(3, 2), RunStore(folder, keep_releases=keep_releases)), rounds)
    return planned


def kinds(folder: Path) -> list[str]:
    """Of the records of a run's ledger, in order."""
    return [body["kind"] for body in read_chain(folder / "ledger.jsonl").records]
