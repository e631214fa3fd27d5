"""Which laws of privacy loss stand behind an event under a neighboring relation."""

import math
from dataclasses import replace

import numpy as np
from scipy.special import betainc, betaincc

from hubbub.accounting import balls_in_bins
from hubbub.accounting.events import (
    BallsInBins,
    DiscreteGaussianShares,
    Event,
    FixedSizeSampled,
    Gaussian,
    MixtureOfGaussians,
    NeighboringRelation,
    PoissonSampled,
    TreeAggregation,
    TruncatedPoissonSampled,
)
from hubbub.accounting.mixtures import MixturePair
from hubbub.accounting.pairs import Blend, Law, LossLaw, LossPair, Pair
from hubbub.accounting.trees import as_gaussian

__all__ = ["directions", "unamplified_mu"]

# Chances of truncation are raised by this part of 1, so that their rounding does not lower a profile.
_ROUNDING = 1e-9
_LEAST_CHANCE = 1e-14
# Of the sizes of a cohort that is cut; few where there is next to no noise, as dozens of laws take seconds.
_RANGES, _FEW_RANGES, _LARGEST_SHIFT = 24, 8, 100.0


def directions(event: Event, relation: NeighboringRelation) -> tuple[LossLaw, LossLaw]:
    """The laws of the loss with the record against without, and the reverse; equal where the two are symmetric.

    Raises:
        ValueError: An event of which no law is known, only Rényi divergences.
    """
    match event:
        case Gaussian(z):
            return _both(_one(Pair(1.0, (2 if relation == "replace-one" else 1) / z, 0.0)))
        case PoissonSampled(z, q):
            return _poisson(q, 1 / z, relation)
        case FixedSizeSampled(z):
            return _fixed_size(event.sampling_probability, 1 / z, relation)
        case TruncatedPoissonSampled():
            return _truncated(event, relation)
        case TreeAggregation():
            return directions(as_gaussian(event), relation)
        case MixtureOfGaussians(z, sensitivities, probabilities):
            shifts = tuple(sensitivity / z for sensitivity in sensitivities)
            mixed = MixturePair(probabilities, shifts, mirrored=relation == "replace-one")
            return _both(_one(mixed)) if mixed.mirrored else (_one(mixed), _one(replace(mixed, reverse=True)))
        case BallsInBins():
            return balls_in_bins.directions(event, relation)
        case DiscreteGaussianShares():
            raise ValueError(f"{event}: has no law of loss that is known, only Rényi divergences; use accountant = 'rdp'")


def unamplified_mu(event: Event, relation: NeighboringRelation) -> float:
    """μ of the Gaussian release that an event is to an adversary who sees the coins: a bound, by joint quasi-convexity.

    With the cohort seen, a record moves the sum by at most C where zero takes its place, and by 2C where another record does.

    Raises:
        ValueError: An event whose noise is no Gaussian.
    """
    factor = 2.0 if relation == "replace-one" else 1.0
    match event:
        case Gaussian(z) | PoissonSampled(z):
            return factor / z
        case FixedSizeSampled(z) | TruncatedPoissonSampled(z):
            return (1 if relation == "zero-out" else 2) / z
        case MixtureOfGaussians(z, sensitivities):
            return factor * max(sensitivities) / z
        case BallsInBins(z, bins, rounds):
            return factor * math.sqrt(math.ceil(rounds / bins)) / z
        case TreeAggregation():
            return factor / as_gaussian(event).noise_multiplier
        case DiscreteGaussianShares():
            raise ValueError(f"{event}: a sum of discrete Gaussians is no Gaussian, and has no mu")


def _one(pair: LossPair) -> Law:
    return Law(pair, pair)


def _both(law: LossLaw) -> tuple[LossLaw, LossLaw]:
    return law, law


def _reverse(pair: Pair) -> Pair:
    return Pair(pair.q, pair.a, pair.b, not pair.reverse)


def _poisson(q: float, shift: float, relation: NeighboringRelation) -> tuple[LossLaw, LossLaw]:
    if relation == "replace-one":
        return _both(_one(Pair(q, shift, -shift)))
    pair = Pair(q, shift, 0.0)
    return _one(pair), _one(_reverse(pair))


def _fixed_size(q: float, shift: float, relation: NeighboringRelation) -> tuple[LossLaw, LossLaw]:
    displaced = Pair(q, 2 * shift, 0.0)
    match relation:
        case "add-or-remove-one":
            return _one(displaced), _one(_reverse(displaced))
        case "replace-one":
            return _both(Law(upper=displaced, lower=_reverse(displaced)))
        case "zero-out":
            present, alone = Pair(q, 2 * shift, shift), Pair(q, shift, 0.0)
            return Law(present, _reverse(alone)), Law(alone, _reverse(present))


def _truncated(event: TruncatedPoissonSampled, relation: NeighboringRelation) -> tuple[LossLaw, LossLaw]:
    """Where the others fill the cohort, a member takes another's place, as in a cohort of a fixed size; else it just joins.

    The number of others is the same with and without the record, so an adversary may see it. Where there are M ≥ B of them the
    record is in with probability q·B/(M + 1).
    """
    # A cap that is never reached is none.
    q, most, others = event.sampling_probability, min(event.max_cohort_size, event.population), event.population - 1
    shift = 1 / event.noise_multiplier
    laws, weights = [_poisson(q, shift, relation)], [_rounded_up(_either_side(most, others, q)[0])]
    for low, high in _bins(q, most, others, _RANGES if shift <= _LARGEST_SHIFT else _FEW_RANGES):
        laws.append(_fixed_size(q * most / (low + 1), shift, relation))
        (left, beyond), (right, rest) = _either_side(low, others, q), _either_side(high, others, q)
        # On the side of the smaller ones a difference loses fewer digits.
        weights.append(_rounded_up(right - left if right < beyond else beyond - rest))
    first, second = (Blend(tuple(weights), side) for side in zip(*laws, strict=True))
    return _both(first) if relation == "replace-one" else (first, second)


def _bins(q: float, most: int, others: int, ranges: int) -> list[tuple[int, int]]:
    """Numbers of others from ``most`` on in a few ranges, where they are likely; each law takes the least of its range."""
    if others < most:
        return []
    mean, deviation = others * q, math.sqrt(others * q * (1 - q))
    low, high = (max(most, min(others, math.ceil(mean + k * deviation))) for k in (-6, 5))
    starts = sorted({most, *np.linspace(low, high, ranges + 1).astype(int).tolist()})
    return list(zip(starts, [*starts[1:], others + 1], strict=True))


def _either_side(count: int, others: int, q: float) -> tuple[float, float]:
    """The chances of fewer than ``count`` ≥ 1 others in the cohort, and of as many or more, each to 1e-10 of itself.

    Of the incomplete beta functions scipy's ``bdtr`` and ``bdtrc`` are off by half of themselves for 10⁸ others.
    """
    if count > others:
        return 1.0, 0.0
    below = float(betaincc(count, others - count + 1, q))
    return below, 1 - below if below < 0.5 else float(betainc(count, others - count + 1, q))


def _rounded_up(chance: float) -> float:
    if not -_ROUNDING <= chance <= 1 + _ROUNDING:
        raise ArithmeticError(f"chance = {chance!r}: the binomial law of the cohort's size could not be computed")
    return min(1.0, max(0.0, chance) * (1 + _ROUNDING) + _LEAST_CHANCE)
