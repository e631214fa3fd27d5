"""Lower bounds on epsilon, each with its confidence and assumptions: the value, and the bounds from scores of canaries.

Under (ε, δ)-DP a test's error rates satisfy 1 − FNR ≤ e^ε·FPR + δ and 1 − FPR ≤ e^ε·FNR + δ; under μ-GDP they satisfy
FNR ≥ Φ(Φ⁻¹(1 − FPR) − μ). Upper bounds on both rates turn each into a lower bound on ε or on μ. Every step rounds down, so
that a reported bound is at most that of the theorem.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betainccinv, ndtri

from hubbub._util import rounded_down
from hubbub._util.checks import Array, as_array, finite, number, open_unit, real_array
from hubbub._util.roots import bracket, grown
from hubbub.mechanism import gaussian

# Quantiles and tails of scipy.special are right to about 1e-14.
_ROUNDING = 1e-12
_GAUSSIAN_CURVE = (
    "The epsilon, not the mu, assumes that the trade-off curve is Gaussian, as that of one release with Gaussian noise is, "
    "independent or correlated."
)


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on the privacy loss of the audited system, at a confidence.

    Args:
        epsilon: The system is not (ε′, delta)-DP for any ε′ below this one; with ``mu``, if its trade-off curve is Gaussian.
            0 if nothing was proved.
        delta: The delta of that claim.
        confidence: A lower bound on the probability that the claim is true, over all randomness of the audit.
        mu: The system is not μ′-GDP for any μ′ below this one; ``None`` for methods that assume no Gaussian curve.
        assumptions: The assumptions of the theorem, one sentence each.
        source: The theorem.

    Example:
        >>> bound = gdp_epsilon([5.0, 6.0, 7.0] * 40, [0.0, 1.0, 2.0] * 40, delta=1e-5, confidence=0.95)
        >>> bound.epsilon > 1, bound.statement.partition(":")[0]
        (True, 'With confidence 0.95')
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
            claim = f"(epsilon, {self.delta!r})-DP fails for every epsilon below {rounded_down(self.epsilon, 4)}"
        else:
            claim = (
                f"mu-GDP fails for every mu below {rounded_down(self.mu, 4)}; a Gaussian trade-off curve with that mu has "
                f"epsilon {rounded_down(self.epsilon, 4)} at delta {self.delta!r}"
            )
        given = " ".join(self.assumptions)
        return f"With confidence {self.confidence!r}: {claim}. Assumed: {given} Source: {self.source}."


def significance(confidence: object) -> float:
    """The allowed probability of a wrong bound, rounded down.

    Example:
        >>> 0.05 - 1e-12 < significance(0.95) < 0.05
        True
    """
    return (1 - open_unit("confidence", confidence)) * (1 - _ROUNDING)


def scores(name: str, value: npt.ArrayLike, *, may_be_empty: bool = False) -> Array:
    """A read-only float64 vector of finite numbers; text, truth values and complex numbers are refused by name."""
    array = as_array(name, value)
    if array.dtype.kind not in "fiu" and array.size:
        raise TypeError(f"{name} holds values of kind {array.dtype}: must be a sequence of numbers")
    return np.zeros(0) if may_be_empty and array.shape == (0,) else real_array(name, value, ndim=1)


def delta_or_zero(value: object) -> float:
    """A delta, zero allowed."""
    return number("delta", value, lambda x: 0 <= x < 1, "be at least 0 and below 1")


def epsilon_at_least(mu: float, delta: float) -> float:
    """The epsilon at ``delta`` of a Gaussian trade-off curve, rounded down.

    ``gaussian.epsilon`` rounds up; its result is lowered until the exact delta there is clearly above ``delta``.

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


def gaussian_bound(mu: float, delta: float, confidence: float, assumed: tuple[str, ...], source: str) -> LowerBound:
    """The bound of a μ that was proved by a theorem under its assumptions, with its epsilon if the curve is Gaussian."""
    source = f"{source}; Dong, Roth and Su 2022, Corollary 2.13"
    return LowerBound(epsilon_at_least(mu, delta), delta, float(confidence), mu, (*assumed, _GAUSSIAN_CURVE), source)


def largest_rejected(rejects: Callable[[float], bool]) -> float:
    """The largest parameter that the test rejects, to 1e-9 (relative) and rounded down; 0 if it does not reject 0.

    A mechanism that is private for a parameter is so for every larger one: one rejected value disproves all below it.

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
    """The best of all thresholds, with bounds that hold for all of them together.

    Example:
        >>> bound = clopper_pearson_epsilon([3.0] * 99, [0.0] * 99, delta=0.0, confidence=0.9, thresholds=EveryThreshold())
        >>> bound.epsilon > 2
        True
    """


@dataclass(frozen=True)
class FixedThreshold:
    """A threshold chosen before the scores were seen: a score of at least ``value`` counts as present.

    Example:
        >>> bound = clopper_pearson_epsilon([3.0] * 99, [0.0] * 99, delta=0.0, confidence=0.9, thresholds=FixedThreshold(1.0))
        >>> bound.epsilon > 3
        True
    """

    value: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", finite("value", self.value))


Thresholds = EveryThreshold | FixedThreshold
Merit = Callable[[Array, Array], Array]


def rate_at_most(count: Array, trials: int, level: float) -> Array:
    """The Clopper–Pearson upper bound on a rate, rounded up; 1 if every trial counted."""
    inner = np.minimum(count, trials - 1)
    bound = np.minimum(betainccinv(inner + 1.0, trials - inner, level) * (1 + _ROUNDING), 1.0)
    return np.where(count >= trials, 1.0, bound)


def best_merit(present: Array, absent: Array, level: float, thresholds: Thresholds, merit: Merit) -> float:
    """The largest merit(FPR at most, FNR at most) over the thresholds; both bounds hold except with probability ``level``."""
    match thresholds:
        case FixedThreshold(value):
            at = np.array([value])

            def bound(count: Array, trials: int) -> Array:
                return rate_at_most(count, trials, level / 2)

        case EveryThreshold():
            # The scores, and one threshold above them all: no other makes a difference.
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


_INDEPENDENT = (
    "The scores of present canaries are independent and of one law, so are those of absent canaries (several runs with one "
    "canary each, or one run whose canaries do not influence one another)."
)


def clopper_pearson_epsilon(
    present: npt.ArrayLike,
    absent: npt.ArrayLike,
    *,
    delta: float,
    confidence: float,
    thresholds: Thresholds = EveryThreshold(),
) -> LowerBound:
    """A lower bound on epsilon from the scores of canaries; no shape of the trade-off curve is assumed.

    Args:
        present: One score for each canary that took part; larger means "looks present".
        absent: One score for each canary that did not.
        delta: At least 0 and below 1.
        confidence: Strictly between 0 and 1.
        thresholds: ``EveryThreshold()`` (the default) covers a threshold chosen after seeing the scores,
            ``FixedThreshold(...)`` does not.

    Raises:
        ValueError: A score that is not finite, no score, a number out of range.
        TypeError: A value that is not a number.

    Example:
        >>> import numpy as np
        >>> present, absent = np.arange(200) + 150.0, np.arange(200.0)
        >>> round(clopper_pearson_epsilon(present, absent, delta=1e-5, confidence=0.95).epsilon, 2)
        2.87

    Source: Jagielski, Ullman and Oprea 2020, Section 3, https://arxiv.org/abs/2006.07709; both directions: Nasr et al. 2021,
    https://arxiv.org/abs/2101.04535.
    """
    allowed = delta_or_zero(delta)

    def merit(fpr: Array, fnr: Array) -> Array:
        return np.maximum(_epsilon(fpr, fnr, allowed), _epsilon(fnr, fpr, allowed))

    epsilon, assumed = _best(present, absent, confidence, thresholds, merit)
    source = "Clopper and Pearson 1934; Jagielski, Ullman and Oprea 2020, Section 3"
    return LowerBound(max(epsilon, 0.0), allowed, float(confidence), mu=None, assumptions=assumed, source=source)


def gdp_epsilon(
    present: npt.ArrayLike,
    absent: npt.ArrayLike,
    *,
    delta: float,
    confidence: float,
    thresholds: Thresholds = EveryThreshold(),
) -> LowerBound:
    """A lower bound on μ from the scores of canaries, and its epsilon if the trade-off curve is Gaussian.

    The sharpest of the methods under that assumption. The bound on μ does not need it.

    Args:
        present: One score for each canary that took part; larger means "looks present".
        absent: One score for each canary that did not.
        delta: Strictly between 0 and 1.
        confidence: Strictly between 0 and 1.
        thresholds: As for :func:`clopper_pearson_epsilon`.

    Raises:
        ValueError: A score that is not finite, no score, a number out of range.
        TypeError: A value that is not a number.

    Example:
        >>> import numpy as np
        >>> present, absent = np.arange(200) + 150.0, np.arange(200.0)
        >>> round(gdp_epsilon(present, absent, delta=1e-5, confidence=0.95).mu, 2)
        2.14

    Source: Nasr et al. 2023, Section 4, https://arxiv.org/abs/2302.07956.
    """
    allowed = open_unit("delta", delta)

    best, assumed = _best(present, absent, confidence, thresholds, lambda fpr, fnr: np.asarray(-ndtri(fpr) - ndtri(fnr)))
    return gaussian_bound(max(best * (1 - 1e-12), 0.0), allowed, confidence, assumed, "Nasr et al. 2023, Section 4")


def _epsilon(fpr: Array, fnr: Array, delta: float) -> Array:
    """ln((1 − FNR − δ)/FPR), rounded down; 0 if the numerator is not positive."""
    hits = np.maximum(1 - fnr - delta - 1e-15, 0.0)
    return np.asarray(np.log(np.maximum(hits * (1 - 1e-12) / fpr, 1.0)))


def _best(
    present: npt.ArrayLike, absent: npt.ArrayLike, confidence: float, thresholds: object, merit: Merit
) -> tuple[float, tuple[str, ...]]:
    """The largest merit over the thresholds, and its assumptions."""
    if not isinstance(thresholds, EveryThreshold | FixedThreshold):
        raise TypeError(f"thresholds = {thresholds!r}: must be EveryThreshold() or FixedThreshold(value)")
    best = best_merit(scores("present", present), scores("absent", absent), significance(confidence), thresholds, merit)
    if isinstance(thresholds, FixedThreshold):
        return best, (_INDEPENDENT, f"The threshold {thresholds.value!r} was chosen before any score was seen.")
    return best, (_INDEPENDENT,)
