"""Neighbours that are asked the very same: a run is noted, and its rounds are asked again of a population that differs in one
client. What the two sums differ by is what that client added."""

import math
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub.audit.neighbours import Influence, influence
from hubbub.mechanism import Mechanism
from hubbub.noise.lattice import Lattice
from hubbub.training import ExamplePopulation, Execution, LocalTraining, SimulatedPopulation
from hubbub.training.aggregate import Adversary, Population
from hubbub.training.clipping import CountSplit
from small_runs import CLIENTS, linear

DIM = 8
Steps = npt.NDArray[np.int64]


def honest(client: int) -> Adversary:
    """An update that hangs on the model and the round, now longer and now shorter than the clip norm."""

    def update(model: nn.Module, round_index: int) -> torch.Tensor:
        flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        return torch.roll(flat, client) * (0.2 + 0.3 * ((client + round_index) % 4))

    return update


def simulated(clients: int = CLIENTS) -> SimulatedPopulation:
    """Clients in this process, all of whose updates are chosen."""
    examples = [(torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64))] * clients
    made = SimulatedPopulation(examples, F.cross_entropy, LocalTraining(), execution=Execution("one-by-one"))
    for client in range(clients):
        made.inject(client, honest(client))
    return made


def single_examples() -> ExamplePopulation:
    """Examples with gradients of their own, of which some are chosen."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(CLIENTS, 3, generator=generator)
    return ExamplePopulation(inputs, torch.arange(CLIENTS) % 2, F.cross_entropy)


# What a hostile client sends before anybody clips it.

Vector = Callable[[random.Random, float], torch.Tensor]


def everywhere(value: float, dtype: torch.dtype = torch.float32) -> Vector:
    return lambda draw, clip: torch.full((DIM,), value, dtype=dtype)


def somewhere(value: float, rest: float = 0.0) -> Vector:
    def make(draw: random.Random, clip: float) -> torch.Tensor:
        vector = torch.full((DIM,), rest)
        vector[draw.randrange(DIM)] = value
        return vector

    return make


def of_length(part: float) -> Vector:
    """So many clip norms long, in a random direction."""

    def make(draw: random.Random, clip: float) -> torch.Tensor:
        vector = torch.tensor([draw.gauss(0, 1) for _ in range(DIM)], dtype=torch.float64)
        return vector / vector.norm() * clip * part

    return make


def of_any_size(draw: random.Random, clip: float) -> torch.Tensor:
    """From the least to the largest that a double holds, in a random direction."""
    vector = torch.tensor([draw.gauss(0, 1) for _ in range(DIM)], dtype=torch.float64)
    return vector * 10 ** draw.uniform(-300, 300)


VECTORS: dict[str, Vector] = {
    "1e30": everywhere(1e30),
    "-3e38": everywhere(-3e38),
    "1e308 in float64": everywhere(1e308, torch.float64),
    "the largest of float16": everywhere(65504, torch.float16),
    "bfloat16": everywhere(3e38, torch.bfloat16),
    "NaN in part": somewhere(math.nan, 1.0),
    "infinity in part": somewhere(math.inf, 1.0),
    "minus infinity": everywhere(-math.inf),
    "a million in one number": somewhere(1e6),
    "a million in one of many": somewhere(1e6, 0.1),
    "zero": everywhere(0.0),
    "the least": everywhere(1e-45),
    "just below": of_length(1 - 1e-9),
    "just above": of_length(1 + 1e-4),
    "exactly": lambda draw, clip: torch.tensor([clip] + [0.0] * (DIM - 1), dtype=torch.float64),
    "half steps": lambda draw, clip: torch.full((DIM,), (draw.randrange(2**20) + 0.5) * 2.0**-24, dtype=torch.float64),
    "twice": of_length(2.0),
    "any size": of_any_size,
}


def fixed(name: str, seed: int, clip: float) -> Adversary:
    """The same vector, or its kind, in every round."""
    return lambda model, round_index: VECTORS[name](random.Random(f"{seed} {round_index}"), clip)  # noqa: S311 # of a test


def adaptive(seed: int, clip: float) -> Adversary:
    """One that looks at the model: always the same way, against what it sees, or as the signs of the model are."""
    how, away = seed % 3, torch.Generator().manual_seed(seed)
    direction = torch.randn(DIM, generator=away, dtype=torch.float64)

    def update(model: nn.Module, round_index: int) -> torch.Tensor:
        flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).double()
        return (direction * 1e9, -flat * 1e9, flat.sign() * clip)[how]

    return update


def crafted(seed: int, clip: float) -> Adversary:
    draw = random.Random(seed)  # noqa: S311 # of a test
    return adaptive(seed, clip) if draw.random() < 0.3 else fixed(draw.choice(list(VECTORS)), seed, clip)


# What is noted, and asked again.


@dataclass(frozen=True)
class Noted:
    """A round as it was asked, and its sum in whole steps."""

    cohort: tuple[Hashable, ...]
    parameters: list[torch.Tensor]
    clip_norm: float
    split: CountSplit | None
    lattice: Lattice
    steps: Steps


@dataclass
class Asking(Population):
    population: Any
    takes_split = True

    @property
    def clients(self) -> Sequence[Hashable]:
        return self.population.clients


@dataclass
class Transcript(Asking):
    """Notes what it is asked. ``steps_of`` reads a sum."""

    steps_of: Callable[[Any], Steps] = lambda total: total.total.numpy().copy()
    rounds: dict[int, Noted] = field(default_factory=dict)
    model: nn.Module = field(default_factory=linear)

    def collect(self, cohort, model, clip_norm, round_index, split=None):  # another implementation
        parameters = [p.detach().clone() for p in model.parameters()]
        total = self.population.collect(cohort, model, clip_norm, round_index, split)
        self.rounds[round_index] = Noted(tuple(cohort), parameters, clip_norm, split, total.lattice, self.steps_of(total))
        return total

    def again(self, population: Any, round_index: int) -> Any:
        """The sum of another population in a round as it was: same model, same clip norm, same cohort of those there are."""
        noted, model = self.rounds[round_index], self.model
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), noted.parameters, strict=True):
                parameter.copy_(value)
        there = set(population.clients)
        cohort = [client for client in noted.cohort if client in there]
        return population.collect(cohort, model, noted.clip_norm, round_index, noted.split)

    def joined(self, client: Hashable) -> list[int]:
        return [round_index for round_index, noted in self.rounds.items() if client in noted.cohort]

    def influence_of(self, neighbour: Any, client: Hashable, mechanism: Mechanism, relation: str = "zero-out") -> Influence:
        """How far the sums of a neighbour, which differs in one client, are from these."""
        moved, norms = {}, {}
        for round_index in self.joined(client):
            total = self.again(neighbour, round_index)
            assert total.lattice == self.rounds[round_index].lattice
            moved[round_index] = self.steps_of(total) - self.rounds[round_index].steps
            norms[round_index] = total.lattice.clip_norm
        bits = next(iter(self.rounds.values())).lattice.bits
        return influence(mechanism, moved, norms, lattice_bits=bits, relation=relation)


@dataclass
class Replayed(Asking):
    """A neighbour that sees the models of a run that was noted, whatever becomes of the model that it is given."""

    transcript: Transcript
    seen: list[tuple[Hashable, ...]] = field(default_factory=list)

    def collect(self, cohort, model, clip_norm, round_index, split=None):  # another implementation
        self.seen.append(tuple(cohort))
        return self.transcript.again(self.population, round_index)
