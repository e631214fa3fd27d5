"""Private training: one loop, whoever runs the clients and whatever hides their sum."""

from hubbub.training.clipping import clip
from hubbub.training.plan import RunPlan, ServerOptimizer
from hubbub.training.release import ReleasePath, Sum
from hubbub.training.rounds import Population, RoundResult, train
from hubbub.training.simulate import LocalTraining, SimulatedPopulation, evaluate
from hubbub.training.store import RunStore
from hubbub.training.sums import LatticeSum, PlainSum

__all__ = [
    "LatticeSum",
    "LocalTraining",
    "PlainSum",
    "Population",
    "ReleasePath",
    "RoundResult",
    "RunPlan",
    "RunStore",
    "ServerOptimizer",
    "SimulatedPopulation",
    "Sum",
    "clip",
    "evaluate",
    "train",
]
