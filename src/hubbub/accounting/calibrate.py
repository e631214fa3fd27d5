"""From a budget to the noise that meets it; the answer never exceeds the budget."""

import math
from dataclasses import replace

from hubbub import gaussian
from hubbub._checks import integer, open_unit, scale
from hubbub.accounting.charge import event_of
from hubbub.accounting.composition import epsilon as composed_epsilon
from hubbub.accounting.events import Event, Gaussian, require_relation
from hubbub.accounting.guarantee import guarantee
from hubbub.errors import BudgetError
from hubbub.mechanism import Mechanism
from hubbub.participation import FixedSizeSampling, Participation, PoissonSampling
from hubbub.strategies.strategy import Strategy

__all__ = ["calibrate", "calibrate_noise_multiplier"]

_LARGEST = 1e9
_RELATIVE_WIDTH = 1e-6


def calibrate_noise_multiplier(
    event: Event, rounds: int, epsilon: float, delta: float, neighboring_relation: str, accountant: str = "tight"
) -> float:
    """The least noise multiplier with which ``rounds`` such events cost at most ``epsilon``, rounded up.

    Args:
        event: What a round costs; its own noise multiplier is ignored.
        rounds: At least 1.
        epsilon: Above 0.
        delta: Strictly between 0 and 1.
        neighboring_relation: As for :func:`hubbub.accounting.epsilon`.
        accountant: ``"tight"`` or ``"pld"``.

    Raises:
        BudgetError: No noise multiplier up to 1e9 meets the budget.
        ValueError: A number out of range.
    """
    target = scale("epsilon", epsilon)
    integer("rounds", rounds, at_least=1)
    factor = 2 if require_relation(event, neighboring_relation) == "replace-one" else 1
    # Without amplification it is one Gaussian; sampling can only need less.
    high = factor * math.sqrt(rounds) * gaussian.noise_multiplier(target, open_unit("delta", delta)) * (1 + 1e-12)

    def cost(noise_multiplier: float) -> float:
        events = [(replace(event, noise_multiplier=noise_multiplier), rounds)]
        try:
            return composed_epsilon(events, delta, neighboring_relation, accountant)
        except BudgetError:
            # The second opinion does not answer for so little noise.
            return math.inf

    while cost(high) > target:
        high *= 1.01 if isinstance(event, Gaussian) else 2
        if high > _LARGEST:
            raise BudgetError(f"epsilon = {epsilon!r}: no noise multiplier up to {_LARGEST:g} meets it")
    if isinstance(event, Gaussian) and accountant == "tight":
        return high
    low = high / 2
    while cost(low) <= target:
        low, high = low / 2, low
    while high > low * (1 + _RELATIVE_WIDTH):
        middle = math.sqrt(low * high)
        if cost(middle) <= target:
            high = middle
        else:
            low = middle
    return high


def calibrate(
    strategy: Strategy,
    participation: Participation,
    *,
    epsilon: float,
    delta: float,
    neighboring_relation: str | None = None,
    accountant: str = "tight",
) -> Mechanism:
    """The mechanism with the least noise that meets a budget.

    Args:
        strategy: How noise is correlated.
        participation: Who may contribute when.
        epsilon: Above 0.
        delta: Strictly between 0 and 1.
        neighboring_relation: By default zero-out for patterns and add-or-remove-one for Poisson cohorts.
        accountant: ``"tight"`` or ``"pld"``.

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
    relation = guarantee(trial, delta, neighboring_relation).neighboring_relation
    if isinstance(participation, PoissonSampling | FixedSizeSampling):
        event, rounds = event_of(trial, trial.rounds)
        z = calibrate_noise_multiplier(event, rounds, epsilon, delta, relation, accountant)
    else:
        whole = calibrate_noise_multiplier(Gaussian(1.0), 1, epsilon, delta, relation, accountant)
        z = whole * trial.l2_sensitivity / trial.column_norm
    mechanism = Mechanism(strategy, participation, z)
    while guarantee(mechanism, delta, relation, accountant=accountant).epsilon > epsilon:
        z *= 1 + 1e-12
        mechanism = Mechanism(strategy, participation, z)
    return mechanism
