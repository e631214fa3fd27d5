"""What releases cost together without amplification by sampling: one Gaussian, of which μ says everything.

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

Events = Sequence[tuple[Event, int]]
# Beyond this μ nothing is promised; below its inverse it counts as that.
_MOST_MU = 1e12


def one_gaussian(events: Events) -> bool:
    """Whether the events together are one Gaussian release, with no coin in it.

    Example:
        >>> one_gaussian([(Gaussian(2.0), 3), (TreeAggregation(2.0, rounds=8), 1)])
        True
    """
    return all(isinstance(event, Gaussian | TreeAggregation) for event, _ in events)


def certain(events: Events) -> bool:
    """Whether no coin is in any of the events."""
    return all(isinstance(event, Gaussian | TreeAggregation | DiscreteGaussianShares) for event, _ in events)


def by_divergences(events: Events) -> bool:
    """Whether the events together are known by their Rényi divergences alone."""
    return any(isinstance(event, DiscreteGaussianShares) for event, _ in events)


def unamplified_mu(events: Events, neighboring_relation: NeighboringRelation) -> float:
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


def unamplified_zcdp_rho(events: Events, neighboring_relation: NeighboringRelation) -> float:
    """ρ of zero-concentrated DP, without amplification by sampling: μ²/2 of Gaussians.

    Example:
        >>> from hubbub.accounting.events import PoissonSampled
        >>> unamplified_zcdp_rho([(PoissonSampled(1.0, 0.01), 2000)], "add-or-remove-one")
        1000.0
    """
    own, others = _apart(events)
    added = math.fsum(count * shares_zcdp_rho(event, neighboring_relation) for event, count in own)
    return _mu_squared(others, neighboring_relation) / 2 + added


def certain_zcdp_rho(events: Events | None, neighboring_relation: NeighboringRelation) -> float | None:
    """ρ of zero-concentrated DP where no coin is in it; ``None`` elsewhere, and where nothing bounds the cost.

    Example:
        >>> certain_zcdp_rho([(Gaussian(1.0), 4)], "zero-out"), certain_zcdp_rho(None, "zero-out")
        (2.0, None)
    """
    if events is None or not certain(events):
        return None
    if by_divergences(events):
        return unamplified_zcdp_rho(events, neighboring_relation)
    return unamplified_mu(events, neighboring_relation) ** 2 / 2


def unamplified_epsilon(events: Events, delta: float, neighboring_relation: NeighboringRelation) -> float:
    """Epsilon to an adversary who sees the coins: exact where there are none, and no shares."""
    own, others = _apart(events)
    mu = unamplified_mu(others, neighboring_relation)
    if mu > _MOST_MU:
        return math.inf
    if own:
        return rdp_epsilon([*own, *_as_event(mu, neighboring_relation)], delta, neighboring_relation)
    return gaussian.epsilon(delta, noise_multiplier=1.0, sensitivity=max(mu, 1 / _MOST_MU)) if mu else 0.0


def unamplified_delta(events: Events, epsilon: float, neighboring_relation: NeighboringRelation) -> float:
    """Delta to an adversary who sees the coins: exact where there are none, and no shares."""
    own, others = _apart(events)
    mu = unamplified_mu(others, neighboring_relation)
    if mu > _MOST_MU:
        return 1.0
    if own:
        return rdp_delta([*own, *_as_event(mu, neighboring_relation)], epsilon, neighboring_relation)
    return gaussian.delta(epsilon, noise_multiplier=1.0, sensitivity=max(mu, 1 / _MOST_MU)) if mu else 0.0


def _apart(events: Events) -> tuple[list[tuple[DiscreteGaussianShares, int]], list[tuple[Event, int]]]:
    """Those of discrete Gaussian shares, and the others."""
    own = [(event, count) for event, count in events if isinstance(event, DiscreteGaussianShares)]
    return own, [(event, count) for event, count in events if not isinstance(event, DiscreteGaussianShares)]


def _as_event(mu: float, neighboring_relation: NeighboringRelation) -> list[tuple[Event, int]]:
    """The one Gaussian of that μ, which knows the relation by itself; nothing where there is none."""
    factor = 2 if neighboring_relation == "replace-one" else 1
    return [(Gaussian(min(factor / mu, _MOST_MU)), 1)] if mu else []


def _mu_squared(events: Events, neighboring_relation: NeighboringRelation) -> float:
    return math.fsum(count * _mu_of_one(event, neighboring_relation) ** 2 for event, count in events)
