"""What an audit proved: a number, its confidence, and the assumptions without which it says nothing.

A lower bound errs on the other side than a guarantee: every step here rounds down, so that what is reported as proved is at
most what the theorem gives.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betainccinv

from hubbub._util.checks import Array, finite, open_unit, real_array
from hubbub._util.roots import bracket, grown
from hubbub.mechanism import gaussian

__all__ = [
    "GAUSSIAN_CURVE",
    "EveryThreshold",
    "FixedThreshold",
    "LowerBound",
    "Merit",
    "Thresholds",
    "best_merit",
    "delta_or_zero",
    "epsilon_at_least",
    "largest_rejected",
    "rate_at_most",
    "scores",
    "significance",
]

# Quantiles and tails of scipy.special are right to about 1e-14: this covers them many times over.
_ROUNDING = 1e-12
GAUSSIAN_CURVE = (
    "The epsilon, not the mu, assumes that the trade-off curve is Gaussian, as that of one release with Gaussian noise is, "
    "independent or correlated."
)


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on the privacy loss of what was audited, at a confidence.

    Args:
        epsilon: What was audited is not (ε′, delta)-DP for any ε′ below this one; for a bound with ``mu``, if in addition its
            trade-off curve is Gaussian. 0 where nothing was proved.
        delta: The delta of that claim.
        confidence: The probability, over everything random in the audit, that the claim is true is at least this.
        mu: For the methods that assume a Gaussian trade-off curve: no μ-GDP holds for any μ below this one. ``None`` for
            the methods that assume no curve.
        assumptions: What the theorem needs, one sentence each.
        source: The theorem.
    """

    epsilon: float
    delta: float
    confidence: float
    mu: float | None
    assumptions: tuple[str, ...]
    source: str

    @property
    def statement(self) -> str:
        """The claim in words, with its confidence and every assumption."""
        if self.mu is None:
            claim = f"(epsilon, {self.delta!r})-DP fails for every epsilon below {_below(self.epsilon)}"
        else:
            claim = (
                f"mu-GDP fails for every mu below {_below(self.mu)}; a Gaussian trade-off curve with that mu has "
                f"epsilon {_below(self.epsilon)} at delta {self.delta!r}"
            )
        given = " ".join(self.assumptions)
        return f"With confidence {self.confidence:.10g}: {claim}. Assumed: {given} Source: {self.source}."


def _below(value: float) -> str:
    """Four decimals, rounded down."""
    return f"{math.floor(value * 1e4) / 1e4:.4f}"


def significance(confidence: object) -> float:
    """The probability with which a bound may be wrong, rounded down.

    Example:
        >>> 0.05 - 1e-12 < significance(0.95) < 0.05
        True
    """
    return (1 - open_unit("confidence", confidence)) * (1 - _ROUNDING)


def scores(name: str, value: npt.ArrayLike) -> Array:
    """A read-only float64 vector of finite numbers; text, truth values and complex numbers are refused by name."""
    kind = np.asarray(value).dtype.kind
    if kind not in "fiu" and np.asarray(value).size:
        raise TypeError(f"{name} holds values of kind {np.asarray(value).dtype}: must be a sequence of numbers")
    return real_array(name, value, ndim=1)


def delta_or_zero(value: object) -> float:
    """A delta, zero allowed.

    Raises:
        ValueError: Below 0, 1 or more, or not finite.
    """
    number = finite("delta", value)
    if not 0 <= number < 1:
        raise ValueError(f"delta = {value!r}: must be at least 0 and below 1")
    return number


def epsilon_at_least(mu: float, delta: float) -> float:
    """The epsilon at ``delta`` of a Gaussian trade-off curve, rounded down.

    ``gaussian.epsilon`` rounds up, so its answer is stepped down until the exact delta at it is clearly above ``delta``: then
    the true epsilon is not below what is returned.

    Example:
        >>> epsilon_at_least(1.0, 1e-6) < gaussian.epsilon(1e-6, noise_multiplier=1.0) < epsilon_at_least(1.0, 1e-6) + 1e-6
        True

    Source: Dong, Roth and Su 2022, Corollary 2.13, https://arxiv.org/abs/1905.02383.
    """
    open_unit("delta", delta)
    if mu < 1e-9:
        return 0.0
    noise_multiplier = 1 / (mu * (1 - _ROUNDING))
    epsilon = gaussian.epsilon(delta=delta, noise_multiplier=noise_multiplier)
    step = _ROUNDING * epsilon
    while epsilon > 0 and gaussian.delta(epsilon=epsilon, noise_multiplier=noise_multiplier) < delta * (1 + 1e-9):
        epsilon, step = epsilon - step, 2 * step
    return max(epsilon, 0.0)


def largest_rejected(rejects: Callable[[float], bool]) -> float:
    """A parameter that the test rejects, within 1e-9 (relative) of the largest; 0 where it does not reject 0.

    A private mechanism stays so for every larger parameter, so that one rejected value disproves all below it.

    Example:
        >>> round(largest_rejected(lambda epsilon: epsilon < 2.5), 6)
        2.5
    """
    if not rejects(0.0):
        return 0.0
    below, kept = grown(lambda parameter: not rejects(parameter), 0.0, 1.0)
    return bracket(rejects, fails_at=kept, holds_at=below, within=1e-9)[1]


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


Thresholds = EveryThreshold | FixedThreshold
Merit = Callable[[Array, Array], Array]


def rate_at_most(count: Array, trials: int, level: float) -> Array:
    """The Clopper–Pearson upper bound on a rate, rounded up; 1 where every trial counted.

    Example:
        >>> rate_at_most(np.array([0.0, 50.0, 100.0]), trials=100, level=0.05).round(3).tolist()
        [0.03, 0.586, 1.0]
    """
    inner = np.minimum(count, trials - 1)
    bound = np.minimum(betainccinv(inner + 1.0, trials - inner, level) * (1 + _ROUNDING), 1.0)
    return np.where(count >= trials, 1.0, bound)


def best_merit(present: Array, absent: Array, level: float, thresholds: Thresholds, merit: Merit) -> float:
    """The largest merit(FPR at most, FNR at most) over the thresholds; both bounds hold but for a probability ``level``."""
    match thresholds:
        case FixedThreshold(value):
            at = np.array([value])

            def bound(count: Array, trials: int) -> Array:
                return rate_at_most(count, trials, level / 2)

        case EveryThreshold():
            # Every threshold that makes a difference: the scores, and one above them all. Bounds hold for all at once.
            at = np.append(np.unique(np.concatenate([present, absent])), math.inf)
            share = level / (_grid(absent.size).size + _grid(present.size).size)

            def bound(count: Array, trials: int) -> Array:
                grid = np.append(_grid(trials), trials)
                return rate_at_most(grid, trials, share)[np.searchsorted(grid, count)]

    positives = (absent.size - np.searchsorted(np.sort(absent), at, side="left")).astype(np.float64)
    negatives = np.searchsorted(np.sort(present), at, side="left").astype(np.float64)
    return float(np.max(merit(bound(positives, absent.size), bound(negatives, present.size))))


def _grid(trials: int) -> Array:
    """Counts below ``trials``, a function of that number alone, the largest included."""
    counts = [0]
    while counts[-1] < trials - 1:
        following = counts[-1] + 1 if counts[-1] < _FINE else math.ceil(counts[-1] * _GROWTH)
        counts.append(min(following, trials - 1))
    return np.array(counts, dtype=np.float64)
