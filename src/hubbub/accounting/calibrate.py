"""From a budget to the least noise that meets it, and from noise to the rounds, sampling and separation that a budget allows.

Every answer was accounted for and meets the budget, and its neighbor (a millionth less noise, a millionth more sampling, one
round more) was accounted for and does not. A cost is searched by the noise multiplier of the one Gaussian release that costs as
much: its logarithm is nearly a line in that of the noise, the rounds or the sampling.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from hubbub._util.checks import integer, one_of, open_unit, scale
from hubbub._util.roots import Grid, bracket, first, grown, pushed
from hubbub.accounting.composition import ACCOUNTANTS, epsilon_once
from hubbub.accounting.events import (
    MOST_ROUNDS,
    Event,
    FixedSizeSampled,
    Gaussian,
    PoissonSampled,
    TruncatedPoissonSampled,
    require_event,
    require_relation,
)
from hubbub.accounting.events_of_mechanism import mechanism_events, stated_relation
from hubbub.accounting.guarantee import guarantee
from hubbub.accounting.runs import RunCharge, events_of, require_together
from hubbub.accounting.statement import rounded_up
from hubbub.accounting.wording import UNITS
from hubbub.errors import BudgetError, ConfigError
from hubbub.mechanism import Mechanism, NoiseShares, gaussian
from hubbub.mechanism.participation import MinSeparation, Participation, RandomParticipation
from hubbub.mechanism.private_evaluation import PrivateEvaluation
from hubbub.mechanism.strategies import Identity
from hubbub.mechanism.strategies.strategy import Strategy, require_strategy

# Of noise and of sampling, relatively.
_WIDTH = 1e-6
_MOST_NOISE, _LEAST_PROBABILITY = 1e12, 1e-12
# Beyond these epsilons no Gaussian is asked for.
_LEAST, _MOST = 1e-12, 1e12
# How a search goes up from a first guess: noise in shares costs a little more than one Gaussian.
_STRIDE, _STRIDE_OF_SHARES = 2.0, 1.2
_Number = TypeVar("_Number", int, float)


class _Budget:
    """An epsilon at a delta under a relation, checked, and the search of what it allows."""

    def __init__(self, epsilon: float, delta: float, neighboring_relation: str, accountant: str = "tight") -> None:
        self.epsilon, self.delta = scale("epsilon", epsilon), open_unit("delta", delta)
        self.relation, self.accountant = require_relation(neighboring_relation), accountant

    def cost(self, *events: tuple[Event, int]) -> float:
        """Epsilon of the events."""
        return epsilon_once(events, self.delta, self.relation, self.accountant)

    def cost_by(self, number: str, event: Event, rounds: int) -> Callable[[float], float]:
        """Epsilon of so many such events, by one of their numbers."""
        rounds = integer("rounds", rounds, at_least=1, at_most=MOST_ROUNDS)
        return lambda value: self.cost((replace(event, **{number: value}), rounds))  # type: ignore[arg-type] # a field of it

    def log_noise(self, epsilon: float) -> float:
        """ln z of the one Gaussian release that costs ``epsilon``, or the nearest one that a float can tell."""
        return math.log(gaussian.noise_multiplier(min(max(epsilon, _LEAST), _MOST), self.delta))

    def first(self, cost: Callable[[int], float], grid: Grid, start: float = 0.0) -> int | None:
        """The first index of a grid whose cost, which falls, meets the budget; ``None`` where none does. ``start``: a guess."""
        return first(lambda index: _known(cost, index), self.epsilon, self.log_noise, grid, grid.index(start))

    def most(self, cost: Callable[[int], float], at_most: int) -> int | None:
        """The largest whole number whose cost, which grows with it, meets the budget; ``None`` if 1 does not."""
        grid = Grid(-at_most, -1, lambda i: -math.log(-i), lambda c: -_whole(-c, at_most))
        found = self.first(lambda i: cost(-i), grid)
        return None if found is None else -found

    def too_little_noise(self, least: str, cost: float, noise_multiplier: float) -> BudgetError:
        """The error of a search for which even the least that it may answer costs too much."""
        return BudgetError(
            f"epsilon = {self.epsilon!r}: {least} costs {rounded_up(cost)}; add noise: noise_multiplier = {noise_multiplier!r}"
        )


def _known(cost: Callable[[_Number], float], at: _Number) -> float:
    """A cost, infinite where the accountant has no bound."""
    try:
        return cost(at)
    except BudgetError:
        return math.inf


def _whole(log: float, most: int) -> int:
    """The largest whole number up to e^log, from 1 to ``most``."""
    return most if log > math.log(most) else max(1, math.floor(math.exp(log)))


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
    require_event(event)
    budget = _Budget(epsilon, delta, neighboring_relation, accountant)
    cost = budget.cost_by("noise_multiplier", event, rounds)
    if isinstance(event, Gaussian) and accountant == "tight":
        factor = 2 if budget.relation == "replace-one" else 1
        return _pushed(
            cost, budget.epsilon, factor * math.sqrt(rounds) * gaussian.noise_multiplier(budget.epsilon, budget.delta)
        )

    most = math.floor(math.log(_MOST_NOISE) / _WIDTH)
    grid = Grid(-most, most, lambda i: i * _WIDTH, lambda log_z: math.ceil(log_z / _WIDTH))
    found = budget.first(lambda i: cost(math.exp(i * _WIDTH)), grid, budget.log_noise(budget.epsilon) + math.log(rounds) / 2)
    if found is None:
        # The accountant's own refusal, where it has one, says more.
        cost(_MOST_NOISE)
        raise _no_noise(epsilon)
    return math.exp(found * _WIDTH)


def _no_noise(epsilon: float) -> BudgetError:
    return BudgetError(
        f"epsilon = {epsilon!r}: no noise multiplier up to {_MOST_NOISE:g} meets it; allow a larger epsilon or delta"
    )


def _pushed(cost: Callable[[float], float], target: float, noise_multiplier: float) -> float:
    """The noise multiplier, raised until its cost meets the target: what rounding needs, and no more."""
    z = pushed(max(noise_multiplier, 1 / _MOST_NOISE), lambda z: _known(cost, z) <= target, at_most=_MOST_NOISE)
    if z == math.inf:
        raise _no_noise(target)
    return z


def calibrate_rounds(event: Event, epsilon: float, delta: float, neighboring_relation: str, accountant: str = "tight") -> int:
    """How many such events cost at most ``epsilon``, 10¹² at most: one more was accounted for, too, and costs more.

    Args:
        event: What a round costs; of a tree or of balls in bins, what a whole run of its rounds does.
        epsilon: From 1e-12 to 1e12, with delta, relation and accountant as for :func:`calibrate_noise_multiplier`.

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
    require_event(event)
    budget = _Budget(epsilon, delta, neighboring_relation, accountant)
    found = budget.most(lambda n: budget.cost((event, n)), MOST_ROUNDS)
    if found is None:
        z = calibrate_noise_multiplier(event, 1, epsilon, delta, neighboring_relation, accountant)
        raise BudgetError(
            f"epsilon = {epsilon!r}: one round alone costs {rounded_up(budget.cost((event, 1)))}; a noise multiplier of {z!r} "
            f"instead of {event.noise_multiplier!r} would allow one"
        )
    return found


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
        epsilon: From 1e-12 to 1e12, with delta, relation and accountant as for :func:`calibrate_noise_multiplier`.

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
    budget = _Budget(epsilon, delta, neighboring_relation, accountant)
    cost = budget.cost_by("sampling_probability", event, rounds)
    most = math.floor(-math.log(_LEAST_PROBABILITY) / _WIDTH)
    grid = Grid(0, most, lambda i: i * _WIDTH, lambda c: math.ceil(min(c / _WIDTH, most + 1)))
    found = budget.first(lambda i: cost(math.exp(-i * _WIDTH)), grid, -math.log(0.01))
    if found is None:
        raise budget.too_little_noise(
            f"not even a sampling probability of {_LEAST_PROBABILITY:g} meets it, which",
            cost(_LEAST_PROBABILITY),
            event.noise_multiplier,
        )
    return math.exp(-found * _WIDTH)


def calibrate_cohort_size(
    event: FixedSizeSampled, rounds: int, epsilon: float, delta: float, neighboring_relation: str, accountant: str = "tight"
) -> int:
    """The largest cohort with which ``rounds`` such events cost at most ``epsilon``: one member more was accounted for, too.

    Args:
        event: What a round costs; its own cohort size is ignored.
        rounds: At least 1.
        epsilon: From 1e-12 to 1e12, with delta, relation and accountant as for :func:`calibrate_noise_multiplier`.

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
    budget = _Budget(epsilon, delta, neighboring_relation, accountant)
    cost = budget.cost_by("cohort_size", event, rounds)
    found = budget.most(cost, event.population)
    if found is None:
        raise budget.too_little_noise("not even a cohort of one client meets it, which", cost(1), event.noise_multiplier)
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
    budget = _Budget(epsilon, delta, neighboring_relation)
    if max_participations is not None:
        max_participations = integer("max_participations", max_participations, at_least=1)
    require_strategy(strategy)
    rounds = strategy.rounds

    def cost(separation: int) -> float:
        k = math.ceil(rounds / separation) if max_participations is None else max_participations
        mechanism = Mechanism(strategy, MinSeparation(separation, k), noise_multiplier)
        return guarantee(mechanism, delta, neighboring_relation).epsilon

    found = budget.first(cost, Grid(1, rounds, math.log, lambda c: _whole(c, rounds)), math.log(rounds))
    if found is None:
        raise budget.too_little_noise("one round of each client alone", cost(rounds), noise_multiplier)
    return found


def calibrate(
    strategy: Strategy | None = None,
    participation: Participation | None = None,
    *,
    epsilon: float,
    delta: float,
    rounds: int | None = None,
    neighboring_relation: str | None = None,
    accountant: str = "tight",
    shares: NoiseShares | None = None,
    prior: Sequence[RunCharge] = (),
    privacy_unit: str = "client",
    evaluation: PrivateEvaluation | None = None,
) -> Mechanism:
    """The mechanism with the least noise that meets a budget, rounded up.

    Args:
        strategy: How noise is correlated; by default it is not, and ``rounds`` says how many rounds there are.
        participation: Who may contribute when.
        epsilon: From 1e-12 to 1e12.
        delta: Strictly between 0 and 1.
        neighboring_relation: By default zero-out for patterns and add-or-remove-one for Poisson cohorts.
        accountant: As for :func:`hubbub.accounting.epsilon`.
        shares: Where the clients bring the noise along.
        rounds: n, in place of a strategy.
        prior: Earlier runs over the same people, which count against the budget, too, computed anew under the relation.
        privacy_unit: Whose contribution is clipped as one, ``"client"`` or ``"example"``: that of the earlier runs.
        evaluation: What the run measures under noise, which counts against the budget, too.

    Raises:
        BudgetError: No noise meets the budget, or the earlier runs alone have spent it.
        ConfigError: Strategy and participation cannot be accounted for together, an earlier run does not add up with this one,
            or there are shares together with earlier runs or evaluations.
        ValueError: A number out of range, or a relation that no theorem covers.
        TypeError: No participation, or not one of strategy and rounds.

    Example:
        >>> from hubbub.mechanism.participation import MinSeparation, PoissonSampling
        >>> round(calibrate(rounds=100, participation=PoissonSampling(0.1), epsilon=4.0, delta=1e-5).noise_multiplier, 3)
        1.386
        >>> from hubbub.mechanism.strategies import Identity
        >>> round(calibrate(Identity(100), MinSeparation(10, 10), epsilon=2.0, delta=1e-5).noise_multiplier, 3)
        6.305
    """
    if participation is None:
        raise TypeError("participation: is missing; say who may contribute when, such as PoissonSampling(0.1)")
    one_of("privacy_unit", privacy_unit, UNITS)
    if (strategy is None) == (rounds is None):
        raise TypeError("strategy and rounds: give one; without a strategy noise is independent over that number of rounds")
    strategy = Identity(integer("rounds", rounds, at_least=1)) if strategy is None else strategy
    if (prior or evaluation) and shares is not None:
        raise ConfigError(
            "prior or evaluation with shares: noise in shares is calibrated without them; give the noise multiplier"
        )
    trial = Mechanism(strategy, participation, noise_multiplier=1.0)
    one_of("accountant", accountant, ACCOUNTANTS)
    budget = _Budget(epsilon, delta, stated_relation(participation, neighboring_relation), accountant)
    unit = mechanism_events(trial, trial.rounds)
    times = 0 if evaluation is None else evaluation.times(strategy.rounds)
    measured = (evaluation.mechanism(times), times) if evaluation and times else None
    before = _before(prior, measured, budget, privacy_unit) if prior or evaluation else ()
    z = _least_noise(trial, unit, budget)

    def stated(z: float) -> float:
        made = Mechanism(strategy, participation, z, shares)
        return guarantee(
            made, delta, budget.relation, accountant=accountant, privacy_unit=privacy_unit, earlier=prior, evaluation=measured
        ).epsilon

    def meets(z: float) -> bool:
        if shares is not None:
            return stated(z) <= budget.epsilon
        # The cost of a mechanism depends on its noise by a factor in each event.
        own = ((replace(event, noise_multiplier=event.noise_multiplier * z), count) for event, count in unit)
        return budget.cost(*before, *own) <= budget.epsilon

    if shares is not None or prior or evaluation:
        less, z = grown(meets, z, z, _STRIDE if shares is None else _STRIDE_OF_SHARES, at_most=_MOST_NOISE)
        if z == math.inf:
            raise _no_noise(epsilon)
        z = bracket(meets, less, z, within=_WIDTH)[1]
    return Mechanism(strategy, participation, _pushed(stated, budget.epsilon, z), shares)


def _least_noise(trial: Mechanism, unit: tuple[tuple[Event, int], ...], budget: _Budget) -> float:
    """The noise multiplier with which a mechanism, and nothing else, costs about the budget."""
    if isinstance(trial.participation, RandomParticipation):
        [(event, rounds)] = unit
        return calibrate_noise_multiplier(event, rounds, budget.epsilon, budget.delta, budget.relation, budget.accountant)
    whole = calibrate_noise_multiplier(Gaussian(1.0), 1, budget.epsilon, budget.delta, budget.relation, budget.accountant)
    return whole * trial.sensitivity.value / trial.column_norm


def _before(
    prior: Sequence[RunCharge], measured: tuple[Mechanism, int] | None, budget: _Budget, privacy_unit: str
) -> tuple[tuple[Event, int], ...]:
    """The events of earlier runs and evaluations, unless they alone cost the budget."""
    require_together(prior, privacy_unit, budget.relation)
    earlier = events_of(prior)
    before = () if earlier is None else (*earlier, *(mechanism_events(*measured) if measured else ()))
    spent = math.inf if earlier is None else budget.cost(*before)
    if spent >= budget.epsilon:
        who = " and ".join(["the earlier runs"] * bool(prior) + ["the private evaluations"] * bool(measured))
        raise BudgetError(
            f"epsilon = {budget.epsilon!r}: {who} alone cost {rounded_up(spent)} at delta {budget.delta:g}; raise the budget"
            + (", or give the evaluations more noise" if measured else ", or train on other people")
        )
    return before
