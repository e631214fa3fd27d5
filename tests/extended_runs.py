"""Small runs that go on from one another, for the tests of what that costs and of what nobody can slip in."""

import itertools
from dataclasses import replace
from pathlib import Path

import torch

import recorded_runs
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import MinSeparation, Participation
from hubbub.mechanism.strategies import Identity, toeplitz
from hubbub.mechanism.strategies.strategy import Strategy
from hubbub.training import RunPlan, RunStore, ServerOptimizer, extended, train
from hubbub.training.simulation.functional import FlatModel
from ways import COHORT, RandomSums, zeros

PATTERN, EVEN = MinSeparation(3, 2), MinSeparation(2, 2)


def plan(
    strategy: Strategy, participation: Participation = PATTERN, noise_multiplier: float = 2.0, **changes: object
) -> RunPlan:
    settings = {"clip_norm": 0.5, "server": ServerOptimizer("fedavgm", 0.5, 0.8), **changes}
    return RunPlan(strategy.rounds, participation, COHORT, Mechanism(strategy, participation, noise_multiplier), **settings)


# Six rounds, then four more of other noise for another pattern.
FIRST = plan(toeplitz.square_root(6, 3))
SECOND = plan(Identity(4), EVEN, 3.0)


def flat(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def trained(folder: Path, plan: RunPlan = FIRST, seed: int = 0, rounds: int | None = None) -> torch.Tensor:
    """A run, to its end or for some rounds; answers with its model, ``(8,)``."""
    module = zeros()
    _loop(plan, module, folder, seed, rounds)
    return flat(module)


def gone_on(
    first: Path,
    folder: Path,
    plan: RunPlan = FIRST,
    following: RunPlan = SECOND,
    seed: int = 0,
    rounds: int | None = None,
) -> torch.Tensor:
    """What goes on from a finished run, to its end or for some rounds; again for one that was interrupted."""
    module = zeros()
    _loop(extended(RunStore(first), plan, following, module, RunStore(folder)), module, folder, seed, rounds)
    return flat(module)


def _loop(plan: RunPlan, module: torch.nn.Module, folder: Path, seed: int, rounds: int | None) -> None:
    run = train(plan, RandomSums(seed), module, RunStore(folder))
    for _ in itertools.islice(run, rounds):
        pass
    run.close()


def learnt_from(plans: list[tuple[RunPlan, Path]]) -> torch.Tensor:
    """The model of runs that follow on one another, by one optimizer and the releases on disk, ``(8,)``."""
    model = FlatModel(zeros())
    optimizer = plans[0][0].server.build(model.vector)
    for plan, folder in plans:
        for round_index in range(plan.rounds):
            release = RunStore(folder).parse_release(round_index, RunStore(folder).release_content(round_index))
            model.vector.grad = (release[: model.dim] / -plan.expected_cohort_size).to(model.vector.dtype)
            optimizer.step()
    return model.vector.detach().clone()


def rewritten(folder: Path, **changes: object) -> None:
    """A ledger whose promise says something else, its hashes made anew, as whoever can write to the folder can."""
    recorded_runs.rewritten(folder, lambda records: records[0].update(changes))


def of_seed(plan: RunPlan, seed: int) -> RunPlan:
    """An experiment with a known seed."""
    return replace(plan, noise="simulation", seed=seed)
