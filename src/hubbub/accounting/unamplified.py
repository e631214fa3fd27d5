"""What releases cost together if nobody's coins are believed: one Gaussian, of which μ says everything."""

import math
from collections.abc import Sequence

from hubbub import gaussian
from hubbub.accounting import domination
from hubbub.accounting.events import Event, Gaussian, NeighboringRelation, TreeAggregation

__all__ = ["one_gaussian", "unamplified_delta", "unamplified_epsilon", "unamplified_mu", "unamplified_zcdp_rho"]

# Beyond this μ nothing is promised; below its inverse it counts as that.
_MOST_MU = 1e12


def one_gaussian(events: Sequence[tuple[Event, int]]) -> bool:
    """Whether the events together are one Gaussian release, with no coin in it."""
    return all(isinstance(event, Gaussian | TreeAggregation) for event, _ in events)


def unamplified_mu(events: Sequence[tuple[Event, int]], neighboring_relation: NeighboringRelation) -> float:
    """μ of a Gaussian release that costs at least what the events cost together, without amplification by sampling.

    A release by random cohorts is a mixture over the coins. Rényi divergence is jointly quasi-convex, so two mixtures are no
    farther apart than the farthest of the pairs that share their coins: the releases are μ²/2-zCDP.

    Args:
        events: Pairs (event, how often it happens).
        neighboring_relation: Replacing a unit moves a sum by twice the clip norm.

    Example:
        >>> from hubbub.accounting.events import PoissonSampled
        >>> unamplified_mu([(PoissonSampled(2.0, 0.01), 100)], "add-or-remove-one")
        5.0

    Source: van Erven and Harremoës 2014, Theorem 13 (quasi-convexity), https://arxiv.org/abs/1206.2459; Dong, Roth and Su 2022,
    Corollary 2 (composition), https://arxiv.org/abs/1905.02383.
    """
    return math.sqrt(_mu_squared(events, neighboring_relation))


def unamplified_zcdp_rho(events: Sequence[tuple[Event, int]], neighboring_relation: NeighboringRelation) -> float:
    """ρ of zero-concentrated DP, without amplification by sampling: μ²/2.

    Example:
        >>> from hubbub.accounting.events import PoissonSampled
        >>> unamplified_zcdp_rho([(PoissonSampled(1.0, 0.01), 2000)], "add-or-remove-one")
        1000.0
    """
    return _mu_squared(events, neighboring_relation) / 2


def unamplified_epsilon(events: Sequence[tuple[Event, int]], delta: float, neighboring_relation: NeighboringRelation) -> float:
    """Epsilon to an adversary who sees the coins: exact where there are none."""
    mu = unamplified_mu(events, neighboring_relation)
    if mu == 0:
        return 0.0
    if mu > _MOST_MU:
        return math.inf
    return gaussian.epsilon(delta, noise_multiplier=1.0, sensitivity=max(mu, 1 / _MOST_MU))


def unamplified_delta(events: Sequence[tuple[Event, int]], epsilon: float, neighboring_relation: NeighboringRelation) -> float:
    """Delta to an adversary who sees the coins: exact where there are none."""
    mu = unamplified_mu(events, neighboring_relation)
    if mu == 0:
        return 0.0
    return 1.0 if mu > _MOST_MU else gaussian.delta(epsilon, noise_multiplier=1.0, sensitivity=max(mu, 1 / _MOST_MU))


def _mu_squared(events: Sequence[tuple[Event, int]], neighboring_relation: NeighboringRelation) -> float:
    return math.fsum(count * domination.unamplified_mu(event, neighboring_relation) ** 2 for event, count in events)
