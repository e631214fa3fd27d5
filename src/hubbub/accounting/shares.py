"""What a sum of discrete Gaussian shares costs, from its Rényi divergences.

Letters: n shares of standard deviation σ each, d numbers in the sum, μ = ‖Δ‖₂/(√n·σ) for a move of the sum by Δ, τ the excess
of :class:`.DiscreteGaussianShares`. The divergence of order a is at most a·μ²/2 + τ·d, and at most a·(μ + τ·√d)²/2. The first
holds since the ratio of the probabilities of a number and a moved one is that of one discrete Gaussian of variance n·σ², but
for a factor from e^{−τ} to e^τ, and since sums of discrete Gaussians are subgaussian with that variance.

Source: Kairouz, Liu and Steinke 2021, Proposition 14, https://arxiv.org/abs/2102.06387.
"""

import math

import numpy as np

from hubbub._checks import Array
from hubbub.accounting.events import DiscreteGaussianShares, NeighboringRelation

__all__ = ["divergences", "zcdp_rho"]


def divergences(event: DiscreteGaussianShares, orders: Array, relation: NeighboringRelation) -> Array:
    """An upper bound on the Rényi divergence of each order above 1, ``(orders,)``."""
    mu, added = _mu(event, relation), event.excess
    least: Array = np.minimum(orders * (mu**2 / 2) + added * event.dim, orders * ((mu + added * math.sqrt(event.dim)) ** 2 / 2))
    return least


def zcdp_rho(event: DiscreteGaussianShares, relation: NeighboringRelation) -> float:
    """ρ of zero-concentrated DP: no divergence of an order a ≥ 1 is above ρ·a."""
    mu, added = _mu(event, relation), event.excess
    return min(mu**2 / 2 + added * event.dim, (mu + added * math.sqrt(event.dim)) ** 2 / 2)


def _mu(event: DiscreteGaussianShares, relation: NeighboringRelation) -> float:
    # A unit that is certain to contribute moves the sum by its own update, there or not; its replacement by twice as much.
    return (2 if relation == "replace-one" else 1) / event.noise_multiplier
