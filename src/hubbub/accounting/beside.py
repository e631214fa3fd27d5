"""The noise that a run needs beside earlier ones over the same people, so that all together meet a budget."""

import math
from collections.abc import Sequence
from dataclasses import replace

from hubbub._checks import open_unit, scale
from hubbub.accounting.calibrate import calibrate
from hubbub.accounting.charge import charges, stated_relation
from hubbub.accounting.composition import epsilon as composed_epsilon
from hubbub.accounting.guarantee import guarantee
from hubbub.accounting.runs import RunCharge, events_of, require_together
from hubbub.accounting.statement import rounded_up
from hubbub.errors import BudgetError
from hubbub.mechanism import Mechanism
from hubbub.participation import Participation
from hubbub.roots import bracket, grown, pushed
from hubbub.strategies.strategy import Strategy

__all__ = ["calibrate_beside"]

_LARGEST = 1e9
_RELATIVE_WIDTH = 1e-6


def calibrate_beside(
    earlier: Sequence[RunCharge],
    strategy: Strategy,
    participation: Participation,
    *,
    epsilon: float,
    delta: float,
    neighboring_relation: str | None = None,
    accountant: str = "tight",
    privacy_unit: str = "client",
) -> Mechanism:
    """The mechanism with the least noise that meets a budget together with what was spent before, rounded up.

    Args:
        earlier: What was spent on the same people.
        strategy: How noise is correlated.
        participation: Who may contribute when.
        epsilon: Of all together, above 0.
        delta: Of all together, strictly between 0 and 1.
        neighboring_relation: As for :func:`hubbub.accounting.calibrate`; earlier runs are computed anew under it.
        accountant: As for :func:`hubbub.accounting.epsilon`.
        privacy_unit: Whose contribution is clipped as one: that of the earlier runs.

    Raises:
        BudgetError: The earlier runs alone have spent the budget, or no noise meets the rest of it.
        ConfigError: Random cohorts and correlated noise, or an earlier run that does not add up with this one.
        ValueError: A number out of range, or a relation that no theorem covers.
    """
    if not earlier:
        return calibrate(
            strategy,
            participation,
            epsilon=epsilon,
            delta=delta,
            neighboring_relation=neighboring_relation,
            accountant=accountant,
        )
    target, relation = scale("epsilon", epsilon), stated_relation(participation, neighboring_relation)
    require_together(earlier, privacy_unit, relation)
    before = events_of(earlier)
    spent = math.inf if before is None else composed_epsilon(before, open_unit("delta", delta), relation, accountant)
    if before is None or spent >= target:
        raise BudgetError(
            f"epsilon = {epsilon!r}: the {len(earlier)} earlier runs alone cost {rounded_up(spent)} at delta {delta:g}; raise "
            "the budget, or train on other people"
        )
    alone = calibrate(
        strategy, participation, epsilon=target, delta=delta, neighboring_relation=relation, accountant=accountant
    )
    unit = charges(replace(alone, noise_multiplier=1.0), alone.rounds)

    def cost(z: float) -> float:
        # The costs of a mechanism depend on its noise by a factor in each event.
        own = [(replace(event, noise_multiplier=event.noise_multiplier * z), count) for event, count in unit]
        return composed_epsilon([*before, *own], delta, relation, accountant)

    def stated(z: float) -> float:
        made = replace(alone, noise_multiplier=z)
        return guarantee(made, delta, relation, accountant=accountant, privacy_unit=privacy_unit, earlier=earlier).epsilon

    less, enough = grown(lambda z: cost(z) <= target, alone.noise_multiplier, alone.noise_multiplier, at_most=_LARGEST)
    if enough == math.inf:
        raise BudgetError(
            f"epsilon = {epsilon!r}: the earlier runs cost {rounded_up(spent)} at delta {delta:g}, and no noise up to "
            f"{_LARGEST:g} meets the rest; raise the budget"
        )
    _, enough = bracket(lambda z: cost(z) <= target, less, enough, within=_RELATIVE_WIDTH)
    # What the rounding of a factor in each event takes.
    return replace(alone, noise_multiplier=pushed(enough, lambda z: stated(z) <= target))
