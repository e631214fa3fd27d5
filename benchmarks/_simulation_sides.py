"""The sides of simulation.py in this process, and their rounds in turn with those of the peers."""

import math
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know
from torch.utils.data import DataLoader, TensorDataset

from _peer_process import Round
from _peer_turns import Work
from hubbub.datasets import Dataset, mnist
from hubbub.models import Cnn
from hubbub.training import Execution, LocalTraining, SimulatedPopulation

# From a model and the number of a round to the sum of all clients' updates, ``(dim,)``.
Summing = Callable[[nn.Module, int], torch.Tensor]


class Side(Protocol):
    """Whoever trains a model of its own by federated averaging."""

    def round(self) -> Round:
        """One round, and what it cost."""


class Here:
    """A side in this process.

    Args:
        work: What to do.
        summing: How it is done.
    """

    def __init__(self, work: Work, summing: Summing) -> None:
        self._work = work
        self._summing = summing
        self._model = deepcopy(work.model)
        self._rounds = 0

    def round(self) -> Round:
        """One round; its CPU seconds are those of this process, and the evaluation after it is not counted."""
        cpu, wall = time.process_time(), time.perf_counter()
        total = self._summing(self._model, self._rounds)
        with torch.no_grad():
            vector = nn.utils.parameters_to_vector(self._model.parameters())
            nn.utils.vector_to_parameters(
                vector + total.to(vector.dtype) / len(self._work.clients[0]), self._model.parameters()
            )
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        self._rounds += 1
        return Round(cpu, wall, self._work.accuracy(self._model))


def in_turn(sides: Mapping[str, Side], later: int) -> dict[str, Round]:
    """Each side's cheapest round after its first one, and its accuracy after the last.

    Args:
        sides: They take turns of one round.
        later: How many rounds follow the first one, which also loads and warms up.
    """
    best = {name: Round(math.inf, math.inf, 0.0) for name in sides}
    for side in sides.values():
        side.round()
    for _ in range(later):
        for name, side in sides.items():
            cost, least = side.round(), best[name]
            cpu, wall = min(cost.cpu_seconds, least.cpu_seconds), min(cost.wall_seconds, least.wall_seconds)
            best[name] = Round(cpu, wall, cost.accuracy)
    return best


def cnn() -> nn.Module:
    """21,840 parameters, of torch's own layers."""
    return nn.Sequential(*Cnn((1, 28, 28), 10))


@lru_cache
def images() -> Dataset:
    """MNIST, read once."""
    return mnist.load()


def mnist_work(model: nn.Module, clients: int, samples: int = 600) -> Work:
    """MNIST's first images after a shuffle, dealt to clients."""
    data = images()
    chosen = torch.randperm(len(data.train_inputs), generator=torch.Generator().manual_seed(0))[: clients * samples]
    inputs, targets = data.train_inputs[chosen], data.train_targets[chosen]
    dealt = inputs.view(clients, samples, *data.shape), targets.view(clients, samples)
    return Work(model, dealt, (data.test_inputs, data.test_targets))


def population(work: Work, execution: Execution | None = None, *, lattice: bool = False) -> SimulatedPopulation:
    """Ours; by default it chooses its plan itself."""
    local = LocalTraining(epochs=work.epochs, batch_size=work.batch_size, learning_rate=work.learning_rate)
    clients = [work.client(number) for number in range(len(work.clients[0]))]
    return SimulatedPopulation(clients, F.cross_entropy, local, lattice=lattice, execution=execution)


def ours(clients: SimulatedPopulation) -> Summing:
    """The sum by a population of ours: neither clipped nor on the lattice."""
    return lambda model, round_index: clients.collect(clients.clients, model, None, round_index).open(None)


def plain_loop(work: Work) -> Summing:
    """The loop that one would write: for each client a copied model, a data loader and an SGD optimizer."""

    def summing(model: nn.Module, round_index: int) -> torch.Tensor:
        start = nn.utils.parameters_to_vector(model.parameters()).detach()
        total = torch.zeros_like(start)
        for number in range(len(work.clients[0])):
            local = deepcopy(model)
            optimizer = torch.optim.SGD(local.parameters(), lr=work.learning_rate)
            for inputs, targets in DataLoader(TensorDataset(*work.client(number)), work.batch_size, shuffle=True):
                optimizer.zero_grad()
                F.cross_entropy(local(inputs), targets).backward()
                optimizer.step()
            total += nn.utils.parameters_to_vector(local.parameters()).detach() - start
        return total

    return summing
