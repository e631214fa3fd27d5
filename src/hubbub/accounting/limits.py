"""From a budget and its noise to what they allow: rounds, sampling, cohorts, how often one client may take part.

Every answer was accounted for and fits, and the next one (a round more, a millionth more sampling) was and does not.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from hubbub._util.checks import integer, scale
from hubbub._util.roots import Grid, Line, first
from hubbub.accounting.calibrate import budget_of, calibrate_noise_multiplier, cost_of, log_rounds, log_whole
from hubbub.accounting.composition import epsilon as composed_epsilon
from hubbub.accounting.events import (
    MOST_ROUNDS,
    Event,
    FixedSizeSampled,
    PoissonSampled,
    TruncatedPoissonSampled,
)
from hubbub.accounting.guarantee import guarantee
from hubbub.errors import BudgetError
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import MinSeparation
from hubbub.mechanism.strategies.strategy import Strategy

__all__ = ["calibrate_cohort_size", "calibrate_min_separation", "calibrate_rounds", "calibrate_sampling_probability"]

_WIDTH = 1e-6
_LEAST_PROBABILITY = 1e-12


def calibrate_rounds(event: Event, epsilon: float, delta: float, neighboring_relation: str, accountant: str = "tight") -> int:
    """How many such events cost at most ``epsilon``, 10¹² at most: one more was accounted for, too, and costs more.

    Args:
        event: What a round costs; of a tree or of balls in bins, what a whole run of its rounds does.
        epsilon: From 1e-12 to 1e12.
        delta: Strictly between 0 and 1.
        neighboring_relation: As for :func:`hubbub.accounting.epsilon`.
        accountant: As for :func:`hubbub.accounting.epsilon`.

    Returns:
        At least 1, and at most 10¹², where the search ends.

    Raises:
        BudgetError: One round alone costs more.
        ValueError: A number out of range.

    Example:
        >>> from hubbub.accounting import PoissonSampled
        >>> calibrate_rounds(PoissonSampled(1.0, 0.01), epsilon=1.0, delta=1e-6, neighboring_relation="add-or-remove-one")
        120
    """
    target, relation = budget_of(epsilon, delta, neighboring_relation)

    def cost(n: float) -> float:
        return composed_epsilon([(event, int(n))], delta, relation, accountant)

    line = Line(lambda eps: log_whole(eps, delta, 2), target)
    found = _most(cost, line, MOST_ROUNDS, log_rounds(event, relation, target, delta))
    if found is None:
        z = calibrate_noise_multiplier(event, 1, epsilon, delta, relation, accountant)
        raise BudgetError(
            f"epsilon = {epsilon!r}: one round alone costs {cost(1):.6g}; a noise multiplier of {z:.6g} instead of "
            f"{event.noise_multiplier!r} would allow one"
        )
    return found


def _most(cost: Callable[[float], float], line: Line, at_most: int, log_start: float) -> int | None:
    """The largest whole number up to a limit whose cost, which grows with it, meets a target; ``None`` if 1 does not."""
    grid = Grid(-at_most, -1, lambda i: -math.log(-i), lambda c: -_whole(-c, at_most))
    found = first(lambda i: cost_of(cost)(-i), line, grid, grid.index(-log_start))
    return None if found is None else -found


def _whole(log: float, most: int) -> int:
    """The largest whole number up to e^log, from 1 to ``most``."""
    return most if log > math.log(most) else max(1, math.floor(math.exp(log)))


def calibrate_sampling_probability(
    event: PoissonSampled | TruncatedPoissonSampled,
    rounds: int,
    epsilon: float,
    delta: float,
    neighboring_relation: str,
    accountant: str = "tight",
) -> float:
    """The largest sampling probability with which ``rounds`` such events cost at most ``epsilon``, rounded down.

    It is at most a millionth below the largest that the accountant accepts.

    Args:
        event: What a round costs; its own sampling probability is ignored.
        rounds: At least 1.
        epsilon: From 1e-12 to 1e12.
        delta: Strictly between 0 and 1.
        neighboring_relation: As for :func:`hubbub.accounting.epsilon`.
        accountant: As for :func:`hubbub.accounting.epsilon`.

    Raises:
        BudgetError: Not even 1e-12 meets the budget: there is too little noise.
        TypeError: Another event, which has no sampling probability.
        ValueError: A number out of range.

    Example:
        >>> q = calibrate_sampling_probability(PoissonSampled(1.0, 1.0), 1000, 1.0, 1e-6, "add-or-remove-one")
        >>> f"{q:.4f}"
        '0.0049'
    """
    if not isinstance(event, PoissonSampled | TruncatedPoissonSampled):
        raise TypeError(
            f"event = {event!r}: has no sampling probability of its own; give PoissonSampled or TruncatedPoissonSampled, "
            "or use calibrate_cohort_size for cohorts of a fixed size"
        )
    target, relation = budget_of(epsilon, delta, neighboring_relation)
    integer("rounds", rounds, at_least=1, at_most=MOST_ROUNDS)

    def cost(q: float) -> float:
        return composed_epsilon([(replace(event, sampling_probability=q), rounds)], delta, relation, accountant)

    line = Line(lambda eps: log_whole(eps, delta), target)
    most = math.floor(-math.log(_LEAST_PROBABILITY) / _WIDTH)
    grid = Grid(0, most, lambda i: i * _WIDTH, lambda c: math.ceil(min(c / _WIDTH, most + 1)))
    start = _log_sampling(replace(event, sampling_probability=0.01), 0.01, rounds, relation, target, delta)
    found = first(lambda i: cost_of(cost)(math.exp(-i * _WIDTH)), line, grid, grid.index(-start))
    if found is None:
        raise BudgetError(
            f"epsilon = {epsilon!r}: not even a sampling probability of {_LEAST_PROBABILITY:g} meets it, which costs "
            f"{cost(_LEAST_PROBABILITY):.6g}; add noise: noise_multiplier = {event.noise_multiplier!r}"
        )
    return math.exp(-found * _WIDTH)


def _log_sampling(event: Event, q: float, rounds: int, relation: str, epsilon: float, delta: float) -> float:
    """About ln of the sampling probability that costs ``epsilon``: as many rounds cost as much as the square of q says."""
    return math.log(q) + (log_rounds(event, relation, epsilon, delta) - math.log(rounds)) / 2


def calibrate_cohort_size(
    event: FixedSizeSampled, rounds: int, epsilon: float, delta: float, neighboring_relation: str, accountant: str = "tight"
) -> int:
    """The largest cohort with which ``rounds`` such events cost at most ``epsilon``: one member more was accounted for, too.

    Args:
        event: What a round costs; its own cohort size is ignored.
        rounds: At least 1.
        epsilon: From 1e-12 to 1e12.
        delta: Strictly between 0 and 1.
        neighboring_relation: As for :func:`hubbub.accounting.epsilon`.
        accountant: As for :func:`hubbub.accounting.epsilon`.

    Raises:
        BudgetError: Not even a cohort of one client meets the budget.
        TypeError: Another event, whose cohorts have no fixed size.
        ValueError: A number out of range.

    Example:
        >>> event = FixedSizeSampled(noise_multiplier=2.0, cohort_size=1, population=10_000)
        >>> calibrate_cohort_size(event, 1000, 2.5, 1e-6, "replace-one")
        99
    """
    if not isinstance(event, FixedSizeSampled):
        raise TypeError(
            f"event = {event!r}: has no cohort of a fixed size; give FixedSizeSampled, or use calibrate_sampling_probability "
            "for Poisson cohorts"
        )
    target, relation = budget_of(epsilon, delta, neighboring_relation)
    integer("rounds", rounds, at_least=1, at_most=MOST_ROUNDS)

    def cost(m: float) -> float:
        return composed_epsilon([(replace(event, cohort_size=int(m)), rounds)], delta, relation, accountant)

    one = replace(event, cohort_size=1)
    start = _log_sampling(one, 1 / event.population, rounds, relation, target, delta) + math.log(event.population)
    found = _most(cost, Line(lambda eps: log_whole(eps, delta), target), event.population, start)
    if found is None:
        raise BudgetError(
            f"epsilon = {epsilon!r}: not even a cohort of one client meets it, which costs {cost(1):.6g}; add noise: "
            f"noise_multiplier = {event.noise_multiplier!r}"
        )
    return found


def calibrate_min_separation(
    strategy: Strategy,
    *,
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    neighboring_relation: str = "zero-out",
    max_participations: int | None = None,
) -> int:
    """How few rounds may lie from one participation of a client to the next: one less was accounted for, too, and costs more.

    Args:
        strategy: How noise is correlated.
        noise_multiplier: As of a :class:`hubbub.mechanism.Mechanism`.
        epsilon: From 1e-12 to 1e12.
        delta: Strictly between 0 and 1.
        neighboring_relation: ``"zero-out"`` or ``"replace-one"``.
        max_participations: Of a client; by default as many as the separation leaves room for.

    Returns:
        From 1 to the strategy's rounds, at which each client takes part once.

    Raises:
        BudgetError: One participation of each client alone costs more.
        ValueError: A number out of range, or a relation that no theorem covers.

    Example:
        >>> from hubbub.mechanism.strategies import Identity
        >>> calibrate_min_separation(Identity(100), noise_multiplier=4.0, epsilon=2.0, delta=1e-5)
        25
    """
    target = scale("epsilon", epsilon)
    if max_participations is not None:
        integer("max_participations", max_participations, at_least=1)
    rounds = strategy.rounds

    def cost(separation: int) -> float:
        k = math.ceil(rounds / separation) if max_participations is None else max_participations
        mechanism = Mechanism(strategy, MinSeparation(separation, k), noise_multiplier)
        return guarantee(mechanism, delta, neighboring_relation).epsilon

    line = Line(lambda eps: log_whole(eps, delta, 2), target)
    grid = Grid(1, rounds, math.log, lambda c: _whole(c, rounds))
    found = first(cost, line, grid, rounds)
    if found is None:
        raise BudgetError(
            f"epsilon = {epsilon!r}: one round of each client alone costs {cost(rounds):.6g}; add noise: "
            f"noise_multiplier = {noise_multiplier!r}"
        )
    return found
