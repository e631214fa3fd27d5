"""Who took part in a release? The game of a certain and of a likely guess, won by who sees the last bits of a broken one.

The adversary knows the sum x0 of all other clients and x1 = x0 + the target's clipped update, sees a release y to the last
bit, and must say which of the two was summed.

Source: Mironov 2012, "On significance of the least significant bits for differential privacy"; Jin et al. 2021,
https://arxiv.org/abs/2112.05307; Casacuberta et al. 2022, https://arxiv.org/abs/2207.10635.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats

from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import every_round
from hubbub.mechanism.strategies import Identity
from hubbub.noise import NoiseStream
from hubbub.noise.lattice import Lattice
from hubbub.training import LatticeSum
from twins.twin import System, Twin, binomial

DIM, TRIALS, CLIP_NORM, NOISE = 1000, 400, 0.55, 1.0


def excluded(y: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether some coordinate of y is the rounded sum of x and w for *no* float64 number w: then x was not summed.

    Proof that three numbers w decide it: fl(x + w) does not fall as w grows. Let w be the float64 number next to y − x. If
    fl(x + w) < y, smaller ones give less; the next larger one is at least y − x, gives y or more, and if more, so do all
    beyond it. If fl(x + w) > y, the same holds upside down.
    """
    nearest = y - x
    reached = x + nearest == y
    for side in (-math.inf, math.inf):
        reached |= x + torch.nextafter(nearest, torch.full_like(nearest, side)) == y
    return not bool(reached.all())


def certain_call(y: torch.Tensor, x0: torch.Tensor, x1: torch.Tensor) -> int | None:
    """Which sum it was, 0 or 1, where the other one is impossible; ``None`` where both are possible."""
    impossible = excluded(y, x0), excluded(y, x1)
    assert not all(impossible), "one of the two was summed"
    return impossible.index(False) if any(impossible) else None


def likely_call(y: torch.Tensor, x0: torch.Tensor, x1: torch.Tensor) -> int:
    """The likelier sum under independent Gaussian noise: by Neyman and Pearson, nobody does better with the noise alone."""
    return int(torch.dot(y - (x0 + x1) / 2, x1 - x0) > 0)


@dataclass
class Score:
    """What came of an adversary's calls."""

    right: int = 0
    wrong: int = 0
    undecided: int = 0

    def count(self, call: int | None, truth: int) -> None:
        self.undecided += call is None
        self.right += call == truth
        self.wrong += call not in (None, truth)


@dataclass(frozen=True)
class Seen:
    """What certain guesses came to, and likely ones."""

    certain: Score
    likely: Score


def run() -> Seen:
    """Releases of which every second holds the target."""
    lattice, generator = Lattice(CLIP_NORM), torch.Generator().manual_seed(3)
    others, target = torch.randn(2, DIM, generator=generator, dtype=torch.float64)
    without = lattice.encode(others)[0]
    totals = without, without + lattice.encode(target)[0]
    known = [total.double() * lattice.step for total in totals]
    stream = NoiseStream(Mechanism(Identity(TRIALS), every_round(TRIALS), NOISE), DIM)
    seen = Seen(Score(), Score())
    for trial in range(TRIALS):
        truth = trial % 2
        y = LatticeSum(totals[truth], lattice, {}).open(stream.next_row() * CLIP_NORM)
        if trial % 4 < 2:
            seen.certain.count(certain_call(y, *known), truth)
        seen.likely.count(likely_call(y, *known), truth)
    return seen


def certain(seen: Seen) -> bool:
    """Whether one guess is certain. Never, of a right system: every sum and noise give a number of the lattice."""
    return seen.certain.right + seen.certain.wrong > 0


def likely(seen: Seen) -> bool:
    """How many likely guesses are right: a binomial count whose chance is Φ(1/2z), up to a rounding of 1e-5 clip norms."""
    return binomial(np.array([float(seen.likely.right)]), TRIALS, stats.norm.cdf(1 / (2 * NOISE)))


def _opens(add: Callable[[LatticeSum, torch.Tensor], torch.Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(LatticeSum, "open", add)


def _numpy(total: LatticeSum, row: torch.Tensor) -> torch.Tensor:
    drawn = np.random.default_rng(int(row[0].abs() * 2**40)).normal(scale=NOISE * CLIP_NORM, size=len(row))
    return total.total * total.lattice.step + torch.from_numpy(drawn)


def _longer(patch: pytest.MonkeyPatch) -> None:
    """The clip is skipped where an update is less than twice as long."""
    right = Lattice.encode
    patch.setattr(Lattice, "encode", lambda lattice, update: (2 * right(lattice, update)[0], True))


STATISTICS = {each.__name__: each for each in (certain, likely)}
TWINS = [
    Twin("a release in float64", "certain", _opens(lambda total, row: total.total * total.lattice.step + row)),
    Twin("a release in float64 with noise of NumPy", "certain", _opens(_numpy)),
    Twin("half of the noise, on the lattice", "likely", _opens(lambda total, row: total.lattice.release(total.total, row / 2))),
    Twin("twice the clip norm, on the lattice", "likely", _longer),
]

SYSTEM = System(run, STATISTICS, TWINS)
