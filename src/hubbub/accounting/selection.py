"""What publishing only the best of a random number of runs costs.

Each trial draws one of several candidates at random, runs it, and is judged by what the run released and by public data alone.
How many trials there are is drawn as well, by a law that is fixed beforehand and looks at nothing. Then only the best one is
published. The bounds do not hold for a number of trials that was fixed, where what is published can cost as much as all runs.

Letters: a is an order, K the number of trials, γ the chance that each trial is the last.

Source: Papernot and Steinke 2022, "Hyperparameter Tuning with Renyi Differential Privacy", https://arxiv.org/abs/2110.03620,
Theorem 2 (logarithmic and geometric K) and Theorem 6 (Poisson K); Liu and Talwar 2019, "Private Selection from Private
Candidates", https://arxiv.org/abs/1811.07971, who were the first to stop at random.
"""

import math
from collections.abc import Sequence

import numpy as np

from hubbub._util.checks import finite, one_of, open_unit
from hubbub._util.roots import bracket, grown
from hubbub.accounting.composition import by_divergences
from hubbub.accounting.conversions import delta_from_rdp, epsilon_from_rdp
from hubbub.accounting.events import Event, counted, require_relation
from hubbub.accounting.renyi import DEFAULT_ORDERS, rdp_of_all

# Of the number of trials.
TRIAL_LAWS = ("logarithmic", "geometric", "poisson")
_MOST_TRIALS = 1e9
# Sums of a few terms err by less.
_ROUNDING = 1e-12


def selection_epsilon(
    candidates: Sequence[Sequence[tuple[Event, int]]],
    mean_trials: float,
    delta: float,
    neighboring_relation: str,
    *,
    law: str = "geometric",
) -> float:
    """An upper bound on the epsilon of publishing the best of a random number of trials, each of a candidate drawn at random.

    Args:
        candidates: What each costs: pairs (event, number of rounds that cost it).
        mean_trials: The expected number of trials, at least 1. With ``"poisson"`` there may be none, and nothing is published.
        delta: Strictly between 0 and 1.
        neighboring_relation: ``"zero-out"``, ``"add-or-remove-one"`` or ``"replace-one"``.
        law: Of the number of trials: ``"logarithmic"`` or ``"geometric"`` (the truncated negative binomial laws of shape 0 and
            1), or ``"poisson"``.

    Raises:
        ValueError: No candidate, a number out of range, or an unknown word; or events whose cost is known only up to a
            statistical distance, which these theorems do not take.

    Example:
        >>> from hubbub.accounting import Gaussian
        >>> round(selection_epsilon([[(Gaussian(4.0), 1)]], 10, 1e-6, "zero-out"), 3)
        2.272
    """
    mean = finite("mean_trials", mean_trials)
    if not 1 <= mean <= _MOST_TRIALS:
        raise ValueError(f"mean_trials = {mean_trials!r}: must be from 1 to 1e9")
    delta = open_unit("delta", delta)
    one_of("law", law, TRIAL_LAWS)
    relation = require_relation(neighboring_relation)
    if not candidates:
        raise ValueError("candidates is empty: give the events of at least one")
    distinct = {tuple(counted(events)) for events in candidates}
    if any(by_divergences(events) for events in distinct):
        raise ValueError("candidates: noise in shares is a statistical distance away from what Rényi bounds know")
    orders = np.array(DEFAULT_ORDERS)
    # Of one trial: the largest of the candidates, as a draw among them is the same for all people.
    trial = np.max([rdp_of_all(events, orders, relation) for events in distinct], axis=0)
    several = trial + math.log(mean) / (orders - 1)
    if law == "poisson":
        # Theorem 6 asks for one trial's delta where e^ε ≤ 1 + 1/(a − 1): rounded down.
        largest = [math.log1p(1 / (order - 1)) * (1 - _ROUNDING) for order in orders]
        several += [mean * delta_from_rdp(orders, trial, epsilon) for epsilon in largest]
    else:
        shape, last = (1, 1 / mean) if law == "geometric" else (0, _logarithmic(mean))
        several += (1 + shape) * ((1 - 1 / orders) * trial - math.log(last) / orders).min()
    return epsilon_from_rdp(orders, several * (1 + _ROUNDING), delta)


def _logarithmic(mean: float) -> float:
    """The γ of the logarithmic law, P(K = k) = (1 − γ)^k/(k·ln 1/γ), with that mean, (1/γ − 1)/ln(1/γ); rounded down."""

    # In y = ln 1/γ, of which the mean, (e^y − 1)/y, is an increasing function.
    def enough(y: float) -> bool:
        return math.expm1(y) / y >= mean

    return math.exp(-bracket(enough, *grown(enough, 0.0, 1.0))[1] * (1 + _ROUNDING))
