"""Epsilon and delta of a sequence of releases, with and without amplification by sampling.

Without amplification all releases together are one Gaussian release, described by its μ. With discrete Gaussian noise shares
among them Rényi divergences are added instead.
"""

import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

from hubbub._util import least_float, least_root, no_lower
from hubbub._util.checks import non_negative, one_of, open_unit
from hubbub.accounting import dominating_pairs, pld
from hubbub.accounting.events import (
    DiscreteGaussianShares,
    Event,
    FixedSizeSampled,
    Gaussian,
    MixtureOfGaussians,
    NeighboringRelation,
    TreeAggregation,
    TruncatedPoissonSampled,
    counted,
    require_relation,
)
from hubbub.accounting.renyi import rdp_delta, rdp_epsilon, shares_zcdp_rho
from hubbub.errors import BudgetError
from hubbub.mechanism import gaussian

ACCOUNTANTS = ("tight", "rdp")
Events = Sequence[tuple[Event, int]]
# Below this delta the mass of infinite loss underflows; without amplification the answer stays exact.
_LEAST_DELTA = 1e-290
# With a larger μ in a round, of a noise multiplier below 0.01, what sampling hides is not counted.
_LARGEST_MU = 100.0
# Above it the mesh may be so coarse for want of memory that divergences say more.
_LARGE_EPSILON = 1e7
# Without amplification epsilon is infinite beyond this μ; a μ below its inverse counts as the inverse.
_MOST_MU = 1e12


@np.errstate(under="ignore")
def epsilon(events: Events, delta: float, neighboring_relation: str, accountant: str = "tight") -> float:
    """A sound upper bound on epsilon for releases whose parameters were fixed before the first.

    Args:
        events: Pairs (event, number of rounds that cost it). No event at all costs 0.
        delta: Strictly between 0 and 1.
        neighboring_relation: ``"zero-out"``, ``"add-or-remove-one"`` or ``"replace-one"``; the last doubles the
            sensitivity.
        accountant: ``"tight"`` (ours: exact for Gaussians, otherwise a privacy loss distribution, near the truth by 1e-4, or
            1e-5 of itself where that is more, as far as memory allows; below a delta of 1e-100 a bound that can be half too
            high where cohorts are rare, and where a noise multiplier is below 0.02 one without amplification; of discrete
            Gaussian shares, and all together with them, that of ``"rdp"``) or ``"rdp"`` (Rényi DP at its best order).

    Raises:
        ValueError: A number out of range or an unknown word.
        BudgetError: The computed value is NaN.

    Example:
        >>> round(epsilon([(Gaussian(noise_multiplier=1.0), 1)], delta=1e-6, neighboring_relation="zero-out"), 4)
        4.8866
    """
    given = open_unit("delta", delta)
    one_of("accountant", accountant, ACCOUNTANTS)
    rounds, relation = counted(events), require_relation(neighboring_relation)
    if not rounds:
        return 0.0
    answer = rdp_epsilon if accountant == "rdp" or by_divergences(rounds) else _epsilon
    return _require_bound("epsilon", answer(rounds, given, relation))


@lru_cache(maxsize=4096)
def epsilon_once(events: tuple[tuple[Event, int], ...], delta: float, neighboring_relation: str, accountant: str) -> float:
    """:func:`epsilon` with a cache, since calibration, plan, run and report ask for the same events.

    Zero-out and add-or-remove-one cost the same, except for cohorts in which a unit takes the place of another.
    """
    places = any(isinstance(event, FixedSizeSampled | TruncatedPoissonSampled) for event, _ in events)
    if neighboring_relation == "add-or-remove-one" and not places:
        return epsilon_once(events, delta, "zero-out", accountant)
    return epsilon(events, delta, neighboring_relation, accountant)


def _epsilon(events: Events, delta: float, relation: NeighboringRelation) -> float:
    plain = unamplified_epsilon(events, delta, relation)
    if one_gaussian(events) or plain == 0:
        return plain
    if delta < _LEAST_DELTA or _hopeless(events, relation):
        return min(plain, rdp_epsilon(events, delta, relation))
    answer = 0.0
    for direction in _directions(events, relation):
        # max() alone would lose a NaN.
        answer = max(answer, _require_bound("epsilon", pld.epsilon(direction, delta, enough=answer)))
    if answer > _LARGE_EPSILON and not any(isinstance(event, TruncatedPoissonSampled) for event, _ in events):
        # Truncated cohorts are blends of dozens of laws, for which it would take seconds.
        answer = min(answer, rdp_epsilon(events, delta, relation))
    return min(plain, answer)


@np.errstate(under="ignore")
def delta(events: Events, epsilon: float, neighboring_relation: str, accountant: str = "tight") -> float:
    """A sound upper bound on delta for releases whose parameters were fixed before the first.

    Args:
        events: As for :func:`epsilon`.
        epsilon: At least 0.
        neighboring_relation: As for :func:`epsilon`.
        accountant: As for :func:`epsilon`. The tight one is near the truth by a thousandth of itself; where rarely sampled
            rounds cost almost nothing by a few hundredths and about 1e-12; at an epsilon below 1e-5, and where a mixture has
            huge norms that are rare, it can be many times too high.

    Raises:
        ValueError: A number out of range or an unknown word.
        BudgetError: The computed value is NaN.

    Example:
        >>> f"{delta([(Gaussian(noise_multiplier=1.0), 1)], epsilon=2.0, neighboring_relation='zero-out') :.6f}"
        '0.020924'
    """
    eps = non_negative("epsilon", epsilon)
    one_of("accountant", accountant, ACCOUNTANTS)
    rounds, relation = counted(events), require_relation(neighboring_relation)
    if not rounds:
        return 0.0
    answer = rdp_delta if accountant == "rdp" or by_divergences(rounds) else _delta
    return _require_bound("delta", answer(rounds, eps, relation))


def _delta(events: Events, eps: float, relation: NeighboringRelation) -> float:
    mu = unamplified_mu(events, relation)
    plain = gaussian.delta(eps, noise_multiplier=1.0, sensitivity=max(mu, 1 / _MOST_MU)) if mu <= _MOST_MU else 1.0
    if one_gaussian(events) or plain < _LEAST_DELTA:
        return plain
    if _hopeless(events, relation):
        return min(plain, rdp_delta(events, eps, relation))
    # max() alone would lose a NaN.
    answer = max(_require_bound("delta", pld.delta(direction, eps)) for direction in _directions(events, relation))
    # The true delta is never 0: a value that underflows counts as the least normal float.
    return max(min(plain, answer), sys.float_info.min)


def _require_bound(name: str, answer: float) -> float:
    """The answer; NaN and negative numbers are refused."""
    if not answer >= 0:
        raise BudgetError(
            f"{name} = {answer!r} was computed, which bounds nothing: nothing may be released on it; try another accountant, "
            "and report this with the settings"
        )
    return answer


def _hopeless(events: Events, relation: NeighboringRelation) -> bool:
    """Whether one release has too large a μ without amplification: of a mixture, whose largest norm may be rare, the mean."""
    for event, _ in events:
        mu = unamplified_mu([(event, 1)], relation)
        if isinstance(event, MixtureOfGaussians):
            mean = math.fsum(p * s for p, s in zip(event.probabilities, event.sensitivities, strict=True))
            mu = mu * mean / max(event.sensitivities)
        if mu > _LARGEST_MU:
            return True
    return False


def _directions(events: Events, relation: NeighboringRelation) -> list[pld.Rounds]:
    """The laws of the rounds in each direction; both directions are one where they are the same."""
    unsampled = [pair for pair in events if one_gaussian([pair])]
    sampled = [pair for pair in events if not one_gaussian([pair])]
    if unsampled:
        # All releases without sampling are one Gaussian release, whose μ includes the relation.
        sampled.append((Gaussian(min(1 / unamplified_mu(unsampled, relation), 1e12)), 1))
    both = [
        (dominating_pairs.directions(event, "zero-out" if isinstance(event, Gaussian) else relation), rounds)
        for event, rounds in sampled
    ]
    forth, back = ([(laws[side], rounds) for laws, rounds in both] for side in (0, 1))
    return [forth] if forth == back else [forth, back]


def one_gaussian(events: Events) -> bool:
    """Whether the events together are one Gaussian release, without random cohorts."""
    return all(isinstance(event, Gaussian | TreeAggregation) for event, _ in events)


def certain(events: Events) -> bool:
    """Whether none of the events has random cohorts."""
    return all(isinstance(event, Gaussian | TreeAggregation | DiscreteGaussianShares) for event, _ in events)


def by_divergences(events: Events) -> bool:
    """Whether the events together are known by their Rényi divergences alone."""
    return any(isinstance(event, DiscreteGaussianShares) for event, _ in events)


def unamplified_mu(events: Events, neighboring_relation: NeighboringRelation) -> float:
    """μ of a Gaussian release that costs at least what the events cost together, without amplification by sampling.

    A release by random cohorts is a mixture over the draws. Rényi divergence is jointly quasi-convex, so two mixtures are no
    farther apart than the farthest of the pairs with the same draw: the releases are μ²/2-zCDP.

    Source: van Erven and Harremoës 2014, Theorem 13 (quasi-convexity), https://arxiv.org/abs/1206.2459; Dong, Roth and Su 2022,
    Corollary 2 (composition), https://arxiv.org/abs/1905.02383.
    """
    return least_root(_mu_squared(events, neighboring_relation))


def unamplified_zcdp_rho(events: Events, neighboring_relation: NeighboringRelation) -> float:
    """ρ of zero-concentrated DP, without amplification by sampling, rounded up: μ²/2 of Gaussians."""
    own, others = _apart(events)
    rho = _mu_squared(others, neighboring_relation) / 2
    rho += sum(count * Fraction(no_lower(shares_zcdp_rho(event, neighboring_relation))) for event, count in own)
    return least_float(rho)


def certain_zcdp_rho(events: Events | None, neighboring_relation: NeighboringRelation) -> float | None:
    """ρ of zero-concentrated DP without random cohorts, rounded up; ``None`` with them, and if nothing bounds the cost.

    Example:
        >>> certain_zcdp_rho([(Gaussian(1.0), 4)], "zero-out"), certain_zcdp_rho(None, "zero-out")
        (2.0, None)
    """
    if events is None or not certain(events := tuple(events)):
        return None
    return unamplified_zcdp_rho(events, neighboring_relation)


def unamplified_epsilon(events: Events, delta: float, neighboring_relation: NeighboringRelation) -> float:
    """Epsilon without amplification by sampling: exact without random cohorts and without noise shares."""
    own, others = _apart(events)
    mu = unamplified_mu(others, neighboring_relation)
    if mu > _MOST_MU:
        return math.inf
    if own:
        # The Gaussian event of a μ under the relation.
        factor = 2 if neighboring_relation == "replace-one" else 1
        whole = [(Gaussian(min(factor / mu, _MOST_MU)), 1)] if mu else []
        return rdp_epsilon([*own, *whole], delta, neighboring_relation)
    return gaussian.epsilon(delta, noise_multiplier=1.0, sensitivity=max(mu, 1 / _MOST_MU)) if mu else 0.0


def _apart(events: Events) -> tuple[list[tuple[DiscreteGaussianShares, int]], list[tuple[Event, int]]]:
    """Those of discrete Gaussian shares, and the others."""
    pairs = list(events)
    own = [(event, count) for event, count in pairs if isinstance(event, DiscreteGaussianShares)]
    return own, [(event, count) for event, count in pairs if not isinstance(event, DiscreteGaussianShares)]


def _mu_squared(events: Events, neighboring_relation: NeighboringRelation) -> Fraction:
    """Without rounding."""
    squares = (count * dominating_pairs.mu_squared(event, neighboring_relation) for event, count in events)
    return sum(squares, start=Fraction())
