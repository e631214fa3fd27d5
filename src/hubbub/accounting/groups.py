"""What a group of units pays, where a guarantee is stated for one of them.

Letters: k the size of the group, q the sampling probability, z the noise multiplier. The units of a group act as one: all of
them are there or none is, or all are replaced.

A group that takes part for certain moves the sum by at most k clip norms: its cost is that of one unit at z/k. One whose units
are sampled moves it by as many clip norms as units are in the round, K of them, K binomial of k and q: more often than one
unit, and farther. Given K = n, the mass of any set that has the mass α without the group is at most Φ(Φ⁻¹(α) + n/z), and at
least Φ(Φ⁻¹(α) − n/z) (Neyman and Pearson), whatever the contributions are. One half-line attains the first for all n at once,
and the opposite one the second: so Σ P(K = n)·N(n/z, 1) against N(0, 1), its reverse, and Σ P(K = n)·N(±n/z, 1) against each
other where the group is replaced, dominate the round under each relation, and units that all contribute the same attain them.
Rounds that are sampled independently compose (Zhu, Dong and Wang 2022, Theorem 10, https://arxiv.org/abs/2106.08567). With
independent noise, units of several groups of a cycle of cohorts move its rounds, taken together, by at most K standard
deviations over z (Dong, Roth and Su 2022, Corollary 3.3, https://arxiv.org/abs/1905.02383): the same pair dominates the cycle.

Shares of noise cost more than a Gaussian in every round in which a unit of the group takes part, and k units may take part in k
times as many rounds as one. Where n of them are in a round they are there n/z far, Σn² ≤ k·Σn over all rounds, and k times as
many rounds at z/√k cost at least what all rounds do, whoever is in which.

No such pair is proved here where units of the group take each other's place in a cohort (fixed sizes, truncated ones), or share
one draw for all rounds (balls in bins): there the general bound of :func:`group_epsilon` holds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from hubbub._util.checks import integer, open_unit, scale
from hubbub._util.roots import bracket
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
    counted,
)

_ROUNDING = 1e-12
_LEAST_LOG_DELTA = -300 * math.log(10)
_MOST_TERMS = 1000
_MOST_SAMPLED, _MOST_UNITS = 1000, 10**15


def group_noise_multiplier(noise_multiplier: float, group_size: int) -> float:
    """The noise multiplier that a group of units meets in a Gaussian mechanism: the group moves the sum by as many clip norms.

    Exact: what the group costs is what one unit would cost at this multiplier.

    Args:
        noise_multiplier: Of one unit; from 1e-12 to 1e12.
        group_size: Units of the group, from 1.

    Raises:
        ValueError: A number out of range.

    Example:
        >>> group_noise_multiplier(noise_multiplier=3.0, group_size=2)
        1.5
    """
    z, k = scale("noise_multiplier", noise_multiplier), integer("group_size", group_size, at_least=1, at_most=_MOST_UNITS)
    # Rounded down.
    return z / k if Fraction(z / k) * k <= Fraction(z) else math.nextafter(z / k, 0.0)


def group_events(events: Sequence[tuple[Event, int]], group_size: int) -> list[tuple[Event, int]]:
    """The events as they are to a group of units that act as one: what they cost is what the releases cost the group.

    Exact where units contribute for certain or by Poisson sampling; of discrete shares, a bound. Of cyclic Poisson cohorts
    they hold for independent noise, and for banded noise where the units belong to one group of the cycle.

    Args:
        events: Pairs (event, number of rounds that cost it), as they are to one unit.
        group_size: k, at least 1; at most 1000 where units are sampled.

    Raises:
        ValueError: A group of a size out of range, or a sampling scheme of which no theorem is known.

    Example:
        >>> from hubbub.accounting import epsilon
        >>> rounds = group_events([(PoissonSampled(noise_multiplier=0.1, sampling_probability=0.01), 1)], group_size=2)
        >>> round(epsilon(rounds, delta=0.015, neighboring_relation="add-or-remove-one"), 1)
        38.2

    Source: the module's docstring; Choquette-Choo et al. 2023, https://arxiv.org/abs/2310.15526 (mixtures of Gaussians).
    """
    k = integer("group_size", group_size, at_least=1, at_most=_MOST_UNITS)
    return [(event, rounds) if k == 1 else _of_group(event, rounds, k) for event, rounds in counted(events)]


def _of_group(event: Event, rounds: int, k: int) -> tuple[Event, int]:
    match event:
        case PoissonSampled(z, q) if q < 1:
            integer("group_size", k, at_least=1, at_most=_MOST_SAMPLED)
            # The chance of each number of units to be sampled: rational, so that it is rounded but once.
            numerator, denominator = q.as_integer_ratio()
            parts = (math.comb(k, n) * numerator**n * (denominator - numerator) ** (k - n) for n in range(k + 1))
            chances = {float(n): chance for n, part in enumerate(parts) if (chance := part / denominator**k) > 0}
            return MixtureOfGaussians(z, tuple(chances), tuple(chances.values())), rounds
        case Gaussian(z) | PoissonSampled(z) | TreeAggregation(z):
            return replace(event, noise_multiplier=group_noise_multiplier(z, k)), rounds
        case DiscreteGaussianShares(z):
            return replace(event, noise_multiplier=z / math.sqrt(k) * (1 - 2.0**-50)), rounds * k
        case FixedSizeSampled() | TruncatedPoissonSampled() | BallsInBins() | MixtureOfGaussians():
            raise ValueError(
                f"group_size = {k}: no theorem here says exactly what {event} costs a group; group_epsilon bounds it from the "
                "epsilon of one unit"
            )


def group_epsilon(epsilon_at: Callable[[float], float], delta: float, group_size: int) -> float:
    """An epsilon for a group of units, from the epsilons of one unit, whatever the mechanism; an upper bound.

    A guarantee (ε, δ′) of one unit is (kε, δ′·(e^{kε} − 1)/(e^ε − 1)) for k. The largest δ′ is searched for which that is at
    most ``delta``; infinity where not even 1e-300 suffices. Each of the k steps must be one
    that ``epsilon_at`` is of: to take k units from a fixed population it must be of k − 1 fewer.

    Args:
        epsilon_at: The epsilon of one unit at a delta between 0 and 1, an upper bound that falls as delta grows.
        delta: Of the group, strictly between 0 and 1.
        group_size: k, at least 1.

    Raises:
        ValueError: A number out of range, or an epsilon of one unit that is no number or below 0.

    Example:
        >>> from hubbub.mechanism import gaussian
        >>> one = lambda delta: gaussian.epsilon(delta=delta, noise_multiplier=10.0)
        >>> round(group_epsilon(one, delta=1e-6, group_size=3), 4), round(one(1e-6) * 3, 4)
        (1.2963, 1.1906)

    Source: Vadhan 2017, "The Complexity of Differential Privacy", Lemma 2.2.
    """
    if not callable(epsilon_at):
        raise TypeError(f"epsilon_at = {epsilon_at!r}: must be a function of delta, such as the at of a guarantee")
    log_delta = math.log(open_unit("delta", delta))
    k = integer("group_size", group_size, at_least=1, at_most=_MOST_UNITS)

    def of_one(delta: float) -> float:
        eps = epsilon_at(delta)
        if not eps >= 0:
            raise ValueError(
                f"epsilon_at({delta!r}) = {eps!r}: must be an epsilon of one unit, at least 0, which bounds something"
            )
        return float(eps)

    if k == 1:
        return of_one(delta)

    def cost(log_inner: float) -> float:
        """ln of the group's delta."""
        eps = of_one(math.exp(log_inner))
        if math.isinf(eps):
            return math.inf
        # Σ_{j<k} e^{jε}, from its largest term.
        terms = [math.exp(-eps * j) for j in range(min(k, _MOST_TERMS))]
        rest = math.log(k / len(terms)) if k > _MOST_TERMS else 0.0
        return log_inner + (k - 1) * eps + math.log(math.fsum(terms)) + rest + _ROUNDING

    if cost(_LEAST_LOG_DELTA) > log_delta:
        return math.inf
    _, inner = bracket(lambda log_inner: cost(log_inner) <= log_delta, fails_at=log_delta, holds_at=_LEAST_LOG_DELTA)
    return k * of_one(math.exp(inner)) * (1 + _ROUNDING)
