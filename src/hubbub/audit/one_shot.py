"""An estimate of epsilon from the cosines between canaries and what was released. It is no bound.

Each canary is a random direction, uniform on a sphere. The cosine of an unseen one with the release has mean 0 and variance
1/d, nearly Gaussian for large d; those of the seen ones are fitted by a Gaussian too. Epsilon is that of telling a cosine of
the one law from one of the other.

Letters: P = N(m, s²) and Q = N(0, 1) after scaling; {ln dP/dQ > ε} is where a·x² + b·x + c > 0 with a = ½(1 − 1/s²), b = m/s²,
c = −m²/(2s²) − ln s − ε: one half-line, two, or an interval.

Source: Andrew et al. 2024, "One-shot Empirical Privacy Estimation for Federated Learning", https://arxiv.org/abs/2302.03098.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr

from hubbub._checks import finite, integer, open_unit, positive, scale
from hubbub.audit.bound import scores
from hubbub.roots import bracket, grown

__all__ = ["NormalLaw", "OneShotEstimate", "one_shot_estimate", "two_normals_delta", "two_normals_epsilon"]

_FARTHEST = 1e12


@dataclass(frozen=True)
class NormalLaw:
    """A Gaussian law of scores.

    Args:
        mean: Finite.
        stddev: Above 0.
    """

    mean: float
    stddev: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", finite("mean", self.mean))
        object.__setattr__(self, "stddev", positive("stddev", self.stddev))

    @classmethod
    def of_unseen_cosines(cls, dim: int) -> "NormalLaw":
        """The cosine of a fixed vector with a random direction: mean 0 and variance 1/dim are exact, the shape is not."""
        return cls(0.0, 1 / math.sqrt(integer("dim", dim, at_least=2)))

    @classmethod
    def fitted(cls, name: str, values: npt.ArrayLike) -> "NormalLaw":
        """The mean and the standard deviation (divisor n − 1) of at least two scores that differ; ``name`` is for the error."""
        sample = scores(name, values)
        if sample.size < 2:
            raise ValueError(f"{name} holds {sample.size} score: a spread needs at least 2")
        spread = float(np.std(sample, ddof=1))
        if spread == 0:
            raise ValueError(f"{name} holds {sample.size} scores of {sample[0]}: they must differ, or no Gaussian fits")
        return cls(float(np.mean(sample)), spread)


@dataclass(frozen=True)
class OneShotEstimate:
    """An estimate of epsilon, which may be above or below the truth.

    Args:
        epsilon: The larger of the two directions.
        delta: The delta that it belongs to.
        seen: The law fitted to the cosines of canaries that took part.
        unseen: The law of the others.
    """

    epsilon: float
    delta: float
    seen: NormalLaw
    unseen: NormalLaw

    @property
    def statement(self) -> str:
        """What this is, in words."""
        return (
            f"An estimate, not a bound: epsilon {self.epsilon:.4f} at delta {self.delta:g}, if scores of seen canaries follow "
            f"N({self.seen.mean:.4g}, {self.seen.stddev:.4g}²) and those of unseen ones N({self.unseen.mean:.4g}, "
            f"{self.unseen.stddev:.4g}²). No confidence is attached. Source: Andrew et al. 2024."
        )


def one_shot_estimate(seen: npt.ArrayLike, unseen: NormalLaw, *, delta: float) -> OneShotEstimate:
    """Epsilon as it looks from the cosines of canaries that took part; an estimate, not a bound.

    Args:
        seen: The cosine of each canary that took part with the release.
        unseen: ``NormalLaw.of_unseen_cosines(dim)``, or ``NormalLaw.fitted("unseen", scores)`` where scores are something
            else than one cosine, such as the largest over rounds.
        delta: Strictly between 0 and 1.

    Raises:
        ValueError: Fewer than two scores, scores that are all equal, a number out of range.

    Example:
        >>> import numpy as np
        >>> seen = np.random.default_rng(0).normal(0.01, 0.01, 1000)
        >>> estimate = one_shot_estimate(seen, NormalLaw.of_unseen_cosines(10_000), delta=1e-5)
        >>> 3 < estimate.epsilon < 6
        True

    Source: Andrew et al. 2024, Algorithms 1 and 2, https://arxiv.org/abs/2302.03098.
    """
    if not isinstance(unseen, NormalLaw):
        raise TypeError(f"unseen = {unseen!r}: must be a NormalLaw, such as NormalLaw.of_unseen_cosines(dim)")
    allowed = open_unit("delta", delta)
    law = NormalLaw.fitted("seen", seen)
    epsilon = max(two_normals_epsilon(law, unseen, delta=allowed), two_normals_epsilon(unseen, law, delta=allowed))
    return OneShotEstimate(epsilon, allowed, law, unseen)


def two_normals_delta(p: NormalLaw, q: NormalLaw, *, epsilon: float) -> float:
    """P(S) − e^epsilon·Q(S) for S = {dP/dQ > e^epsilon}: the smallest delta in the direction from P to Q.

    Example:
        >>> round(two_normals_delta(NormalLaw(1.0, 1.0), NormalLaw(0.0, 1.0), epsilon=1.0), 6)
        0.126937
    """
    eps = finite("epsilon", epsilon)
    m = finite("the difference of the means in standard deviations", (p.mean - q.mean) / q.stddev)
    s = scale("the ratio of the standard deviations", p.stddev / q.stddev)
    if abs(m) > _FARTHEST:
        raise ValueError(f"the means differ by {m:g} standard deviations: must be at most {_FARTHEST:g} for float64 to compute")
    delta = 0.0
    for low, high in _favoured(m, s, eps):
        delta += math.exp(_log_mass((low - m) / s, (high - m) / s)) - math.exp(min(eps + _log_mass(low, high), 700.0))
    return max(delta, 0.0)


def two_normals_epsilon(p: NormalLaw, q: NormalLaw, *, delta: float) -> float:
    """The smallest epsilon of at least 0 with :func:`two_normals_delta` at most ``delta``, to about 1e-9.

    Example:
        >>> round(two_normals_epsilon(NormalLaw(1.0, 1.0), NormalLaw(0.0, 1.0), delta=1e-5), 4)
        4.3772
    """
    allowed = open_unit("delta", delta)
    if two_normals_delta(p, q, epsilon=0.0) <= allowed:
        return 0.0

    def holds(epsilon: float) -> bool:
        return two_normals_delta(p, q, epsilon=epsilon) <= allowed

    return bracket(holds, *grown(holds, 0.0, 1.0), within=1e-10)[1]


def _favoured(m: float, s: float, epsilon: float) -> list[tuple[float, float]]:
    """Where ln(dP/dQ) > ε: the intervals on which a·x² + b·x + c is positive."""
    a, b = (1 - s**-2) / 2, m / s**2
    c = -(m**2) / (2 * s**2) - math.log(s) - epsilon
    everything, nothing = [(-math.inf, math.inf)], list[tuple[float, float]]()
    if a == 0:
        if b == 0:
            return everything if c > 0 else nothing
        return [(-c / b, math.inf)] if b > 0 else [(-math.inf, -c / b)]
    discriminant = b * b - 4 * a * c
    if discriminant <= 0:
        return everything if a > 0 else nothing
    # The root without cancellation first; the other one from their product c/a.
    half = -(b + math.copysign(math.sqrt(discriminant), b)) / 2
    low, high = sorted((half / a, c / half))
    return [(-math.inf, low), (high, math.inf)] if a > 0 else [(low, high)]


def _log_mass(low: float, high: float) -> float:
    """ln(Φ(high) − Φ(low)), computed in the tail that is smaller."""
    if low > 0:
        low, high = -high, -low
    upper, lower = float(log_ndtr(high)), float(log_ndtr(low))
    if lower == -math.inf:
        return upper
    gap = -math.expm1(lower - upper)
    return upper + math.log(gap) if gap > 0 else -math.inf
