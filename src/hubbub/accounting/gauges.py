"""About which noise, how many rounds or which sampling a cost belongs to: where a search starts, never what it answers.

Letters: n rounds, q sampling probability, z noise multiplier, μ of the Gaussian whose cost is as high.

Source: the central limit μ = q·√(n·(e^{1/z²} − 1)) of Bu, Dong, Long and Su 2020, https://arxiv.org/abs/1911.11607, which is
no bound; of one round alone, Balle, Barthe and Gaboardi 2018, Theorem 8, https://arxiv.org/abs/1807.01647.
"""

import math

from hubbub import gaussian
from hubbub.accounting.events import (
    BallsInBins,
    DiscreteGaussianShares,
    Event,
    FixedSizeSampled,
    Gaussian,
    MixtureOfGaussians,
    PoissonSampled,
    TreeAggregation,
    TruncatedPoissonSampled,
)

__all__ = ["log_noise", "log_rounds", "log_whole"]

# Beyond these epsilon no Gaussian is asked for.
_LEAST, _MOST = 1e-12, 1e12


def log_whole(epsilon: float, delta: float) -> float | None:
    """−ln μ of the one Gaussian release that costs ``epsilon``; ``None`` where no float does."""
    return math.log(gaussian.noise_multiplier(epsilon, delta)) if _LEAST <= epsilon <= _MOST else None


def log_noise(event: Event, rounds: int, relation: str, epsilon: float, delta: float) -> float | None:
    """About ln z with which that many events cost ``epsilon``."""
    whole = log_whole(epsilon, delta)
    if whole is None:
        return None
    q, steps, doubled = _sampling(event, rounds)
    unsampled = whole + math.log(steps) / 2
    factor = math.log(2) if doubled or relation == "replace-one" else 0.0
    if q == 1:
        return unsampled + factor
    ratio = -whole - math.log(q) - math.log(steps) / 2
    # ln(1 + ratio²) without overflow.
    limit = -math.log(max(math.log1p(math.exp(2 * ratio)) if ratio < 300 else 2 * ratio, 1e-300)) / 2
    alone = _alone(q, epsilon, delta)
    top = max(limit, alone)
    # Both count; the third power is what fits.
    both = top + math.log(math.exp(3 * (limit - top)) + math.exp(3 * (alone - top))) / 3
    return min(unsampled, both) + factor


def _sampling(event: Event, rounds: int) -> tuple[float, int, bool]:
    """The chance of a unit to be in a step, how many steps there are, and whether the cohort's size doubles the sensitivity."""
    match event:
        case Gaussian() | TreeAggregation() | DiscreteGaussianShares():
            return 1.0, rounds, False
        case PoissonSampled(_, q) | TruncatedPoissonSampled(_, q):
            return q, rounds, False
        case FixedSizeSampled():
            return event.sampling_probability, rounds, True
        case MixtureOfGaussians(_, sensitivities, probabilities):
            return max(p for p, s in zip(probabilities, sensitivities, strict=True) if s), rounds, False
        case BallsInBins(_, bins, steps):
            return 1 / bins, rounds * steps, False


def _alone(q: float, epsilon: float, delta: float) -> float:
    """ln z with which one sampled round costs ``epsilon``; more rounds need more."""
    inside = epsilon - math.log(q) if epsilon > 30 else math.log1p(math.expm1(epsilon) / q)
    if delta >= q or not _LEAST <= inside <= _MOST:
        return -math.inf
    return math.log(gaussian.noise_multiplier(inside, delta / q))


def log_rounds(event: Event, relation: str, epsilon: float, delta: float) -> float:
    """About ln n with which n such events cost ``epsilon``."""
    whole = log_whole(epsilon, delta)
    q, steps, doubled = _sampling(event, 1)
    z = event.noise_multiplier / (2 if doubled or relation == "replace-one" else 1)
    inverse = min(z**-2, 1e300)
    per_round = math.log(inverse) if q == 1 else 2 * math.log(q) + (math.log(math.expm1(inverse)) if inverse < 700 else inverse)
    return (0.0 if whole is None else -2 * whole) - per_round - math.log(steps)
