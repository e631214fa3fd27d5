"""From a budget to the noise that meets it; the answer never exceeds the budget.

It was accounted for and fits, and a millionth less noise was and does not.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from hubbub import gaussian
from hubbub._checks import integer, one_of, open_unit, scale
from hubbub.accounting.charge import charges, stated_relation
from hubbub.accounting.composition import ACCOUNTANTS
from hubbub.accounting.composition import epsilon as composed_epsilon
from hubbub.accounting.events import MOST_ROUNDS, Event, Gaussian, NeighboringRelation, require_relation
from hubbub.accounting.gauges import log_noise
from hubbub.accounting.guarantee import guarantee
from hubbub.errors import BudgetError
from hubbub.mechanism import Mechanism, NoiseShares
from hubbub.participation import Participation, RandomParticipation
from hubbub.roots import Grid, Line, bracket, first, grown, pushed
from hubbub.strategies.strategy import Strategy

__all__ = ["budget_of", "calibrate", "calibrate_noise_multiplier", "cost_of"]

# Of noise, relatively.
_WIDTH = 1e-6
_MOST_NOISE = 1e12
# How a search goes up from a first guess, and how near it comes.
_STRIDE, _NARROW = 1.2, 1e-6


def calibrate_noise_multiplier(
    event: Event, rounds: int, epsilon: float, delta: float, neighboring_relation: str, accountant: str = "tight"
) -> float:
    """The least noise multiplier with which ``rounds`` such events cost at most ``epsilon``, rounded up.

    It is at most a millionth above the least that the accountant accepts.

    Args:
        event: What a round costs; its own noise multiplier is ignored.
        rounds: At least 1.
        epsilon: From 1e-12 to 1e12.
        delta: Strictly between 0 and 1.
        neighboring_relation: As for :func:`hubbub.accounting.epsilon`.
        accountant: As for :func:`hubbub.accounting.epsilon`.

    Raises:
        BudgetError: No noise multiplier up to 1e12 meets the budget, or the accountant has no bound for the event.
        ValueError: A number out of range.

    Example:
        >>> from hubbub.accounting import PoissonSampled
        >>> event = PoissonSampled(noise_multiplier=1.0, sampling_probability=0.01)
        >>> f"{calibrate_noise_multiplier(event, 2000, 2.0, 1e-6, 'add-or-remove-one'):.3f}"
        '1.246'
    """
    target, relation = budget_of(epsilon, delta, neighboring_relation)
    integer("rounds", rounds, at_least=1, at_most=MOST_ROUNDS)

    def events(z: float) -> list[tuple[Event, int]]:
        return [(replace(event, noise_multiplier=z), rounds)]

    cost = cost_of(lambda z: composed_epsilon(events(z), delta, relation, accountant))
    if isinstance(event, Gaussian) and accountant == "tight":
        factor = 2 if relation == "replace-one" else 1
        return _nudged(cost, target, factor * math.sqrt(rounds) * gaussian.noise_multiplier(target, delta))
    line = Line(lambda eps: log_noise(event, rounds, relation, eps, delta), target)
    most = math.floor(math.log(_MOST_NOISE) / _WIDTH)
    grid = Grid(-most, most, lambda i: i * _WIDTH, lambda log_z: math.ceil(log_z / _WIDTH))
    found = first(lambda i: cost(math.exp(i * _WIDTH)), line, grid, grid.index(line.wanted or 0.0))
    if found is None:
        # The accountant's own refusal, where it has one, says more.
        composed_epsilon(events(_MOST_NOISE), delta, relation, accountant)
        raise _no_noise(epsilon)
    return math.exp(found * _WIDTH)


def budget_of(epsilon: float, delta: float, neighboring_relation: str) -> tuple[float, NeighboringRelation]:
    """The epsilon and the relation of a budget, checked, with its delta.

    Raises:
        ValueError: A number out of range, or no such relation.
    """
    target, relation = scale("epsilon", epsilon), require_relation(neighboring_relation)
    open_unit("delta", delta)
    return target, relation


def _no_noise(epsilon: float) -> BudgetError:
    return BudgetError(
        f"epsilon = {epsilon!r}: no noise multiplier up to {_MOST_NOISE:g} meets it; allow a larger epsilon or delta"
    )


def cost_of(of: Callable[[float], float]) -> Callable[[float], float]:
    """A cost for a search: infinite where the accountant has no answer."""

    def cost(value: float) -> float:
        try:
            return of(value)
        except BudgetError:
            return math.inf

    return cost


def _nudged(cost: Callable[[float], float], target: float, noise_multiplier: float) -> float:
    """The noise multiplier, raised until its cost meets the target: what rounding needs, and no more."""
    z = pushed(max(noise_multiplier, 1 / _MOST_NOISE), lambda z: cost(z) <= target, at_most=_MOST_NOISE)
    if z == math.inf:
        raise _no_noise(target)
    return z


def _raised(cost: Callable[[float], float], target: float, noise_multiplier: float) -> float:
    """The least noise multiplier from a first one on whose cost meets the target, to a millionth."""
    less, enough = grown(lambda z: cost(z) <= target, noise_multiplier, noise_multiplier, _STRIDE, at_most=_MOST_NOISE)
    if enough == math.inf:
        raise _no_noise(target)
    return bracket(lambda z: cost(z) <= target, less, enough, within=_NARROW)[1]


def calibrate(
    strategy: Strategy,
    participation: Participation,
    *,
    epsilon: float,
    delta: float,
    neighboring_relation: str | None = None,
    accountant: str = "tight",
    shares: NoiseShares | None = None,
) -> Mechanism:
    """The mechanism with the least noise that meets a budget.

    Args:
        strategy: How noise is correlated.
        participation: Who may contribute when.
        epsilon: From 1e-12 to 1e12.
        delta: Strictly between 0 and 1.
        neighboring_relation: By default zero-out for patterns and add-or-remove-one for Poisson cohorts.
        accountant: As for :func:`hubbub.accounting.epsilon`.
        shares: Where the clients bring the noise along.

    Raises:
        BudgetError: No noise meets the budget.
        ConfigError: The two cannot be accounted for together.
        ValueError: A number out of range, or a relation that no theorem covers.

    Example:
        >>> from hubbub.participation import MinSeparation
        >>> from hubbub.strategies import Identity
        >>> round(calibrate(Identity(100), MinSeparation(10, 10), epsilon=2.0, delta=1e-5).noise_multiplier, 3)
        6.305
    """
    trial = Mechanism(strategy, participation, noise_multiplier=1.0)
    open_unit("delta", delta)
    one_of("accountant", accountant, ACCOUNTANTS)
    relation = stated_relation(participation, neighboring_relation)
    charged = charges(trial, trial.rounds)
    if isinstance(participation, RandomParticipation):
        [(event, rounds)] = charged
        z = calibrate_noise_multiplier(event, rounds, epsilon, delta, relation, accountant)
    else:
        whole = calibrate_noise_multiplier(Gaussian(1.0), 1, epsilon, delta, relation, accountant)
        z = whole * trial.l2_sensitivity / trial.column_norm

    def cost(multiplier: float) -> float:
        made = Mechanism(strategy, participation, multiplier, shares)
        return guarantee(made, delta, relation, accountant=accountant).epsilon

    # Shares cost a little more than one Gaussian.
    z = z if shares is None else _raised(cost, epsilon, z)
    return Mechanism(strategy, participation, _nudged(cost, epsilon, z), shares)
