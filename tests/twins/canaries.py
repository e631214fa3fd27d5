"""A run that trains canaries, and what whoever knows them sees of it; and sums as they must not be formed.

Each canary sends ten clip norms along a direction of its own, spread evenly over sixteen layers; half of them take part in
every round. Directions are orthogonal, so that whitened scores of canaries that are absent are exactly N(0, 1), those of the
present N(μ, 1), all independent. μ is that of the guarantee: no client can be seen better.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hubbub import audit
from hubbub.mechanism import Mechanism, gaussian
from hubbub.mechanism.participation import every_round
from hubbub.mechanism.strategies import toeplitz
from hubbub.noise.lattice import Lattice
from hubbub.training import LatticeSum, LocalTraining, Ranks, ReleasePath, RunPlan, SimulatedPopulation, release, train
from hubbub.training.simulation import Execution, simulate
from twins.twin import FALSE_ALARM, Array, System, Twin, instead

ROUNDS, LAYERS, DIM, EACH, LENGTH = 2, 16, 1600, 400, 10.0
CLIP_NORM, DELTA = 0.55, 1e-5
# μ = 1/2.
MECHANISM = Mechanism(toeplitz.square_root(ROUNDS, 2), every_round(ROUNDS), 2.0 * np.sqrt(2.6))
MU = MECHANISM.l2_sensitivity / MECHANISM.stddev
EPSILON = gaussian.epsilon(delta=DELTA, noise_multiplier=1 / MU)


@cache
def directions() -> Array:
    """``(2 × canaries, dim)``, orthonormal, each about as long in each layer."""
    return np.linalg.qr(np.random.default_rng(0).normal(size=(DIM, 2 * EACH)))[0].T


@dataclass(frozen=True)
class Seen:
    """Whitened scores."""

    absent: Array
    present: Array


def run() -> Seen:
    """A run of training whose clients are the canaries that take part."""
    sent = torch.from_numpy(-LENGTH * CLIP_NORM * directions()[:EACH]).float()
    clients = [(update[None], torch.zeros(1, 1)) for update in sent]
    local, one_by_one = LocalTraining(learning_rate=1.0), Execution("one-by-one")
    population = SimulatedPopulation(clients, lambda output, _: output.mean(), local, execution=one_by_one)
    plan = RunPlan(ROUNDS, MECHANISM.participation, EACH, MECHANISM, clip_norm=CLIP_NORM)
    model = nn.Linear(DIM, 1, bias=False, dtype=torch.float32)
    before, released = model.weight.detach().double().flatten(), []
    for _ in train(plan, population, model):
        after = model.weight.detach().double().flatten()
        released.append((after - before).numpy() * EACH)
        before = after
    C, always, stddev = MECHANISM.strategy.matrix(), np.ones((2 * EACH, ROUNDS)), MECHANISM.stddev * CLIP_NORM
    scores = audit.whitened_scores(C, np.stack(released), always, directions(), stddev=stddev)
    return Seen(scores[EACH:], scores[:EACH])


def _check(seen: Seen, number: int) -> bool:
    checks = audit.check_whitened_scores(seen.absent, seen.present, np.full(EACH, MU), mu=MU, false_alarm=FALSE_ALARM)
    return not checks[number].passed


def null_deviation(seen: Seen) -> bool:
    """The squares of the absent scores: chi-square of 400 degrees of freedom, exact."""
    return _check(seen, 0)


def present_mean(seen: Seen) -> bool:
    return _check(seen, 1)


def claimed_mu(seen: Seen) -> bool:
    """The mean of the present scores in measured deviations: above the quantiles of both laws together."""
    return _check(seen, 2)


def gaussian_bound(seen: Seen) -> bool:
    """A lower bound on μ, and so on epsilon, above what is claimed: with the confidence of Clopper and Pearson's intervals."""
    return audit.gdp_epsilon(seen.present, seen.absent, delta=DELTA, confidence=1 - FALSE_ALARM).epsilon > EPSILON


def clopper_pearson(seen: Seen) -> bool:
    """The same, whatever the shape of the trade-off."""
    return audit.clopper_pearson_epsilon(seen.present, seen.absent, delta=DELTA, confidence=1 - FALSE_ALARM).epsilon > EPSILON


STATISTICS: dict[str, Callable[[Seen], bool]] = {
    each.__name__: each for each in (null_deviation, present_mean, claimed_mu, gaussian_bound, clopper_pearson)
}


Bounded = tuple[torch.Tensor, bool]


def _clips(clip: Callable[[torch.Tensor, Lattice], torch.Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    """Another function in the place of the clip: from an update to whole steps."""

    def bounded(update: torch.Tensor, clip_norm: float, lattice: Lattice, split: None = None) -> Bounded:
        return clip(update.double(), lattice), True

    def breaks(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(simulate, "bounded", bounded)
        # Which would refuse the longest of these sums.
        patch.setattr(release, "_require_clipped", lambda *_: None)

    return breaks


def _rounded(update: torch.Tensor, lattice: Lattice) -> torch.Tensor:
    return (update / lattice.step).round().to(torch.int64)


def _each_layer(update: torch.Tensor, lattice: Lattice) -> torch.Tensor:
    return torch.cat([lattice.encode(layer)[0] for layer in update.split(DIM // LAYERS)])


def _by_the_first_layer(update: torch.Tensor, lattice: Lattice) -> torch.Tensor:
    return _rounded(update * (lattice.clip_norm / float(update[: DIM // LAYERS].norm())), lattice)


def _one_layer(update: torch.Tensor, lattice: Lattice) -> torch.Tensor:
    part = DIM // LAYERS
    return torch.cat([lattice.encode(update[:part])[0], _rounded(update[part:], lattice)])


def _by_the_mean_square(update: torch.Tensor, lattice: Lattice) -> torch.Tensor:
    return _rounded(update * min(1.0, lattice.clip_norm / float(update.square().mean().sqrt())), lattice)


def _by_the_largest(update: torch.Tensor, lattice: Lattice) -> torch.Tensor:
    return _rounded(update * min(1.0, lattice.clip_norm / float(update.abs().max())), lattice)


def _twice(update: torch.Tensor, lattice: Lattice) -> torch.Tensor:
    return _rounded(update * (2 * lattice.clip_norm / float(update.norm())), lattice)


def _sum_clipped(patch: pytest.MonkeyPatch) -> None:
    _clips(_rounded)(patch)
    right = SimulatedPopulation.collect

    def collect(*arguments: object) -> LatticeSum:
        total = right(*arguments)  # type: ignore[arg-type]
        return LatticeSum(total.lattice.encode(total.total.double() * total.lattice.step)[0], total.lattice, {})

    patch.setattr(SimulatedPopulation, "collect", collect)


def _replies(times: int) -> Callable[[pytest.MonkeyPatch], None]:
    """Each client's reply counted so often."""

    def breaks(patch: pytest.MonkeyPatch) -> None:
        right = Ranks.summed

        def summed(*arguments: Any) -> tuple[torch.Tensor, list[Any]]:
            total, found = right(*arguments)
            return times * total, found

        patch.setattr(Ranks, "summed", summed)

    return breaks


def _noise(factor: float) -> Callable[[pytest.MonkeyPatch], None]:
    return instead(ReleasePath, "row", lambda right: lambda path, ticket: right(path, ticket) * factor)


TWINS = [
    Twin("the clip is skipped", "clopper_pearson", _clips(_rounded)),
    Twin("the norm is that of the first layer", "present_mean", _clips(_by_the_first_layer)),
    Twin("each layer is clipped by itself", "gaussian_bound", _clips(_each_layer)),
    Twin("one layer alone is clipped", "clopper_pearson", _clips(_one_layer)),
    Twin("the norm is the root of the mean square", "clopper_pearson", _clips(_by_the_mean_square)),
    Twin("the norm is the largest entry", "clopper_pearson", _clips(_by_the_largest)),
    Twin("twice the clip norm", "present_mean", _clips(_twice)),
    Twin("the sum is clipped, not the updates", "present_mean", _sum_clipped),
    Twin("weights that clients name", "clopper_pearson", _clips(lambda update, lattice: lattice.encode(update)[0] * 1000)),
    Twin("a duplicate reply", "present_mean", _replies(2)),
    Twin("a reply that comes five times", "gaussian_bound", _replies(5)),
    Twin("a wrong denominator: noise for those asked, divided by the fifth that answered", "null_deviation", _noise(0.2)),
    Twin("noise for a quarter of the clip norm", "claimed_mu", _noise(0.25)),
]

SYSTEM = System(run, STATISTICS, TWINS)
