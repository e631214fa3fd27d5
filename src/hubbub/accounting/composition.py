"""Epsilon and delta of a sequence of releases, by the accountant of one's choice."""

import math
import sys
from collections.abc import Sequence
from functools import lru_cache

from hubbub._util.checks import non_negative, one_of, open_unit
from hubbub.accounting import pld
from hubbub.accounting.dominating_pairs import directions
from hubbub.accounting.events import (
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
from hubbub.accounting.rdp import rdp_delta, rdp_epsilon
from hubbub.accounting.worst_case import (
    by_divergences,
    one_gaussian,
    unamplified_delta,
    unamplified_epsilon,
    unamplified_mu,
)
from hubbub.errors import BudgetError

__all__ = ["ACCOUNTANTS", "delta", "epsilon", "epsilon_once"]

ACCOUNTANTS = ("tight", "rdp")
Events = Sequence[tuple[Event, int]]
# Below this the mass that counts as infinite loss is no number any more; without amplification the answer stays exact.
_LEAST_DELTA = 1e-290
# With so little noise in a round sampling hides nothing that is worth a computation.
_LARGEST_MU = 100.0
# Above it the mesh may be so coarse for want of memory that divergences tell more.
_LARGE_EPSILON = 1e7


def epsilon(events: Events, delta: float, neighboring_relation: str, accountant: str = "tight") -> float:
    """A sound upper bound on epsilon for releases whose parameters were fixed before the first.

    Args:
        events: Pairs (event, number of rounds that cost it). No event at all costs 0.
        delta: Strictly between 0 and 1.
        neighboring_relation: ``"zero-out"``, ``"add-or-remove-one"`` or ``"replace-one"``; the last doubles the
            sensitivity.
        accountant: ``"tight"`` (ours: exact for Gaussians, otherwise a privacy loss distribution, near the truth by 1e-4, or
            1e-5 of itself where that is more, as far as memory allows; below a delta of 1e-100 a bound that can be half too
            high where cohorts are rare; of discrete Gaussian shares, and all together with them, that of ``"rdp"``) or
            ``"rdp"`` (Rényi DP at its best order).

    Raises:
        ValueError: A number out of range or an unknown word.
        BudgetError: What was computed is no number.

    Example:
        >>> round(epsilon([(Gaussian(noise_multiplier=1.0), 1)], delta=1e-6, neighboring_relation="zero-out"), 4)
        4.8866
    """
    open_unit("delta", delta)
    rounds, relation = _asked(events, neighboring_relation, accountant)
    if not rounds:
        return 0.0
    answer = rdp_epsilon if accountant == "rdp" else _epsilon
    return _require_bound("epsilon", answer(rounds, delta, relation))


@lru_cache(maxsize=4096)
def epsilon_once(events: tuple[tuple[Event, int], ...], delta: float, neighboring_relation: str, accountant: str) -> float:
    """:func:`epsilon`, kept: a calibration, its plan, its run and its report ask for the same events again and again.

    A unit that is not there and one that counts as nothing are one and the same, but for cohorts of which it takes a place.

    Example:
        >>> events = ((Gaussian(noise_multiplier=1.0), 1),)
        >>> epsilon_once(events, 1e-6, "zero-out", "tight") == epsilon_once(events, 1e-6, "add-or-remove-one", "tight")
        True
    """
    places = any(isinstance(event, FixedSizeSampled | TruncatedPoissonSampled) for event, _ in events)
    if neighboring_relation == "add-or-remove-one" and not places:
        return epsilon_once(events, delta, "zero-out", accountant)
    return epsilon(events, delta, neighboring_relation, accountant)


def _epsilon(events: Events, delta: float, relation: NeighboringRelation) -> float:
    if by_divergences(events):
        return rdp_epsilon(events, delta, relation)
    plain = unamplified_epsilon(events, delta, relation)
    if one_gaussian(events) or plain == 0:
        return plain
    if delta < _LEAST_DELTA or _hopeless(events, relation):
        return min(plain, rdp_epsilon(events, delta, relation))
    forth, back = _laws(events, relation)
    # A number that is none would get lost in a maximum.
    answer = _require_bound("epsilon", pld.epsilon(forth, delta))
    if back is not None:
        answer = max(answer, _require_bound("epsilon", pld.epsilon(back, delta, enough=answer)))
    if answer > _LARGE_EPSILON and not any(isinstance(event, TruncatedPoissonSampled) for event, _ in events):
        # Of truncated cohorts, of which each is dozens of laws, it would take seconds.
        answer = min(answer, rdp_epsilon(events, delta, relation))
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
        BudgetError: What was computed is no number.

    Example:
        >>> f"{delta([(Gaussian(noise_multiplier=1.0), 1)], epsilon=2.0, neighboring_relation='zero-out') :.6f}"
        '0.020924'
    """
    eps = non_negative("epsilon", epsilon)
    rounds, relation = _asked(events, neighboring_relation, accountant)
    if not rounds:
        return 0.0
    answer = rdp_delta if accountant == "rdp" else _delta
    return _require_bound("delta", answer(rounds, eps, relation))


def _delta(events: Events, eps: float, relation: NeighboringRelation) -> float:
    if by_divergences(events):
        return rdp_delta(events, eps, relation)
    plain = unamplified_delta(events, eps, relation)
    if one_gaussian(events) or plain < _LEAST_DELTA:
        return plain
    if _hopeless(events, relation):
        return min(plain, rdp_delta(events, eps, relation))
    forth, back = _laws(events, relation)
    # A number that is none would get lost in a maximum.
    answer = _require_bound("delta", pld.delta(forth, eps))
    if back is not None and answer < 1:
        answer = max(answer, _require_bound("delta", pld.delta(back, eps)))
    # No law here is bounded in both directions: what underflows is not 0, and of smaller numbers digits get lost.
    return max(min(plain, answer), sys.float_info.min)


def _asked(events: Events, neighboring_relation: str, accountant: str) -> tuple[list[tuple[Event, int]], NeighboringRelation]:
    one_of("accountant", accountant, ACCOUNTANTS)
    return counted(events), require_relation(neighboring_relation)


def _require_bound(name: str, answer: float) -> float:
    """What was computed, unless it bounds nothing: what is not known must not pass for little."""
    if not answer >= 0:
        raise BudgetError(
            f"{name} = {answer!r} was computed, which bounds nothing: nothing may be released on it; try another accountant, "
            "and report this with the settings"
        )
    return answer


def _hopeless(events: Events, relation: NeighboringRelation) -> bool:
    return any(_usual_mu(event, relation) > _LARGEST_MU for event, _ in events)


def _usual_mu(event: Event, relation: NeighboringRelation) -> float:
    """μ of one release with its coins seen; of a mixture the mean over them, as its largest norm may be most unlikely."""
    mu = unamplified_mu([(event, 1)], relation)
    if not isinstance(event, MixtureOfGaussians):
        return mu
    mean = math.fsum(p * s for p, s in zip(event.probabilities, event.sensitivities, strict=True))
    return mu * mean / max(event.sensitivities)


def _laws(events: Events, relation: NeighboringRelation) -> tuple[pld.Rounds, pld.Rounds | None]:
    """The laws of both directions; none for the second where it is the first."""
    certain = [(event, rounds) for event, rounds in events if isinstance(event, Gaussian | TreeAggregation)]
    sampled: list[tuple[Event, int]] = [
        (event, rounds) for event, rounds in events if not isinstance(event, Gaussian | TreeAggregation)
    ]
    if certain:
        # All certain releases are one: exact, and nothing to split on a mesh. Its μ already knows the relation.
        sampled.append((Gaussian(min(1 / unamplified_mu(certain, relation), 1e12)), 1))
    both = [(directions(event, "zero-out" if isinstance(event, Gaussian) else relation), rounds) for event, rounds in sampled]
    forth = [(laws[0], rounds) for laws, rounds in both]
    back = [(laws[1], rounds) for laws, rounds in both]
    return forth, None if forth == back else back
