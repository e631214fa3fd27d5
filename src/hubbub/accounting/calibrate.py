"""From a budget to the noise that meets it, alone or together with earlier runs over the same people.

The answer never exceeds the budget: it was accounted for and fits, and a millionth less noise was and does not. A guess
of the noise, the rounds or the sampling to which a cost belongs is where a search starts, never what it answers.

Letters: n rounds, q sampling probability, z noise multiplier, μ of the Gaussian whose cost is as high.

Source: the central limit μ = q·√(n·(e^{1/z²} − 1)) of Bu, Dong, Long and Su 2020, https://arxiv.org/abs/1911.11607, which is
no bound; of one round alone, Balle, Barthe and Gaboardi 2018, Theorem 8, https://arxiv.org/abs/1807.01647.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from hubbub._util.checks import integer, one_of, open_unit, scale
from hubbub._util.roots import Grid, Line, bracket, first, grown, pushed
from hubbub.accounting.composition import ACCOUNTANTS, epsilon_once
from hubbub.accounting.events import (
    MOST_ROUNDS,
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
    require_relation,
)
from hubbub.accounting.events_of_mechanism import charges, stated_relation
from hubbub.accounting.guarantee import guarantee
from hubbub.accounting.runs import RunCharge, events_of, require_together
from hubbub.accounting.statement import rounded_up
from hubbub.accounting.wording import UNITS
from hubbub.errors import BudgetError, ConfigError
from hubbub.mechanism import Mechanism, NoiseShares, gaussian
from hubbub.mechanism.participation import Participation, RandomParticipation
from hubbub.mechanism.private_evaluation import PrivateEvaluation
from hubbub.mechanism.strategies import Identity
from hubbub.mechanism.strategies.strategy import Strategy

__all__ = ["budget_of", "calibrate", "calibrate_noise_multiplier", "cost_of", "log_noise", "log_rounds", "log_whole"]

# Beyond these epsilon no Gaussian is asked for.
_LEAST, _MOST = 1e-12, 1e12


def log_whole(epsilon: float, delta: float, power: int = 1) -> float | None:
    """−ln μ^power of the one Gaussian release that costs ``epsilon``; ``None`` where no float does.

    Example:
        >>> round(math.exp(log_whole(2.0, 1e-6)), 3)
        2.23
    """
    return power * math.log(gaussian.noise_multiplier(epsilon, delta)) if _LEAST <= epsilon <= _MOST else None


def log_noise(event: Event, rounds: int, relation: str, epsilon: float, delta: float) -> float | None:
    """About ln z with which that many events cost ``epsilon``; ``None`` where nothing is known.

    Example:
        >>> round(math.exp(log_noise(PoissonSampled(1.0, 0.01), 2000, "zero-out", 2.0, 1e-6)), 2)
        1.26
    """
    whole = log_whole(epsilon, delta)
    if whole is None:
        return None
    q, steps, doubled = _sampling(event, rounds)
    unsampled = whole + math.log(steps) / 2
    factor = math.log(2) if doubled or relation == "replace-one" else 0.0
    if q == 1:
        return unsampled + factor
    ratio = -whole - math.log(q) - math.log(steps) / 2
    # ln(1 + ratio²) without overflow.
    limit = -math.log(max(math.log1p(math.exp(2 * ratio)) if ratio < 300 else 2 * ratio, 1e-300)) / 2
    # What one sampled round alone needs.
    inside = epsilon - math.log(q) if epsilon > 30 else math.log1p(math.expm1(epsilon) / q)
    alone = None if delta >= q else log_whole(inside, delta / q)
    if alone is None:
        return min(unsampled, limit) + factor
    top = max(limit, alone)
    # Both count; the third power is what fits.
    both = top + math.log(math.exp(3 * (limit - top)) + math.exp(3 * (alone - top))) / 3
    return min(unsampled, both) + factor


def _sampling(event: Event, rounds: int) -> tuple[float, int, bool]:
    """The chance of a unit to be in a step, how many steps there are, and whether the cohort's size doubles the sensitivity."""
    match event:
        case Gaussian() | TreeAggregation() | DiscreteGaussianShares():
            return 1.0, rounds, False
        case PoissonSampled(_, q) | TruncatedPoissonSampled(_, q):
            return q, rounds, False
        case FixedSizeSampled():
            return event.sampling_probability, rounds, True
        case MixtureOfGaussians(_, sensitivities, probabilities):
            return max(p for p, s in zip(probabilities, sensitivities, strict=True) if s), rounds, False
        case BallsInBins(_, bins, steps):
            return 1 / bins, rounds * steps, False


def log_rounds(event: Event, relation: str, epsilon: float, delta: float) -> float:
    """About ln n with which n such events cost ``epsilon``.

    Example:
        >>> round(math.exp(log_rounds(Gaussian(4.0), "zero-out", 2.0, 1e-6)), 2)
        3.22
    """
    whole = log_whole(epsilon, delta)
    q, steps, doubled = _sampling(event, 1)
    z = event.noise_multiplier / (2 if doubled or relation == "replace-one" else 1)
    inverse = min(z**-2, 1e300)
    per_round = math.log(inverse) if q == 1 else 2 * math.log(q) + (math.log(math.expm1(inverse)) if inverse < 700 else inverse)
    return (0.0 if whole is None else -2 * whole) - per_round - math.log(steps)


# Of noise, relatively.
_WIDTH = 1e-6
_MOST_NOISE = 1e12
# How a search goes up from a first guess.
_STRIDE = 1.2


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

    def known(z: float) -> float:
        return epsilon_once(((replace(event, noise_multiplier=z), rounds),), delta, relation, accountant)

    cost = cost_of(known)
    if isinstance(event, Gaussian) and accountant == "tight":
        factor = 2 if relation == "replace-one" else 1
        return _nudged(cost, target, factor * math.sqrt(rounds) * gaussian.noise_multiplier(target, delta))
    line = Line(lambda eps: log_noise(event, rounds, relation, eps, delta), target)
    most = math.floor(math.log(_MOST_NOISE) / _WIDTH)
    grid = Grid(-most, most, lambda i: i * _WIDTH, lambda log_z: math.ceil(log_z / _WIDTH))
    found = first(lambda i: cost(math.exp(i * _WIDTH)), line, grid, grid.index(line.wanted or 0.0))
    if found is None:
        # The accountant's own refusal, where it has one, says more.
        known(_MOST_NOISE)
        raise _no_noise(epsilon)
    return math.exp(found * _WIDTH)


def budget_of(epsilon: float, delta: float, neighboring_relation: str) -> tuple[float, NeighboringRelation]:
    """The epsilon and the relation of a budget, checked, with its delta.

    Raises:
        ValueError: A number out of range, or no such relation.

    Example:
        >>> budget_of(2, 1e-6, "zero-out")
        (2.0, 'zero-out')
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
    if strategy is None:
        strategy = Identity(integer("rounds", rounds, at_least=1))
    if (prior or evaluation) and shares is not None:
        raise ConfigError(
            "prior or evaluation with shares: noise in shares is calibrated without them; give the noise multiplier"
        )
    if prior or evaluation:
        return _together(
            prior,
            evaluation,
            strategy,
            participation,
            epsilon=epsilon,
            delta=delta,
            neighboring_relation=neighboring_relation,
            accountant=accountant,
            privacy_unit=privacy_unit,
        )
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
        z = whole * trial.sensitivity.value / trial.column_norm

    def cost(multiplier: float) -> float:
        made = Mechanism(strategy, participation, multiplier, shares)
        return guarantee(made, delta, relation, accountant=accountant).epsilon

    if shares is not None:
        # They cost a little more than one Gaussian.
        less, z = grown(lambda z: cost(z) <= epsilon, z, z, _STRIDE, at_most=_MOST_NOISE)
        if z == math.inf:
            raise _no_noise(epsilon)
        z = bracket(lambda z: cost(z) <= epsilon, less, z, within=_WIDTH)[1]
    return Mechanism(strategy, participation, _nudged(cost, epsilon, z), shares)


_LARGEST = 1e9


def _together(
    prior: Sequence[RunCharge],
    evaluation: PrivateEvaluation | None,
    strategy: Strategy,
    participation: Participation,
    *,
    epsilon: float,
    delta: float,
    neighboring_relation: str | None,
    accountant: str,
    privacy_unit: str,
) -> Mechanism:
    """The mechanism with the least noise that meets a budget together with earlier runs and evaluations, rounded up."""
    target, relation = scale("epsilon", epsilon), stated_relation(participation, neighboring_relation)
    require_together(prior, privacy_unit, relation)
    times = 0 if evaluation is None else evaluation.times(strategy.rounds)
    measured = evaluation.mechanism(times) if evaluation and times else None
    before = events_of(prior)
    if before is not None and measured is not None:
        before = (*before, *charges(measured, times))
    who = f"the {len(prior)} earlier runs" if prior else "the private evaluations"
    spent = math.inf if before is None else epsilon_once(before, open_unit("delta", delta), relation, accountant)
    if before is None or spent >= target:
        raise BudgetError(
            f"epsilon = {epsilon!r}: {who} alone cost {rounded_up(spent)} at delta {delta:g}; raise the budget"
            + (", or train on other people" if prior else ", or give the evaluations more noise")
        )
    alone = calibrate(
        strategy, participation, epsilon=target, delta=delta, neighboring_relation=relation, accountant=accountant
    )
    unit = charges(replace(alone, noise_multiplier=1.0), alone.rounds)

    def cost(z: float) -> float:
        # The costs of a mechanism depend on its noise by a factor in each event.
        own = tuple((replace(event, noise_multiplier=event.noise_multiplier * z), count) for event, count in unit)
        return epsilon_once((*before, *own), delta, relation, accountant)

    def stated(z: float) -> float:
        made = replace(alone, noise_multiplier=z)
        also = None if measured is None else (measured, times)
        return guarantee(
            made, delta, relation, accountant=accountant, privacy_unit=privacy_unit, earlier=prior, evaluation=also
        ).epsilon

    less, enough = grown(lambda z: cost(z) <= target, alone.noise_multiplier, alone.noise_multiplier, at_most=_LARGEST)
    if enough == math.inf:
        raise BudgetError(
            f"epsilon = {epsilon!r}: {who} cost {rounded_up(spent)} at delta {delta:g}, and no noise up to "
            f"{_LARGEST:g} meets the rest; raise the budget"
        )
    _, enough = bracket(lambda z: cost(z) <= target, less, enough, within=_WIDTH)
    # What the rounding of a factor in each event takes.
    return replace(alone, noise_multiplier=pushed(enough, lambda z: stated(z) <= target))
