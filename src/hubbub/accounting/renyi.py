"""Rényi differential privacy of every event at any real order, and the epsilon and delta of their compositions.

The Rényi divergence of order a is ln E_P[e^{(a−1)L}]/(a − 1). It adds up over rounds, under adaptive composition as well, for
each of the pairs that dominate a round (:mod:`hubbub.accounting.dominating_pairs`); at most it is that of the Gaussian release
to an adversary who knows all participation. Of the two directions of a pair the larger is stated.

**Discrete Gaussian shares.** Letters: n shares of standard deviation σ each, d numbers in the sum, μ = ‖Δ‖₂/(√n·σ) for a move
of the sum by Δ, τ the excess of :class:`.DiscreteGaussianShares`. The divergence of order a is at most a·μ²/2 + τ·d, and at
most a·(μ + τ·√d)²/2. The first holds since the ratio of the probabilities of a number and a moved one is that of one discrete
Gaussian of variance n·σ², but for a factor from e^{−τ} to e^τ, and since sums of discrete Gaussians are subgaussian with that
variance.

These bounds are for exact shares. Drawn shares are within a statistical distance β of them, so (ε, δ) for exact shares becomes
(ε, δ + (1 + e^ε)·β). β adds up over the numbers of a sum, over the fewest clients that make the noise whole (shares of more
clients are post-processing), and over the rounds that the unit takes part in (other rounds are post-processing).

Source: Mironov 2017, https://arxiv.org/abs/1702.07476; Mironov, Talwar and Zhang 2019, Theorem 5, https://arxiv.org/abs/1908.10530:
for Poisson sampling, removal is the larger at every order. Shares: Kairouz, Liu and Steinke 2021, Proposition 14,
https://arxiv.org/abs/2102.06387; Dwork and Roth 2014, "The Algorithmic Foundations of Differential Privacy", Lemma 3.17
(statistical distance).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from hubbub._util import least_float
from hubbub._util.checks import Array, non_negative, open_unit
from hubbub.accounting.conversions import delta_from_rdp, epsilon_from_rdp, require_orders
from hubbub.accounting.dominating_pairs import directions, mu_squared
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
    counted,
    require_relation,
)
from hubbub.accounting.moments import log_excess
from hubbub.accounting.pairs import Blend, Law, LossLaw, Pair
from hubbub.mechanism.discrete_gaussian import statistical_distance

# As in dp_accounting, so that published numbers can be compared.
DEFAULT_ORDERS: tuple[float, ...] = (*(i / 10 for i in range(11, 110)), *map(float, range(11, 64)), 128.0, 256.0, 512.0, 1024.0)
# ln(a − 1) stays between these.
_LOG_ORDERS = math.log(1e-9), math.log(1e6)
_ZOOMS = 12
# The bound is flat at its minimum: orders this close change it by less than 1e-6 of itself.
_CLOSE = 1e-3
# The relative error of the quadrature is below this; values below 1e-300 count as that.
_ROUNDING, _LEAST = 1e-11, 1e-300
_UP = 1 + 1e-12


def rdp(event: Event, orders: npt.ArrayLike, neighboring_relation: str) -> Array:
    """An upper bound on the Rényi divergence of one event at each order, exact but for rounding where a pair is attained.

    Args:
        event: Of :mod:`hubbub.accounting.events`. Of discrete Gaussian shares it is that of exact ones; how far they are from
            those that are drawn goes into delta.
        orders: Numbers above 1, not necessarily whole.
        neighboring_relation: ``"zero-out"``, ``"add-or-remove-one"`` or ``"replace-one"``.

    Returns:
        One value an order, ``(orders,)``.

    Raises:
        ValueError: An order that is not above 1 or not finite, or no such relation.
        TypeError: Not an event.

    Example:
        >>> from hubbub.accounting import Gaussian, PoissonSampled
        >>> rdp(Gaussian(noise_multiplier=1.0), orders=(2, 4.5, 32), neighboring_relation="zero-out").tolist()
        [1.0, 2.25, 16.0]
        >>> event = PoissonSampled(noise_multiplier=1.0, sampling_probability=0.01)
        >>> rdp(event, orders=(1.5, 2), neighboring_relation="add-or-remove-one").round(8).tolist()
        [0.00012725, 0.00017181]
    """
    return rdp_of_all([(event, 1)], orders, neighboring_relation)


def rdp_of_all(events: Sequence[tuple[Event, int]], orders: npt.ArrayLike, neighboring_relation: str) -> Array:
    """An upper bound on the Rényi divergence of a composition at each order, as :func:`rdp` of one event, ``(orders,)``."""
    a, relation = require_orders(orders), require_relation(neighboring_relation)
    return sum((rounds * _curve(event, a, relation) for event, rounds in counted(events)), np.zeros(len(a)))


def _curve(event: Event, orders: Array, relation: NeighboringRelation) -> Array:
    if isinstance(event, DiscreteGaussianShares):
        # Without sampling a unit moves the sum by its own update, and its replacement by twice as much.
        mu, excess, dim = (2 if relation == "replace-one" else 1) / event.noise_multiplier, event.excess, event.dim
        return np.asarray(np.minimum(orders * (mu**2 / 2) + excess * dim, orders * ((mu + excess * math.sqrt(dim)) ** 2 / 2)))
    seen = orders * least_float(mu_squared(event, relation) / 2)
    match event:
        case Gaussian() | TreeAggregation() | BallsInBins() | MixtureOfGaussians():
            return seen
        case PoissonSampled() | FixedSizeSampled() | TruncatedPoissonSampled():
            logs = _larger(*directions(event, relation), orders)
            divergence = np.logaddexp(0.0, logs) / (orders - 1)
            return np.minimum(seen, divergence * (1 + _ROUNDING) + _LEAST)


def shares_zcdp_rho(event: DiscreteGaussianShares, relation: NeighboringRelation) -> float:
    """ρ of zero-concentrated DP of one sum of shares, its divergence of order 1: none of an order a ≥ 1 is above ρ·a."""
    return float(_curve(event, np.ones(1), relation)[0])


def distance(events: Sequence[tuple[Event, int]]) -> float:
    """β of all shares among the events, from above: their statistical distance from exact discrete Gaussians; at most 1.

    Example:
        >>> distance([(Gaussian(1.0), 9)])
        0.0
    """
    numbers = sum(count * event.shares * event.dim for event, count in events if isinstance(event, DiscreteGaussianShares))
    return min(1.0, statistical_distance(numbers))


def added_delta(epsilon: float, distance: float) -> float:
    """(1 + e^ε)·β, from above: what delta is more than that of exact shares; at most 1.

    Example:
        >>> 2e-9 <= added_delta(0.0, 1e-9) < 2.0001e-9
        True
    """
    if distance == 0:
        return 0.0
    log = np.logaddexp(0.0, epsilon) + math.log(distance)
    # The exponential multiplies the rounding error of its argument.
    return min(1.0, math.exp(min(0.0, log)) * _UP)


def _larger(first: LossLaw, second: LossLaw, orders: Array) -> Array:
    """ln(A_a − 1) of the larger of two directions; of a blend, of the blend of the larger ones."""
    match first, second:
        case Blend(weights, forth), Blend(_, back):
            pairs = zip(weights, forth, back, strict=True)
            parts = [math.log(w) + _larger(one, other, orders) for w, one, other in pairs if w > 0]
            return np.asarray(np.logaddexp.reduce(parts, axis=0))
        case _ if first == second:
            return log_excess(first, orders)
        case Law(Pair(b=0, reverse=False) as upper, lower), _ if upper == lower:
            # Removal: the reverse of a mixture against its base, on the whole line, is never the larger.
            return log_excess(first, orders)
        case _:
            return np.maximum(log_excess(first, orders), log_excess(second, orders))


def rdp_epsilon(events: Sequence[tuple[Event, int]], delta: float, neighboring_relation: str) -> float:
    """A sound upper bound on epsilon by Rényi divergences: the least over the default orders, and real ones near the best.

    Parameters of the events may depend on earlier outputs as long as a total fixed in advance is kept (Feldman and Zrnic 2021,
    https://arxiv.org/abs/2008.11193). Infinite where nothing is known at so small a delta, as with discrete Gaussian shares.
    """
    delta = open_unit("delta", delta)
    together = counted(events)

    def least(kept: float) -> float:
        return _least(together, neighboring_relation, lambda order, bound: epsilon_from_rdp([order], [bound], kept))

    beta = distance(together)
    if beta == 0:
        return least(delta)
    if beta > delta / 4:
        return math.inf
    # The part set aside is enough for any epsilon up to that of delta/2. The conversion allows for the rounding of the
    # subtraction.
    aside = added_delta(least(delta / 2), beta)
    return least(delta - aside) if aside <= delta / 2 else math.inf


def rdp_delta(events: Sequence[tuple[Event, int]], epsilon: float, neighboring_relation: str) -> float:
    """A sound upper bound on delta by Rényi divergences: the least over the default orders, and real ones near the best."""
    together, eps = counted(events), non_negative("epsilon", epsilon)
    beta = distance(together)
    if beta > 0:
        # The delta of a smaller epsilon is valid, too, and beyond this one (1 + e^ε)·β is too large.
        eps = min(eps, -math.log(beta) / 2)
    least = _least(together, neighboring_relation, lambda order, bound: delta_from_rdp([order], [bound], eps))
    return min(1.0, least + added_delta(eps, beta))


def _least(events: Sequence[tuple[Event, int]], neighboring_relation: str, of: Callable[[float, float], float]) -> float:
    """The least of what an order and its bound give, over the default orders and a search in ln(a − 1) near the best."""
    orders = np.array(DEFAULT_ORDERS)
    best = math.inf
    for _ in range(_ZOOMS):
        bounds = rdp_of_all(events, orders, neighboring_relation)
        values = [of(float(order), float(bound)) for order, bound in zip(orders, bounds, strict=True)]
        at = int(np.argmin(values))
        best = min(best, values[at])
        logs = np.log(orders - 1)
        # Beyond the outermost order the search continues.
        low = logs[at - 1] if at > 0 else max(logs[0] - 4, _LOG_ORDERS[0])
        high = logs[at + 1] if at + 1 < len(logs) else min(logs[-1] + 4, _LOG_ORDERS[1])
        if high - low < _CLOSE:
            break
        orders = 1 + np.exp(np.linspace(low, high, 17))
    return best
