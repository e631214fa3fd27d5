"""What a sum of discrete Gaussian shares costs, from its Rényi divergences.

Letters: n shares of standard deviation σ each, d numbers in the sum, μ = ‖Δ‖₂/(√n·σ) for a move of the sum by Δ, τ the excess
of :class:`.DiscreteGaussianShares`. The divergence of order a is at most a·μ²/2 + τ·d, and at most a·(μ + τ·√d)²/2. The first
holds since the ratio of the probabilities of a number and a moved one is that of one discrete Gaussian of variance n·σ², but
for a factor from e^{−τ} to e^τ, and since sums of discrete Gaussians are subgaussian with that variance.

That is of exact shares. Those that are drawn are within a statistical distance β of them, and what is (ε, δ)-private of exact
ones is (ε, δ + (1 + e^ε)·β)-private of these: for P ≤ e^ε·Q + δ on any set, and what is drawn is off by at most β from P and,
times e^ε, from Q. β adds up over the numbers of a sum, over as many clients as make the noise whole (what more of them add is
post-processing, whatever its law), and over the rounds that the unit takes part in (the others look at what is known by then).

Source: Kairouz, Liu and Steinke 2021, Proposition 14, https://arxiv.org/abs/2102.06387; Dwork and Roth 2014, "The Algorithmic
Foundations of Differential Privacy", Lemma 3.17 (statistical distance).
"""

import math
from collections.abc import Sequence

import numpy as np

from hubbub._util.checks import Array
from hubbub.accounting.events import DiscreteGaussianShares, Event, NeighboringRelation
from hubbub.mechanism.discrete_gaussian import statistical_distance

__all__ = ["added_delta", "distance", "divergences", "zcdp_rho"]

_UP = 1 + 1e-12


def divergences(event: DiscreteGaussianShares, orders: Array, relation: NeighboringRelation) -> Array:
    """An upper bound on the Rényi divergence of each order above 1, ``(orders,)``."""
    mu, added = _mu(event, relation), event.excess
    least: Array = np.minimum(orders * (mu**2 / 2) + added * event.dim, orders * ((mu + added * math.sqrt(event.dim)) ** 2 / 2))
    return least


def zcdp_rho(event: DiscreteGaussianShares, relation: NeighboringRelation) -> float:
    """ρ of zero-concentrated DP: no divergence of an order a ≥ 1 is above ρ·a."""
    mu, added = _mu(event, relation), event.excess
    return min(mu**2 / 2 + added * event.dim, (mu + added * math.sqrt(event.dim)) ** 2 / 2)


def distance(events: Sequence[tuple[Event, int]]) -> float:
    """β of all shares among the events, from above: their statistical distance from exact discrete Gaussians; at most 1."""
    numbers = sum(count * event.shares * event.dim for event, count in events if isinstance(event, DiscreteGaussianShares))
    return min(1.0, statistical_distance(numbers))


def added_delta(epsilon: float, distance: float) -> float:
    """(1 + e^ε)·β, from above: what delta is more than that of exact shares; at most 1."""
    if distance == 0:
        return 0.0
    log = np.logaddexp(0.0, epsilon) + math.log(distance)
    # A float of a few hundred, whose last bits its exponential multiplies.
    return min(1.0, math.exp(min(0.0, log)) * _UP)


def _mu(event: DiscreteGaussianShares, relation: NeighboringRelation) -> float:
    # A unit that is certain to contribute moves the sum by its own update, there or not; its replacement by twice as much.
    return (2 if relation == "replace-one" else 1) / event.noise_multiplier
