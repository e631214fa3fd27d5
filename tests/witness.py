"""Runs that are watched: who started, which rows of noise met which sum, and what the world saw of it, in order."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hubbub.lattice import Lattice
from hubbub.mechanism import Mechanism
from hubbub.noise import SecureSource, Segments
from hubbub.participation import MinSeparation
from hubbub.strategies import BinaryTree, Identity, toeplitz
from hubbub.training import LatticeSum, RunPlan, RunStore, train
from hubbub.utility import noising_matrix
from simulated_disk import Disk

CLIENTS, COHORT, DIM = 12, 3, 8
SEPARATION, PARTICIPATIONS = 4, 8
CLIP_NORM = 0.5
STRATEGIES: dict[str, Callable[[int], Any]] = {
    "Identity": Identity,
    "BandedToeplitz": lambda rounds: toeplitz.square_root(rounds, 4),
    "BinaryTree": BinaryTree,
}
Note = Callable[[Any], None]


@dataclass(frozen=True)
class Started:
    """A process began."""


@dataclass(frozen=True)
class Met:
    """Noise met a sum: ``rows`` of z, each by key and index, were drawn for it."""

    round_index: int
    cohort: tuple[int, ...]
    rows: tuple[tuple[bytes, int], ...]
    total: torch.Tensor
    release: torch.Tensor

    @property
    def digest(self) -> bytes:
        return self.total.numpy().tobytes()


@dataclass(frozen=True)
class Published:
    """A round's result left, with the epsilon that it states."""

    round_index: int
    epsilon: float


@dataclass(frozen=True)
class WitnessedSum(LatticeSum):
    """A sum that tells when noise meets it."""

    meet: Callable[[torch.Tensor, torch.Tensor], None]

    def open(self, row: torch.Tensor | None) -> torch.Tensor:
        release = super().open(row)
        self.meet(self.total, release)
        return release


@dataclass
class Clients:
    """A population whose sums are known: another seed is other data."""

    seed: int
    note: Note
    drawn: list[tuple[bytes, int]] = field(default_factory=list)
    clients: Sequence[int] = range(CLIENTS)

    def collect(self, cohort: Sequence[int], model: nn.Module, clip_norm: float, round_index: int) -> LatticeSum:
        lattice = Lattice(clip_norm)
        seed = torch.Generator().manual_seed(1000 * self.seed + round_index)
        total = torch.randint(-lattice.radius, lattice.radius, (DIM,), generator=seed)
        self.drawn.clear()
        return WitnessedSum(total, lattice, {}, partial(self._met, round_index, tuple(cohort)))

    def _met(self, round_index: int, cohort: tuple[int, ...], total: torch.Tensor, release: torch.Tensor) -> None:
        self.note(Met(round_index, cohort, tuple(self.drawn), total, release))


@contextmanager
def watched(population: Clients, disk: Any) -> Iterator[None]:
    """Rows of z are seen when they are drawn, and calls go to the disk."""
    segments = SecureSource.segments

    def seen(source: SecureSource, index: int, first: int) -> Segments:
        population.drawn.append((source._key, index))
        return segments(source, index, first)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecureSource, "segments", seen)
        patch.setattr("hubbub.training.state.CHECKPOINT_EVERY", 4)
        patch.setattr("hubbub.files.os", disk)
        yield


def model() -> nn.Module:
    module = nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    return module


@dataclass(frozen=True)
class Case:
    """A run, and what the judge computes of it once."""

    strategy: str
    rounds: int
    keep_releases: bool = True

    @cached_property
    def plan(self) -> RunPlan:
        pattern = MinSeparation(SEPARATION, PARTICIPATIONS)
        mechanism = Mechanism(STRATEGIES[self.strategy](self.rounds), pattern, 0.7)
        return RunPlan(self.rounds, pattern, COHORT, mechanism, clip_norm=CLIP_NORM)

    @cached_property
    def noising(self) -> np.ndarray:
        """From z to the noise of sums, in steps of the lattice."""
        return self.plan.mechanism.stddev * CLIP_NORM / Lattice(CLIP_NORM).step * noising_matrix(self.plan.mechanism.strategy)

    @cached_property
    def epsilons(self) -> list[float]:
        """After each number of rounds."""
        return [self.plan.promise().after(rounds, self.plan.delta).epsilon for rounds in range(self.rounds + 1)]


def go(case: Case, disk: Disk, folder: Path, seed: int, note: Note, rounds: int | None = None) -> nn.Module:
    """Start a process that trains some rounds; returns the model."""
    population, module = Clients(seed, note), model()
    note(Started())
    with watched(population, disk):
        run = train(case.plan, population, module, RunStore(folder, keep_releases=case.keep_releases))
        for result in itertools.islice(run, rounds):
            note(Published(result.round_index, result.epsilon))
        run.close()
    return module
