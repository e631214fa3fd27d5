"""How often a threshold on scores errs, at most: Clopper–Pearson bounds that hold although the threshold was chosen.

A score of at least the threshold is guessed "present". With ``count`` false positives among n absent canaries, the false
positive rate of a threshold fixed in advance is at most the (1 − a)-quantile of Beta(count + 1, n − count), but for a
probability a.

A threshold chosen after the scores were seen needs more. For one count k, the largest false positive rate of *any* threshold
with at most k false positives is that just above the (k+1)-th largest absent score, and the law of P[S > S₍ₖ₊₁₎] is at most
Beta(k + 1, n − k), exactly it for continuous scores. So the same quantile holds for all thresholds with k false positives
at once, and a union over a grid of counts, fixed before the scores were seen, holds for all thresholds: a count between two
grid points takes the bound of the larger. That a union over all n counts is not needed makes the bound sharper.

Source: Clopper and Pearson 1934, https://doi.org/10.1093/biomet/26.4.404; order statistics: David and Nagaraja 2003, Section 2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import betainccinv

from hubbub._checks import Array, finite, integer, open_unit

__all__ = ["EveryThreshold", "FixedThreshold", "HeldOutThreshold", "Thresholds", "best_merit", "rate_at_most"]

_SLACK = 1 + 1e-12
# Counts 0, 1, 2 each have their own bound; beyond them steps of a tenth. Measured for 200 to 10,000 canaries, this
# beats both all counts (more hypotheses) and steps of a half (counts that are rounded up further).
_FINE, _GROWTH = 2, 1.1


@dataclass(frozen=True)
class EveryThreshold:
    """The best of all thresholds, with bounds that hold for all of them at once."""


@dataclass(frozen=True)
class FixedThreshold:
    """A threshold chosen before the scores were seen: a score of at least ``value`` is guessed present."""

    value: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", finite("value", self.value))


@dataclass(frozen=True)
class HeldOutThreshold:
    """The threshold that does best on a random part of the canaries, judged on the others.

    Args:
        fraction: Which part chooses; at least one canary of each kind is left on either side.
        seed: Draws the part; chosen before the scores were seen.
    """

    fraction: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", open_unit("fraction", self.fraction))
        object.__setattr__(self, "seed", integer("seed", self.seed, at_least=0))


Thresholds = EveryThreshold | FixedThreshold | HeldOutThreshold
Merit = Callable[[Array, Array], Array]


def rate_at_most(count: Array, trials: int, level: float) -> Array:
    """The Clopper–Pearson upper bound on a rate, rounded up; 1 where every trial counted."""
    inner = np.minimum(count, trials - 1)
    bound = np.minimum(betainccinv(inner + 1.0, trials - inner, level) * _SLACK, 1.0)
    return np.where(count >= trials, 1.0, bound)


def best_merit(present: Array, absent: Array, level: float, thresholds: Thresholds, merit: Merit) -> float:
    """The largest merit(FPR at most, FNR at most) over the thresholds; both bounds hold but for a probability ``level``."""
    match thresholds:
        case EveryThreshold():
            return float(np.max(merit(*_simultaneous(present, absent, level))))
        case FixedThreshold(value):
            return float(merit(*_at(np.array([value]), present, absent, level))[0])
        case HeldOutThreshold(fraction, seed):
            rng = np.random.default_rng(seed)
            choosing_present, judging_present = _split("present", present, fraction, rng)
            choosing_absent, judging_absent = _split("absent", absent, fraction, rng)
            candidates = _candidates(choosing_present, choosing_absent)
            promise = merit(*_at(candidates, choosing_present, choosing_absent, level))
            chosen = candidates[[int(np.argmax(promise))]]
            return float(merit(*_at(chosen, judging_present, judging_absent, level))[0])


def _candidates(present: Array, absent: Array) -> Array:
    """Every threshold that makes a difference: the scores, and one above them all."""
    return np.append(np.unique(np.concatenate([present, absent])), math.inf)


def _counts(thresholds: Array, present: Array, absent: Array) -> tuple[Array, Array]:
    """False positives and false negatives of each threshold."""
    positives = absent.size - np.searchsorted(np.sort(absent), thresholds, side="left")
    negatives = np.searchsorted(np.sort(present), thresholds, side="left")
    return positives.astype(np.float64), negatives.astype(np.float64)


def _at(thresholds: Array, present: Array, absent: Array, level: float) -> tuple[Array, Array]:
    """Bounds that hold for one threshold fixed in advance, for each of those given."""
    positives, negatives = _counts(thresholds, present, absent)
    return rate_at_most(positives, absent.size, level / 2), rate_at_most(negatives, present.size, level / 2)


def _simultaneous(present: Array, absent: Array, level: float) -> tuple[Array, Array]:
    """Bounds that hold for all thresholds at once."""
    positives, negatives = _counts(_candidates(present, absent), present, absent)
    share = level / (_grid(absent.size).size + _grid(present.size).size)

    def bound(count: Array, trials: int) -> Array:
        grid = np.append(_grid(trials), trials)
        return rate_at_most(grid, trials, share)[np.searchsorted(grid, count)]

    return bound(positives, absent.size), bound(negatives, present.size)


def _grid(trials: int) -> Array:
    """Counts below ``trials``, a function of that number alone, the largest included."""
    counts = [0]
    while counts[-1] < trials - 1:
        following = counts[-1] + 1 if counts[-1] < _FINE else math.ceil(counts[-1] * _GROWTH)
        counts.append(min(following, trials - 1))
    return np.array(counts, dtype=np.float64)


def _split(name: str, values: Array, fraction: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """A random part of the values, and the others."""
    if values.size < 2:
        raise ValueError(f"{name} holds {values.size} score: a held-out threshold needs at least 2, to choose and to judge")
    first = min(max(round(values.size * fraction), 1), values.size - 1)
    order = rng.permutation(values.size)
    return values[order[:first]], values[order[first:]]
