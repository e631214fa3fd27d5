"""What releases cost together if nobody's coins are believed: one Gaussian, of which μ says everything.

Where discrete Gaussian shares are among them it is none, and their Rényi divergences add up with its.
"""

import math
from collections.abc import Sequence

from hubbub.accounting.dominating_pairs import unamplified_mu as _mu_of_one
from hubbub.accounting.events import DiscreteGaussianShares, Event, Gaussian, NeighboringRelation, TreeAggregation
from hubbub.accounting.rdp import rdp_delta, rdp_epsilon, shares_zcdp_rho
from hubbub.mechanism import gaussian

__all__ = [
    "by_divergences",
    "certain",
    "certain_zcdp_rho",
    "one_gaussian",
    "unamplified_delta",
    "unamplified_epsilon",
    "unamplified_mu",
    "unamplified_zcdp_rho",
]

# Beyond this μ nothing is promised; below its inverse it counts as that.
_MOST_MU = 1e12


def one_gaussian(events: Sequence[tuple[Event, int]]) -> bool:
    """Whether the events together are one Gaussian release, with no coin in it."""
    return all(isinstance(event, Gaussian | TreeAggregation) for event, _ in events)


def certain(events: Sequence[tuple[Event, int]]) -> bool:
    """Whether no coin is in any of the events."""
    return all(isinstance(event, Gaussian | TreeAggregation | DiscreteGaussianShares) for event, _ in events)


def by_divergences(events: Sequence[tuple[Event, int]]) -> bool:
    """Whether the events together are known by their Rényi divergences alone."""
    return any(isinstance(event, DiscreteGaussianShares) for event, _ in events)


def unamplified_mu(events: Sequence[tuple[Event, int]], neighboring_relation: NeighboringRelation) -> float:
    """μ of a Gaussian release that costs at least what the events cost together, without amplification by sampling.

    A release by random cohorts is a mixture over the coins. Rényi divergence is jointly quasi-convex, so two mixtures are no
    farther apart than the farthest of the pairs that share their coins: the releases are μ²/2-zCDP.

    Args:
        events: Pairs (event, how often it happens).
        neighboring_relation: Replacing a unit moves a sum by twice the clip norm.

    Raises:
        ValueError: An event whose noise is no Gaussian.

    Example:
        >>> from hubbub.accounting.events import PoissonSampled
        >>> unamplified_mu([(PoissonSampled(2.0, 0.01), 100)], "add-or-remove-one")
        5.0

    Source: van Erven and Harremoës 2014, Theorem 13 (quasi-convexity), https://arxiv.org/abs/1206.2459; Dong, Roth and Su 2022,
    Corollary 2 (composition), https://arxiv.org/abs/1905.02383.
    """
    return math.sqrt(_mu_squared(events, neighboring_relation))


def unamplified_zcdp_rho(events: Sequence[tuple[Event, int]], neighboring_relation: NeighboringRelation) -> float:
    """ρ of zero-concentrated DP, without amplification by sampling: μ²/2 of Gaussians.

    Example:
        >>> from hubbub.accounting.events import PoissonSampled
        >>> unamplified_zcdp_rho([(PoissonSampled(1.0, 0.01), 2000)], "add-or-remove-one")
        1000.0
    """
    own, others = _apart(events)
    added = math.fsum(count * shares_zcdp_rho(event, neighboring_relation) for event, count in own)
    return _mu_squared(others, neighboring_relation) / 2 + added


def certain_zcdp_rho(events: Sequence[tuple[Event, int]] | None, neighboring_relation: NeighboringRelation) -> float | None:
    """ρ of zero-concentrated DP where no coin is in it; ``None`` elsewhere, and where nothing bounds the cost."""
    if events is None or not certain(events):
        return None
    if by_divergences(events):
        return unamplified_zcdp_rho(events, neighboring_relation)
    return unamplified_mu(events, neighboring_relation) ** 2 / 2


def unamplified_epsilon(events: Sequence[tuple[Event, int]], delta: float, neighboring_relation: NeighboringRelation) -> float:
    """Epsilon to an adversary who sees the coins: exact where there are none, and no shares."""
    if by_divergences(events):
        seen = _seen(events, neighboring_relation)
        return math.inf if seen is None else rdp_epsilon(seen, delta, neighboring_relation)
    mu = unamplified_mu(events, neighboring_relation)
    if mu == 0:
        return 0.0
    if mu > _MOST_MU:
        return math.inf
    return gaussian.epsilon(delta, noise_multiplier=1.0, sensitivity=max(mu, 1 / _MOST_MU))


def unamplified_delta(events: Sequence[tuple[Event, int]], epsilon: float, neighboring_relation: NeighboringRelation) -> float:
    """Delta to an adversary who sees the coins: exact where there are none, and no shares."""
    if by_divergences(events):
        seen = _seen(events, neighboring_relation)
        return 1.0 if seen is None else rdp_delta(seen, epsilon, neighboring_relation)
    mu = unamplified_mu(events, neighboring_relation)
    if mu == 0:
        return 0.0
    return 1.0 if mu > _MOST_MU else gaussian.delta(epsilon, noise_multiplier=1.0, sensitivity=max(mu, 1 / _MOST_MU))


def _apart(
    events: Sequence[tuple[Event, int]],
) -> tuple[list[tuple[DiscreteGaussianShares, int]], list[tuple[Event, int]]]:
    """Those of discrete Gaussian shares, and the others."""
    own = [(event, count) for event, count in events if isinstance(event, DiscreteGaussianShares)]
    return own, [(event, count) for event, count in events if not isinstance(event, DiscreteGaussianShares)]


def _seen(events: Sequence[tuple[Event, int]], neighboring_relation: NeighboringRelation) -> list[tuple[Event, int]] | None:
    """The shares, and all others as the one Gaussian that they are with the coins seen; ``None`` where that hides nothing."""
    own, others = _apart(events)
    mu = unamplified_mu(others, neighboring_relation)
    if mu > _MOST_MU:
        return None
    # Gaussian knows the relation by itself.
    factor = 2 if neighboring_relation == "replace-one" else 1
    rest: list[tuple[Event, int]] = [(Gaussian(min(factor / mu, _MOST_MU)), 1)] if mu else []
    return [*own, *rest]


def _mu_squared(events: Sequence[tuple[Event, int]], neighboring_relation: NeighboringRelation) -> float:
    return math.fsum(count * _mu_of_one(event, neighboring_relation) ** 2 for event, count in events)
