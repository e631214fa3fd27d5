"""Small models, populations, strategies and plans, one of each kind, that train in no time."""

from collections.abc import Generator
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub._util.checks import Array
from hubbub.mechanism import Mechanism
from hubbub.mechanism import participation as parts
from hubbub.mechanism.sensitivity import Sensitivity, of_matrix
from hubbub.mechanism.strategies import BinaryTree, Identity, toeplitz
from hubbub.mechanism.strategies.strategy import Draw, Memory, Row, substituted
from hubbub.training import LocalTraining, RoundResult, RunPlan, ServerOptimizer, SimulatedPopulation

CLIENTS = 12
# A participation of each kind, for six rounds of these clients: a pattern, or cohorts that are drawn at random.
PATTERNS: list[parts.Participation] = [parts.SingleParticipation(), parts.FixedEpochs(2, 3), parts.MinSeparation(3, 2)]
SAMPLED: list[parts.Participation] = [
    parts.PoissonSampling(1 / 3), parts.FixedSizeSampling(4, CLIENTS), parts.TruncatedPoissonSampling(1 / 3, 4, CLIENTS),
    parts.CyclicPoissonSampling(0.7, 2), parts.BallsInBinsSampling(3),
]  # fmt: skip


def linear() -> nn.Module:
    """Eight parameters, each time the same."""
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def flat(module: nn.Module) -> torch.Tensor:
    """All parameters, ``(dim,)``."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def population(seed: int = 1, lattice: bool = True) -> SimulatedPopulation:
    """Five examples for each client."""
    own, training = torch.Generator().manual_seed(seed), LocalTraining(batch_size=2, learning_rate=0.5, momentum=0.5)
    examples = [(torch.randn(5, 3, generator=own), torch.randint(0, 2, (5,), generator=own)) for _ in range(CLIENTS)]
    return SimulatedPopulation(examples, F.cross_entropy, training, lattice=lattice)


def until(run: Generator[RoundResult], rounds: int) -> list[RoundResult]:
    """What a run yields until it has so many rounds in all; then it is interrupted."""
    results = []
    for result in run:
        results.append(result)
        if result.round_index + 1 == rounds:
            break
    run.close()
    return results


class Foreign:
    """A strategy of somebody else: a matrix, and what it states of its sensitivity, which may be a lie."""

    def __init__(self, C: Array, stated: float | None = None) -> None:
        self.C, self.rounds, self.stated = np.array(C, dtype=float), np.shape(C)[1], stated

    def matrix(self) -> Array:
        return self.C

    def sensitivity(self, participation: parts.Participation) -> Sensitivity:
        right = of_matrix(self.C, participation)
        return right if self.stated is None else Sensitivity(self.stated, True, "its own word")

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        return substituted(self.C[round_index, : round_index + 1], draw(round_index), memory, self.rounds)


def plan_with(strategy: Identity, participation: parts.Participation, **changes: object) -> RunPlan:
    """Six rounds under a mechanism; ``changes`` are to the fields of the plan."""
    plan = RunPlan(6, participation, 4, Mechanism(strategy, participation, 0.7), clip_norm=0.5, noise="simulation")
    return replace(plan, **changes)


PLANS = {
    "independent, Poisson": plan_with(Identity(6), parts.PoissonSampling(1 / 3)),
    "independent, fixed size": plan_with(Identity(6), parts.FixedSizeSampling(4, CLIENTS)),
    "independent, truncated Poisson": plan_with(Identity(6), parts.TruncatedPoissonSampling(1 / 3, 4, CLIENTS)),
    "independent, balls in bins": plan_with(Identity(6), parts.BallsInBinsSampling(3)),
    "banded, cyclic Poisson": plan_with(toeplitz.square_root(6, 2), parts.CyclicPoissonSampling(0.7, 2)),
    "independent, everyone": plan_with(Identity(6), parts.every_round(6), expected_cohort_size=CLIENTS),
    "banded, separated": plan_with(toeplitz.square_root(6, 3), parts.MinSeparation(3, 2)),
    "tree, rotation": plan_with(BinaryTree(6), parts.FixedEpochs(2, 3)),
    "momentum at the server": plan_with(Identity(6), parts.every_round(6), server=ServerOptimizer("fedavgm", 0.5)),
    "Adam at the server": plan_with(Identity(6), parts.every_round(6), server=ServerOptimizer("fedadam", 0.1)),
    "no privacy": RunPlan(6, parts.PoissonSampling(0.5), 6.0, noise="simulation"),
}
