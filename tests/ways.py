"""The ways from a sum to a release, each as a small run that can be started again and again, on other data each time.

Here are those of the training loop, on sums that are drawn at random and on examples; Flower's and those of encrypted sums are
in modules of their own, which are imported when they are wanted.
"""

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub import ExamplePopulation, Mechanism
from hubbub.ledger.promise import Promise
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, Participation, PoissonSampling
from hubbub.mechanism.strategies import BinaryTree, Identity, Strategy, banded_inverse, blt, dense, toeplitz
from hubbub.noise.lattice import Lattice
from hubbub.training import LatticeSum, Population, RunPlan, RunStore, train
from hubbub.training.clipping import AdaptiveClipping, Clipping, CountSplit

if TYPE_CHECKING:
    from witness import Witness

CLIENTS, COHORT, DIM = 12, 3, 8
CLIP_NORM, NOISE_MULTIPLIER = 0.5, 0.7
PATTERN = MinSeparation(4, 8)
# Takes the witness of a start, the seed of its data, how many rounds it makes (None for all that are left), and whether
# releases are kept; returns the model.
Go = Callable[["Witness", int, int | None, bool], np.ndarray]
# Takes the seed of the data and the folder of the run.
Clients = Callable[[int, Path], Population]


@dataclass(frozen=True)
class Way:
    """One way from sums to releases.

    Args:
        promise: Of the run.
        cohort: What sums are divided by.
        go: One start of it.
        clipping: A clip norm, or the rule by which it moves.
        noise_by: The server, the holders of a key, or the clients.
        lattice_bits: Of the lattice of the sums.
        forgets: Whether releases are removed when the model has learnt from them, whatever is said.
    """

    promise: Promise
    cohort: float
    go: Go
    clipping: Clipping = CLIP_NORM
    noise_by: str = "server"
    lattice_bits: int = 24
    forgets: bool = False

    @property
    def rounds(self) -> int:
        return self.promise.rounds

    @property
    def mechanism(self) -> Mechanism:
        assert self.promise.mechanism
        return self.promise.mechanism

    def epsilon(self, rounds: int) -> float:
        """What so many rounds cost."""
        return self.promise.after(rounds, self.promise.delta).epsilon


@dataclass
class RandomSums(Population):
    """A population whose sums are drawn at random: another seed is other data."""

    seed: int
    clients: Sequence[int] = range(CLIENTS)
    takes_split = True

    def collect(
        self, cohort: Sequence[int], model: nn.Module, clip_norm: float, round_index: int, split: CountSplit | None = None
    ) -> LatticeSum:
        lattice = Lattice(split.joint_norm(clip_norm) if split else clip_norm)
        generator = torch.Generator().manual_seed(1000 * self.seed + round_index)
        # Of a norm of at most one client's.
        most = lattice.radius // 3 if len(cohort) else 1
        total = torch.randint(-most, most, (DIM + bool(split),), generator=generator) * bool(len(cohort))
        return LatticeSum(total, lattice, {})


class Seen(Population):
    """A population that says when it is asked for a sum."""

    def __init__(self, population: Any, witness: "Witness") -> None:
        self._population, self._witness = population, witness

    @property
    def clients(self) -> Sequence[Hashable]:
        return self._population.clients

    @property
    def noise_in_sums(self) -> bool:
        return self._population.noise_in_sums

    @property
    def takes_split(self) -> bool:
        return self._population.takes_split

    def collect(
        self, cohort: Sequence[int], model: nn.Module, clip_norm: float, round_index: int, split: CountSplit | None = None
    ) -> Any:
        self._witness.begins(round_index, cohort)
        return self._population.collect(cohort, model, clip_norm, round_index, split)


def zeros() -> nn.Module:
    """A model of eight parameters, all 0."""
    module = nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    return module


def examples(seed: int) -> ExamplePopulation:
    """As many examples as there are clients elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = torch.randn(CLIENTS, 3, generator=generator), torch.randint(0, 2, (CLIENTS,), generator=generator)
    return ExamplePopulation(inputs, targets, F.cross_entropy)


def loop(
    plan: RunPlan, population: Clients, witness: "Witness", seed: int, rounds: int | None, keep_releases: bool
) -> np.ndarray:
    """One start of the training loop."""
    module, store = zeros(), RunStore(witness.folder, keep_releases=keep_releases)
    run = train(plan, Seen(population(seed, witness.folder), witness), module, store)
    for result in itertools.islice(run, rounds):
        witness.publishes(result.round_index, result.epsilon)
    run.close()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()


def looped(plan: RunPlan, population: Clients | None = None, noise_by: str = "server") -> Way:
    go = partial(loop, plan, population or (lambda seed, folder: RandomSums(seed)))
    return Way(plan.promise(), plan.expected_cohort_size, go, plan.clip_norm, noise_by, plan.lattice_bits)


def plan_of(strategy: Strategy, participation: Participation = PATTERN, **changes: Any) -> RunPlan:
    """Clips to half a unit, in cohorts of three."""
    settings = {"clip_norm": CLIP_NORM, **changes}
    mechanism = Mechanism(strategy, participation, NOISE_MULTIPLIER)
    return RunPlan(strategy.rounds, participation, COHORT, mechanism, **settings)


def _full(rounds: int) -> dense.Dense:
    """No two diagonals alike."""
    below = np.random.default_rng(3).uniform(0.0, 0.5, (rounds, rounds))
    return dense.from_matrix(np.tril(below, -1) / (1 + np.arange(rounds))[:, None] + np.eye(rounds))


def _later(module: str, name: str) -> Callable[[int], Way]:
    return lambda rounds: getattr(import_module(module), name)(rounds)


STRATEGIES: dict[str, Callable[[int], Strategy]] = {
    "Identity": Identity,
    "BandedToeplitz": lambda rounds: toeplitz.square_root(rounds, 4),
    "BinaryTree": BinaryTree,
    "BLT": lambda rounds: blt.BufferedLinearToeplitz.from_decays(rounds, (0.9, 0.5), (0.3, 0.2)),
    "BandedInverse": lambda rounds: banded_inverse.square_root(rounds, 4),
    "Dense": _full,
}
OF_EXAMPLES: dict[str, Any] = {"population": lambda seed, folder: examples(seed)}
# By name; each takes the number of rounds, of which some ways have their own.
WAYS: dict[str, Callable[[int], Way]] = {
    **{name: lambda rounds, made=made: looped(plan_of(made(rounds))) for name, made in STRATEGIES.items()},
    "adaptive clipping": lambda rounds: looped(plan_of(Identity(rounds), clip_norm=AdaptiveClipping(CLIP_NORM))),
    "Poisson cohorts": lambda rounds: looped(plan_of(Identity(rounds), PoissonSampling(COHORT / CLIENTS))),
    "examples, Poisson": lambda rounds: looped(
        plan_of(Identity(rounds), PoissonSampling(COHORT / CLIENTS), privacy_unit="example"), **OF_EXAMPLES
    ),
    "examples, fixed order": lambda rounds: looped(
        plan_of(toeplitz.square_root(rounds, 4), FixedEpochs(-(-rounds // 4), 4), privacy_unit="example"), **OF_EXAMPLES
    ),
    **{
        f"Paillier, noise by {name}": _later("encrypted_ways", name.replace(" ", "_"))
        for name in ("server", "server and owner", "holders", "clients")
    },
    **{f"Flower, {name}": _later("flower_ways", name) for name in ("grid", "fixed", "adaptive", "correlated")},
    **{
        f"Flower and Paillier, noise by {name}": _later("flower_ways", f"encrypted_{name}")
        for name in ("server", "holders", "clients")
    },
}
