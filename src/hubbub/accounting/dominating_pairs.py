"""Which laws of privacy loss stand behind an event under a neighboring relation.

**Mixtures.** The pair that dominates a release in which a unit contributes more or less by chance: P_± = Σ pᵢ·N(±sᵢ, 1): with
probability pᵢ the unit moves the sum by sᵢ standard deviations. Without the unit it is N(0, 1); under replace-one another unit
may move it as far the other way. As for two contributions (:mod:`hubbub.accounting.pairs`), Neyman and Pearson bound the masses
of any set under each N(sᵢ u) by those of a half-line, all at once, so that the pair dominates whatever the direction and the
size, up to sᵢ, of each contribution.

**Trees** as one Gaussian release. A tree over T rounds releases C·x plus noise of the same size in every node, where C has a
row for each dyadic interval of rounds. The rounds come one after the other and may be chosen by what was released before; C is
lower triangular up to the order of its rows, so that this is a single Gaussian release of sensitivity that of C (Denisov et al.
2022, Theorem 2.1). A unit of one participation lies in the ⌈log₂(T+1)⌉ intervals around the first round, so a tree of one epoch
costs ρ = ⌈log₂(T+1)⌉/(2z²); after a restart the next tree is another release.

Source: mixtures: Choquette-Choo et al. 2023, "Privacy Amplification for Matrix Mechanisms", https://arxiv.org/abs/2310.15526;
trees: Kairouz et al. 2021, Appendix D, https://arxiv.org/abs/2103.00039; adaptivity: Denisov et al. 2022,
https://arxiv.org/abs/2202.08312.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
from scipy.special import betainc, betaincc, ndtr

from hubbub._util.checks import Array
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
from hubbub.accounting.pairs import LOW_TAIL, Blend, Law, LossLaw, LossPair, Pair, between
from hubbub.mechanism.participation import MinSeparation

# Where a Newton step leaves its bracket, that is halved; this many halvings leave nothing of any.
_STEPS = 200
# Of the line: beyond it no law has mass.
_FARTHEST = 1e6
# Of a loss, over the terms that it is made of; of a mass, over the square of where it begins, in standard deviations.
_LOSS_ROUNDING = 2.0**-50


@dataclass(frozen=True)
class _MixturePair(LossPair):
    """P_+ against N(0, 1), or against P_− where ``mirrored``."""

    probabilities: tuple[float, ...]
    shifts: tuple[float, ...]
    mirrored: bool

    def losses(self, x: Array) -> Array:
        return self._losses(x)[0]

    def _losses(self, x: Array) -> tuple[Array, Array, Array]:
        """The losses, their derivatives, and by how much rounding may have moved them."""
        value, slope, error = self._log_ratio(x)
        if not self.mirrored:
            return value, slope, error
        other, other_slope, other_error = self._log_ratio(-x)
        return value - other, slope + other_slope, error + other_error

    def _log_ratio(self, x: Array) -> tuple[Array, Array, Array]:
        """ln P_+ / N(0, 1), its derivative and its error."""
        s, logs = np.array(self.shifts), np.log(np.array(self.probabilities))
        exponents = np.multiply.outer(x, s) + (logs - s**2 / 2)
        top = exponents.max(axis=-1)
        weights = np.exp(exponents - top[..., None])
        total = weights.sum(axis=-1)
        slope = weights @ s / total
        # Only the terms that weigh anything.
        terms = np.abs(x) * slope + weights @ (s**2 / 2 - logs) / total
        return top + np.log(total), slope, _LOSS_ROUNDING * (1 + terms)

    def arguments(self, losses: Array) -> Array:
        """The x at which each of increasing losses is taken, by Newton's steps inside brackets; −∞ below the least one."""
        answer = np.full(len(losses), -np.inf)
        # The loss that all others exceed, from below.
        still = math.fsum(p for p, s in zip(self.probabilities, self.shifts, strict=True) if s == 0)
        least = -math.inf if self.mirrored or still == 0 else math.log(still) * (1 + _LOSS_ROUNDING) - _ROUNDING
        taken = losses > least
        wanted = losses[taken]
        if not len(wanted):
            return answer
        # Points between which all of them are taken.
        low, high = np.array([-1.0]), np.array([1.0])
        while self.losses(high)[0] < float(wanted[-1]):
            high *= 2
        while self.losses(low)[0] > float(wanted[0]) and low[0] > -_FARTHEST:
            low *= 2
        grid = np.linspace(low[0], high[0], min(8 * len(wanted), 2048))
        known = self.losses(grid)
        at = np.clip(np.searchsorted(known, wanted), 1, len(grid) - 1)
        low, high, found = grid[at - 1], grid[at], np.interp(wanted, known, grid)
        left = np.arange(len(wanted))
        for _ in range(_STEPS):
            x = found[left]
            value, slope, error = self._losses(x)
            short = wanted[left] - value
            low[left], high[left] = np.where(short > 0, x, low[left]), np.where(short > 0, high[left], x)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                newton = x + short / slope
            inside = (newton >= low[left]) & (newton <= high[left])
            found[left] = np.where(inside, newton, (low[left] + high[left]) / 2)
            left = left[(np.abs(short) > error) & (found[left] != x)]
            if not len(left):
                break
        answer[taken] = found
        return answer

    def extremes(self, log_tail: float) -> tuple[float, float]:
        high, low = math.sqrt(-2 * log_tail), math.sqrt(-2 * max(log_tail, LOW_TAIL))
        # Of each part at most its share of the tail lies beyond; a part that is rarer than that may lie there wholly.
        room = [math.log(p * len(self.shifts)) - log_tail for p in self.probabilities]
        most = max(s + math.sqrt(2 * r) for s, r in zip(self.shifts, room, strict=True) if r > 0)
        if self.reverse:
            below, above = -self.losses(np.array([low, -most if self.mirrored else -high]))
        else:
            below, above = self.losses(np.array([-low, most]))
        return float(below), float(above)

    def between(self, x: Array) -> tuple[Array, Array]:
        mixture = list(zip(self.probabilities, self.shifts, strict=True))
        first = np.asarray(sum(p * between(x - s) for p, s in mixture))
        return first, np.asarray(sum(p * between(x + s) for p, s in mixture)) if self.mirrored else between(x)

    def above(self, loss: float) -> tuple[float, float]:
        side, wanted = (-1.0, -loss) if self.reverse else (1.0, loss)
        x = self.arguments(np.array([wanted]))
        if math.isinf(x[0]):
            # Below all losses.
            return (0.0, 0.0) if self.reverse else (1.0, 1.0)
        value, slope, error = (float(of[0]) for of in self._losses(x))
        wrong = abs(value - wanted) + error
        # Between x and the point where the loss is taken, wherever that lies, the first density exceeds e^loss times the second
        # by a factor of at most e^wrong. It lies on this side of a point whose loss is beyond doubt.
        beyond = x - side * min(4 * wrong / max(slope, 1e-290), _FARTHEST)
        there, _, doubt = (float(of[0]) for of in self._losses(beyond))
        doubtful = float(beyond[0]) if side * (wanted - there) >= doubt else -side * math.inf
        one, other = (0.0, 1.0) if self.reverse else (1.0, -1.0 if self.mirrored else 0.0)
        missed = math.expm1(wrong) * self._tail(doubtful, one, side, 1) if wrong < 1 else 1.0
        return self._tail(float(x[0]), one, side, 1) + missed, self._tail(float(x[0]), other, side, -1)

    def _tail(self, x: float, sign: float, side: float, up: int) -> float:
        """The mass of Σ pᵢ·N(sign·sᵢ, 1) beyond x, on the right for side 1, the left for −1; rounded up, or down (−1)."""
        whole, parts = math.fsum(self.probabilities), []
        for p, s in zip(self.probabilities, self.shifts, strict=True):
            t = side * (sign * s - x)
            # Φ loses precision with the square of how far out it is.
            out = min(t, 0.0)
            parts.append(p * float(ndtr(t)) * max(0.0, 1 + up * (_LOSS_ROUNDING * (16 + out * (out - s)) + abs(whole - 1))))
        return math.fsum(parts)


def as_gaussian(event: TreeAggregation) -> Gaussian:
    """The single Gaussian release that costs as much as the tree.

    Args:
        event: The tree. Its sensitivity is exact, but for thousands of participations a few rounds apart, where it is a bound.
    """
    squared = _squared_sensitivity(event.rounds, event.min_separation, event.max_participations)
    return Gaussian(event.noise_multiplier / math.sqrt(squared))


@lru_cache(maxsize=256)
def _squared_sensitivity(rounds: int, min_separation: int, max_participations: int) -> int:
    """Of hundreds of participations it takes seconds, and a search asks for the same tree again and again."""
    from hubbub.mechanism.strategies import BinaryTree

    return round(BinaryTree(rounds).sensitivity(MinSeparation(min_separation, max_participations)).value ** 2)


# Chances of truncation are raised by this part of 1, so that their rounding does not lower a profile.
_ROUNDING = 1e-9
_LEAST_CHANCE = 1e-14
# Of the sizes of a cohort that is cut; few where there is next to no noise, as dozens of laws take seconds.
_RANGES, _FEW_RANGES, _LARGEST_SHIFT = 24, 8, 100.0


def directions(event: Event, relation: NeighboringRelation) -> tuple[LossLaw, LossLaw]:
    """The laws of the loss with the record against without, and the reverse; equal where the two are symmetric."""
    match event:
        case Gaussian(z):
            return _back_and_forth(Pair(1.0, (2 if relation == "replace-one" else 1) / z, 0.0), symmetric=True)
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
            mirrored = relation == "replace-one"
            return _back_and_forth(_MixturePair(probabilities, shifts, mirrored), symmetric=mirrored)
        case BallsInBins():
            return balls_in_bins.directions(event, relation)
        case DiscreteGaussianShares():
            raise ValueError(f"{event}: has no law of loss that is known, only Rényi divergences; use accountant = 'rdp'")


def mu_squared(event: Event, relation: NeighboringRelation) -> Fraction:
    """μ², exactly, of the Gaussian release that an event is to an adversary who knows participation: a bound.

    With the cohort seen, a record moves the sum by at most C where zero takes its place, and by 2C where another record does.
    """
    moved, releases = 2.0 if relation == "replace-one" else 1.0, 1
    match event:
        case Gaussian() | PoissonSampled():
            pass
        case FixedSizeSampled() | TruncatedPoissonSampled():
            # In the cohort a record takes the place of another.
            moved = 1.0 if relation == "zero-out" else 2.0
        case MixtureOfGaussians(_, sensitivities):
            moved *= max(sensitivities)
        case BallsInBins(_, bins, rounds):
            releases = -(-rounds // bins)
        case TreeAggregation(_, rounds, max_participations, min_separation):
            releases = _squared_sensitivity(rounds, min_separation, max_participations)
        case DiscreteGaussianShares():
            raise ValueError(f"{event}: a sum of discrete Gaussians is no Gaussian, and has no mu")
    return Fraction(moved) ** 2 * releases / Fraction(event.noise_multiplier) ** 2


def _back_and_forth(pair: LossPair, *, symmetric: bool = False) -> tuple[LossLaw, LossLaw]:
    """The laws of a pair and of its reverse, which is the same law where the two are symmetric."""
    reverse = pair if symmetric else replace(pair, reverse=True)
    return Law(pair, pair), Law(reverse, reverse)


def _poisson(q: float, shift: float, relation: NeighboringRelation) -> tuple[LossLaw, LossLaw]:
    replaced = relation == "replace-one"
    return _back_and_forth(Pair(q, shift, -shift if replaced else 0.0), symmetric=replaced)


def _fixed_size(q: float, shift: float, relation: NeighboringRelation) -> tuple[LossLaw, LossLaw]:
    displaced = Pair(q, 2 * shift, 0.0)
    match relation:
        case "add-or-remove-one":
            return _back_and_forth(displaced)
        case "replace-one":
            return (Law(upper=displaced, lower=replace(displaced, reverse=True)),) * 2
        case "zero-out":
            present, alone = Pair(q, 2 * shift, shift), Pair(q, shift, 0.0)
            return Law(present, replace(alone, reverse=True)), Law(alone, replace(present, reverse=True))


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
        laws.append(_fixed_size(max(q * most / (low + 1), 5e-324), shift, relation))
        (left, beyond), (right, rest) = _either_side(low, others, q), _either_side(high, others, q)
        # On the side of the smaller ones a difference loses fewer digits.
        weights.append(_rounded_up(right - left if right < beyond else beyond - rest))
    first, second = (Blend(tuple(weights), side) for side in zip(*laws, strict=True))
    return (first, first) if relation == "replace-one" else (first, second)


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
