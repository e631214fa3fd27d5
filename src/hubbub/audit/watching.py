"""Canaries among the clients of a run, and the observation of its releases.

Each canary has coordinates of the model of its own and contributes ± the same amount in each. So directions are exactly
orthogonal, reach all layers, and take the memory of one row.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from hubbub._util.checks import Array
from hubbub.errors import ConfigError
from hubbub.noise.lattice import Lattice
from hubbub.noise.steps import MOST_BITS, share_stddev
from hubbub.training.aggregate import Adversary, Cohort, Population, Sum
from hubbub.training.clipping import CountSplit, bounded
from hubbub.training.plan import RunPlan
from hubbub.training.rounds import train
from hubbub.training.simulation.simulate import SimulatedPopulation

# Clip norms that a canary sends: far more than one, to be clipped, or just below one, to pass unclipped.
OUTSIDE, INSIDE = 64.0, 1 - 2.0**-10


@dataclass(frozen=True, eq=False)
class Canaries:
    """The canaries of one run, by their ids in it.

    Args:
        present: Whether each contributes, ``(canaries,)``.
        owner: The canary of each coordinate, by its number, ``(dim,)``.
        vector: The entries of all directions, each of norm 1, ``(dim,)``.
        sent: The norm before the clip in each round, in clip norms, ``(canaries, rounds)``.
    """

    clients: tuple[Hashable, ...]
    present: npt.NDArray[np.bool_]
    owner: npt.NDArray[np.int64]
    vector: Array
    sent: Array

    def direction(self, canary: int) -> Array:
        """A canary's direction, ``(dim,)``."""
        return np.where(self.owner == canary, self.vector, 0.0)

    def along(self, row: Array) -> Array:
        """The projection of a row on each direction, ``(canaries,)``."""
        return np.bincount(self.owner, weights=row * self.vector, minlength=len(self.clients)).astype(np.float64)


def plant(
    clients: Sequence[Hashable], dim: int, rounds: int, *, canaries: int, unclipped: float, rng: np.random.Generator
) -> Canaries:
    """Random canaries, each present with probability 1/2, with disjoint coordinates."""
    chosen = rng.choice(len(clients), size=canaries, replace=False)
    owner = rng.permutation(np.arange(dim) % canaries)
    vector = rng.choice([-1.0, 1.0], size=dim) / np.sqrt(np.bincount(owner, minlength=canaries))[owner]
    inside = rng.random((canaries, rounds)) < unclipped
    return Canaries(
        clients=tuple(clients[int(i)] for i in chosen),
        present=rng.random(canaries) < 0.5,
        owner=owner.astype(np.int64),
        vector=vector,
        sent=np.where(inside, INSIDE, OUTSIDE),
    )


# Numbers of a run's noise that are kept for the tests of noise: 16 MiB.
_KEPT = 2**21


@dataclass(frozen=True, eq=False)
class Watched:
    """The observation of one run; rows are in units of the bound on one client's contribution, times the factor of noise.

    Args:
        cohorts: The cohort of each round.
        patterns: The contribution of each canary, if present, to each row along its direction, ``(canaries, rounds)``.
        along: The projection of each row on each direction, without the contributions of the others, ``(rounds, canaries)``.
        noise: Each row without all contributions, at some coordinates, ``(rounds, some)``.
    """

    canaries: Canaries
    cohorts: list[list[Hashable]]
    patterns: Array
    along: Array
    noise: Array


def watch(
    plan: RunPlan, population: Population, honest: Population, model: nn.Module, canaries: Canaries, *, absent: float, rows: int
) -> Watched:
    """Train a copy of a model with the canaries among the clients, with new noise, and observe the releases.

    ``honest``, which may be the population itself, gives the contributions of the others in the clear. An absent canary
    contributes ``absent`` clip norms: 0, or −1 under replace-one. There are ``rows`` of noise in each sum.
    """
    observer = _Observer(plan, population, honest, canaries, absent, rows)
    try:
        for number, client in enumerate(canaries.clients):
            population.inject(client, observer.adversary(number))
        for result in train(plan, observer, deepcopy(model)):
            if not result.released:
                raise ConfigError(
                    f"round {result.round_index + 1} was aborted ({result.fault}), and an audit needs every release; take "
                    "fewer canaries: with an adaptive clip norm half of them do not answer"
                )
    finally:
        for client in canaries.clients:
            population.inject(client, None)
    patterns = np.stack(observer.patterns, axis=1)
    return Watched(canaries, observer.cohorts, patterns, np.stack(observer.along), np.stack(observer.noise))


@dataclass(eq=False)
class _Observer(Population):
    """The population, with its releases recorded."""

    plan: RunPlan
    population: Population
    honest: Population
    canaries: Canaries
    absent: float
    rows: int
    cohorts: list[list[Hashable]] = field(default_factory=list)
    patterns: list[Array] = field(default_factory=list)
    along: list[Array] = field(default_factory=list)
    noise: list[Array] = field(default_factory=list)
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        self._number = {str(client): i for i, client in enumerate(self.canaries.clients)}

    @property
    def clients(self) -> Sequence[Hashable]:
        return self.population.clients

    @property
    def privacy_unit(self) -> str:
        return self.population.privacy_unit

    @property
    def noise_in_sums(self) -> bool:
        return self.population.noise_in_sums

    @property
    def takes_split(self) -> bool:
        return self.population.takes_split

    def prepare(self, model: nn.Module, cohort: int) -> None:
        self.population.prepare(model, cohort)

    def draw_under(self, key: bytes) -> None:
        # The same updates in the clear.
        for population in (self.population, self.honest):
            population.draw_under(key)

    def adversary(self, canary: int) -> Adversary:
        """The update of a canary."""
        present = bool(self.canaries.present[canary])
        moves = bool(self.plan.clip_norms.further)

        def send(_: nn.Module, round_index: int) -> torch.Tensor | None:
            if not present and not self.absent and moves:
                # An update of zeros would still add its indicator.
                return None
            sign = 1.0 if present else self.absent
            direction = torch.from_numpy(self.canaries.direction(canary))
            return direction * (sign * float(self.canaries.sent[canary, round_index]) * (self.clip_norm or 0.0))

        return send

    def collect(
        self, cohort: Cohort, model: nn.Module, clip_norm: float | None, round_index: int, split: CountSplit | None = None
    ) -> Sum:
        self.clip_norm = clip_norm
        others = [client for client in cohort if str(client) not in self._number]
        total = self.population.collect(cohort, model, clip_norm, round_index, split)
        coarse = total.lattice if total.lattice and total.lattice.bits < MOST_BITS else None
        if coarse and isinstance(self.honest, SimulatedPopulation):
            known = np.zeros(len(self.canaries.owner) + (split is not None))
            for _, update, _ in self.honest.updates(others, model, round_index):
                known += bounded(update, clip_norm, coarse, split)[0].cpu().numpy() * coarse.step
        else:
            known = self.honest.collect(others, model, clip_norm, round_index, split).open(None).cpu().numpy()
        self.cohorts.append(list(cohort))

        def keep(release: torch.Tensor) -> None:
            self._keep(cohort, release.cpu().numpy() - known, clip_norm or 0.0, round_index, coarse)

        return _WatchedSum(total, keep)

    def _keep(self, cohort: Cohort, row: Array, clip_norm: float, round_index: int, coarse: Lattice | None) -> None:
        """Record a row without the contributions of the others, and the expected contribution of each canary."""
        canaries, dim = self.canaries, len(self.canaries.owner)
        bound = self.plan.clip_norms.bound(clip_norm)
        asked = np.zeros(len(canaries.clients))
        asked[[self._number[str(client)] for client in cohort if str(client) in self._number]] = 1.0
        sent = np.minimum(1.0, canaries.sent[:, round_index]) * clip_norm
        if coarse:
            # An update is clipped to leave room for rounding; the entries of a canary are alike, and so many steps each.
            room = (coarse.radius - math.sqrt(len(row)) / 2) * coarse.step
            sent *= np.minimum(1.0, room / np.hypot(sent, math.sqrt(bound**2 - clip_norm**2)))
            unit = coarse.step * np.sqrt(np.bincount(canaries.owner, minlength=len(asked)))
            sent = unit * np.rint(sent / unit)
        # An absent canary that sends nothing brings no share of noise.
        silent = asked @ ~canaries.present if self.plan.clip_norms.further and not self.absent else 0
        bound *= self._noise_factor(len(cohort) - int(silent), bound)
        amounts = asked * sent / bound
        scaled = row[:dim] / bound
        self.along.append(canaries.along(scaled) - self.absent * amounts)
        self.patterns.append((1 - self.absent) * amounts)
        added = amounts * np.where(canaries.present, 1.0, self.absent)
        window = slice(0, min(len(scaled), max(1, _KEPT // self.plan.rounds)))
        self.noise.append(scaled[window] - added[canaries.owner[window]] * canaries.vector[window])

    def _noise_factor(self, answers: int, bound: float) -> float:
        """How much larger the noise of a sum is than the promise counts on, since all who add noise are honest here."""
        mechanism = self.plan.mechanism
        if mechanism is None or mechanism.shares is None:
            return math.sqrt(self.rows)
        lattice = Lattice(bound, mechanism.shares.lattice_bits)
        share = share_stddev(mechanism.noise_multiplier, bound, mechanism.shares.clients, lattice.bits) * lattice.step
        return share * math.sqrt(answers) / (mechanism.stddev * bound)


class _WatchedSum:
    def __init__(self, total: Sum, report: Callable[[torch.Tensor], None]) -> None:
        self._total, self._report = total, report
        self.lattice, self.digest = total.lattice, total.digest

    @property
    def statistics(self) -> Mapping[str, float]:
        return self._total.statistics

    def open(self, row: torch.Tensor | None) -> torch.Tensor:
        release = self._total.open(row)
        self._report(release.detach())
        return release
