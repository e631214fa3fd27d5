"""Small runs for audits: forty clients, 210 parameters, twelve rounds, and little enough noise that defects show."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub.audit import Audit, Effort, audit
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import (
    BallsInBinsSampling,
    CyclicPoissonSampling,
    FixedEpochs,
    FixedSizeSampling,
    MinSeparation,
    Participation,
    PoissonSampling,
    TruncatedPoissonSampling,
    every_round,
)
from hubbub.mechanism.strategies import BinaryTree, BufferedLinearToeplitz, Identity, Strategy, toeplitz
from hubbub.training import LocalTraining, RunPlan, SimulatedPopulation
from hubbub.training.clipping import AdaptiveClipping

CLIENTS, ROUNDS, CLIP = 40, 12, 0.5
EFFORT = Effort(canaries=20, runs=4)


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(20, 10)


def clients(kind: type[SimulatedPopulation] = SimulatedPopulation) -> SimulatedPopulation:
    """Two examples for each client."""
    generator = torch.Generator().manual_seed(1)
    examples = [
        (torch.randn(2, 20, generator=generator), torch.randint(0, 10, (2,), generator=generator)) for _ in range(CLIENTS)
    ]
    return kind(examples, F.cross_entropy, LocalTraining(batch_size=2, learning_rate=0.5))


def plan_of(strategy: Strategy, participation: Participation, size: float, **changes: object) -> RunPlan:
    plan = RunPlan(ROUNDS, participation, size, Mechanism(strategy, participation, 0.7), CLIP, delta=1e-5)
    return replace(plan, **changes)


def described_blt() -> Strategy:
    return BufferedLinearToeplitz(ROUNDS, (0.9, 0.4), (0.2, 0.3))


SEPARATED = MinSeparation(3, 4)
PLANS: dict[str, Callable[[], RunPlan]] = {
    "independent, separated": lambda: plan_of(Identity(ROUNDS), SEPARATED, 12.0),
    "independent, Poisson": lambda: plan_of(Identity(ROUNDS), PoissonSampling(0.3), 12.0),
    "independent, fixed size": lambda: plan_of(Identity(ROUNDS), FixedSizeSampling(12, CLIENTS), 12.0),
    "independent, truncated": lambda: plan_of(Identity(ROUNDS), TruncatedPoissonSampling(0.3, 14, CLIENTS), 12.0),
    "independent, balls in bins": lambda: plan_of(Identity(ROUNDS), BallsInBinsSampling(4), 10.0),
    "banded, cyclic Poisson": lambda: plan_of(toeplitz.square_root(ROUNDS, 3), CyclicPoissonSampling(0.6, 3), 8.0),
    "banded, separated": lambda: plan_of(toeplitz.square_root(ROUNDS, 3), SEPARATED, 12.0),
    "buffers, rotation": lambda: plan_of(described_blt(), FixedEpochs(3, 4), 10.0),
    "tree, rotation": lambda: plan_of(BinaryTree(ROUNDS), FixedEpochs(3, 4), 10.0),
    "full tree, everyone": lambda: plan_of(BinaryTree(ROUNDS, "full"), every_round(ROUNDS), float(CLIENTS)),
    "replaced units": lambda: plan_of(Identity(ROUNDS), SEPARATED, 12.0, neighboring_relation="replace-one"),
    "adaptive, separated": lambda: plan_of(Identity(ROUNDS), SEPARATED, 12.0, clip_norm=AdaptiveClipping(0.5, 0.6)),
    "adaptive, Poisson": lambda: plan_of(Identity(ROUNDS), PoissonSampling(0.3), 12.0, clip_norm=AdaptiveClipping(0.5, 0.6)),
}


def audited(plan: RunPlan, population: SimulatedPopulation | None = None, effort: Effort = EFFORT, seed: int = 3) -> Audit:
    """An audit in this process; what others contribute is told by clients of a right kind."""
    return audit(plan, lambda _: population or clients(), small_model(), honest=clients(), effort=effort, seed=seed)
