"""Epsilon and delta of a sequence of releases, by the accountant of one's choice."""

import math
from collections.abc import Sequence

from hubbub import gaussian
from hubbub._checks import integer, non_negative, one_of, open_unit
from hubbub.accounting import parity, pld
from hubbub.accounting.domination import directions, unamplified_mu
from hubbub.accounting.events import Event, Gaussian, NeighboringRelation, TreeAggregation, require_relation
from hubbub.accounting.rdp import rdp_delta, rdp_epsilon

__all__ = ["ACCOUNTANTS", "delta", "epsilon"]

ACCOUNTANTS = ("tight", "rdp", "pld")
Events = Sequence[tuple[Event, int]]
# Below this the mass that counts as infinite loss is no number any more; without amplification the answer stays exact.
_LEAST_DELTA = 1e-290
# With so little noise in a round sampling hides nothing that is worth a computation.
_LARGEST_MU = 100.0
_LARGEST_NUMBER = 1e11
_LARGE_EPSILON = 1000.0


def epsilon(events: Events, delta: float, neighboring_relation: str, accountant: str = "tight") -> float:
    """A sound upper bound on epsilon for releases whose parameters were fixed before the first.

    Args:
        events: Pairs (event, number of rounds that cost it). No event at all costs 0.
        delta: Strictly between 0 and 1.
        neighboring_relation: ``"zero-out"``, ``"add-or-remove-one"`` or ``"replace-one"``; the last doubles the
            sensitivity.
        accountant: ``"tight"`` (ours: exact for Gaussians, otherwise a privacy loss distribution, near the truth by 1e-4, or
            1e-5 of itself where that is more, as far as memory allows), ``"rdp"`` (Rényi DP at its best order) or ``"pld"`` (dp_accounting's, for parity
            with published numbers).

    Raises:
        ValueError: A number out of range or an unknown word.
        BudgetError: dp_accounting cannot answer.

    Example:
        >>> round(epsilon([(Gaussian(noise_multiplier=1.0), 1)], delta=1e-6, neighboring_relation="zero-out"), 4)
        4.8866
    """
    open_unit("delta", delta)
    counted, relation = _checked(events, neighboring_relation, accountant)
    if not counted:
        return 0.0
    if accountant == "pld":
        return parity.epsilon(counted, delta, relation)
    if accountant == "rdp":
        return rdp_epsilon(counted, delta, relation)
    mu = _mu(counted, relation)
    plain = _plain_epsilon(mu, delta)
    if _all_certain(counted) or plain == 0 or delta < _LEAST_DELTA:
        return plain
    if _hopeless(counted, relation):
        return min(plain, rdp_epsilon(counted, delta, relation))
    forth, back = _laws(counted, relation)
    answer = pld.epsilon(forth, delta)
    if back is not None:
        answer = max(answer, pld.epsilon(back, delta, enough=answer))
    if answer > _LARGE_EPSILON:
        # There the mesh is coarse for want of memory.
        answer = min(answer, rdp_epsilon(counted, delta, relation))
    return min(plain, answer)


def delta(events: Events, epsilon: float, neighboring_relation: str, accountant: str = "tight") -> float:
    """A sound upper bound on delta for releases whose parameters were fixed before the first.

    Args:
        events: As for :func:`epsilon`.
        epsilon: At least 0.
        neighboring_relation: As for :func:`epsilon`.
        accountant: As for :func:`epsilon`. The tight one is near the truth by a thousandth of itself.

    Raises:
        ValueError: A number out of range or an unknown word.
        BudgetError: dp_accounting cannot answer.

    Example:
        >>> f"{delta([(Gaussian(noise_multiplier=1.0), 1)], epsilon=2.0, neighboring_relation='zero-out') :.6f}"
        '0.020924'
    """
    non_negative("epsilon", epsilon)
    counted, relation = _checked(events, neighboring_relation, accountant)
    if not counted:
        return 0.0
    if accountant == "pld":
        return parity.delta(counted, epsilon, relation)
    if accountant == "rdp":
        return rdp_delta(counted, epsilon, relation)
    mu = _mu(counted, relation)
    plain = _plain_delta(mu, epsilon)
    if _all_certain(counted) or plain < _LEAST_DELTA:
        return plain
    if _hopeless(counted, relation):
        return min(plain, rdp_delta(counted, epsilon, relation))
    forth, back = _laws(counted, relation)
    return min(plain, max(pld.delta(laws, epsilon) for laws in (forth, back) if laws is not None))


def _checked(events: Events, neighboring_relation: str, accountant: str) -> tuple[list[tuple[Event, int]], NeighboringRelation]:
    """The events that happen at all, equal ones together."""
    one_of("accountant", accountant, ACCOUNTANTS)
    relation = require_relation(neighboring_relation)
    together: dict[Event, int] = {}
    for event, rounds in events:
        together[event] = together.get(event, 0) + integer("rounds", rounds, at_least=0)
    return [(event, rounds) for event, rounds in together.items() if rounds], relation


def _hopeless(events: Events, relation: NeighboringRelation) -> bool:
    return any(unamplified_mu(event, relation) > _LARGEST_MU for event, _ in events)


def _plain_epsilon(mu: float, delta: float) -> float:
    if mu > _LARGEST_NUMBER:
        # Bun and Steinke 2016, Proposition 1.3: so large that nothing is lost.
        return mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))
    return gaussian.epsilon(delta, noise_multiplier=1.0, sensitivity=max(mu, 1 / _LARGEST_NUMBER))


def _plain_delta(mu: float, epsilon: float) -> float:
    return (
        1.0 if mu > _LARGEST_NUMBER else gaussian.delta(epsilon, noise_multiplier=1.0, sensitivity=max(mu, 1 / _LARGEST_NUMBER))
    )


def _mu(events: Events, relation: NeighboringRelation) -> float:
    """μ of the whole as one Gaussian release: exact where nothing is sampled, a bound otherwise."""
    return math.sqrt(math.fsum(rounds * unamplified_mu(event, relation) ** 2 for event, rounds in events))


def _all_certain(events: Events) -> bool:
    return all(isinstance(event, Gaussian | TreeAggregation) for event, _ in events)


def _laws(events: Events, relation: NeighboringRelation) -> tuple[pld.Rounds, pld.Rounds | None]:
    """The laws of both directions; none for the second where it is the first."""
    certain = [(event, rounds) for event, rounds in events if isinstance(event, Gaussian | TreeAggregation)]
    sampled: list[tuple[Event, int]] = [
        (event, rounds) for event, rounds in events if not isinstance(event, Gaussian | TreeAggregation)
    ]
    if certain:
        # All certain releases are one: exact, and nothing to split on a mesh. Its μ already knows the relation.
        sampled.append((Gaussian(1 / _mu(certain, relation)), 1))
    both = [(directions(event, "zero-out" if isinstance(event, Gaussian) else relation), rounds) for event, rounds in sampled]
    forth = [(laws[0], rounds) for laws, rounds in both]
    back = [(laws[1], rounds) for laws, rounds in both]
    return forth, None if forth == back else back
