"""The trade-off curve: how often a test of whether one unit took part must err, if it is wrong about absence at most so often.

Letters: α false positive rate (type I error), f(α) the least false negative rate (type II error) of any test at it, μ the
distance of two Gaussians in standard deviations. A composition of Gaussian releases has f(α) = Φ(Φ⁻¹(1 − α) − μ). Otherwise
each point (ε, δ) of the privacy profile says f(α) ≥ max{0, 1 − δ − e^ε·α, e^{−ε}(1 − δ − α)}, and the largest over ε is taken.

Source: Dong, Roth and Su 2022, "Gaussian Differential Privacy", Propositions 2.4 and 2.12 and Corollary 3.3,
https://arxiv.org/abs/1905.02383.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from hubbub._util.checks import Array, numbers_within
from hubbub.accounting import composition
from hubbub.accounting.composition import one_gaussian, unamplified_mu
from hubbub.accounting.events import Event, counted, require_relation

_POINTS, _REFINEMENTS = 24, 3
_ROUNDING = 2.0**-50
_LARGEST_EPSILON = 700.0


def gdp_mu(events: Sequence[tuple[Event, int]], neighboring_relation: str) -> float | None:
    """μ of Gaussian differential privacy, rounded up, where the whole is one Gaussian release; ``None`` otherwise.

    Args:
        events: Each with its number of times.
        neighboring_relation: ``"zero-out"``, ``"add-or-remove-one"`` or ``"replace-one"``.

    Raises:
        ValueError: An unknown relation.

    Example:
        >>> from hubbub.accounting import Gaussian
        >>> gdp_mu([(Gaussian(noise_multiplier=2.0), 16)], neighboring_relation="zero-out")
        2.0

    Source: Dong, Roth and Su 2022, Corollary 3.3, https://arxiv.org/abs/1905.02383.
    """
    relation = require_relation(neighboring_relation)
    together = counted(events)
    return unamplified_mu(together, relation) if one_gaussian(together) else None


def trade_off(events: Sequence[tuple[Event, int]], false_positive_rates: npt.ArrayLike, neighboring_relation: str) -> Array:
    """A lower bound on the false negative rate of any test of one unit's presence: exact for Gaussian releases.

    Args:
        events: Pairs (event, number of rounds that cost it).
        false_positive_rates: α, each from 0 to 1.
        neighboring_relation: ``"zero-out"``, ``"add-or-remove-one"`` or ``"replace-one"``.

    Returns:
        One rate for each, ``(rates,)``.

    Raises:
        ValueError: A number out of range, or no such relation.

    Example:
        >>> from hubbub.accounting import Gaussian
        >>> releases = [(Gaussian(noise_multiplier=2.0), 4)]
        >>> trade_off(releases, false_positive_rates=(0.01, 0.5), neighboring_relation="zero-out").round(4).tolist()
        [0.9076, 0.1587]

    Source: Dong, Roth and Su 2022, Definition 2.1, https://arxiv.org/abs/1905.02383.
    """
    rates = numbers_within("false_positive_rates", false_positive_rates, "from 0 to 1", lambda rate: 0 <= rate <= 1)
    together = counted(events)
    mu = gdp_mu(together, neighboring_relation)
    if mu is None:
        return trade_off_from_profile(lambda epsilon: composition.delta(together, epsilon, neighboring_relation), rates)
    if mu == 0:
        return 1 - rates
    start = ndtri(rates)
    x = -start - mu
    # What rounding moves x by, however small x itself is, counts |x| + 1 times in Φ(x); where that is more, Φ(x) is 0 or 1.
    errors: Array = ndtr(x) * (1 - _ROUNDING * (4 + np.minimum((np.abs(x) + 1) * (np.abs(start) + mu), 1e4)))
    return np.where(rates == 1, 0.0, errors)


def trade_off_from_profile(profile: Callable[[float], float], rates: Array) -> Array:
    """The lower bounds on false negative rates, ``(rates,)``, that some dozens of points of a privacy profile give.

    ``profile`` is the delta at an epsilon ≥ 0, an upper bound for both directions; ``rates`` are false positive rates.
    """
    inner = rates[(rates > 0) & (rates < 1)]
    # At larger epsilons neither form can gain more than a thousandth of the smallest rate asked for.
    enough = 1e-3 * float(np.minimum(inner, 1 - inner).min()) if inner.size else 1e-6
    end = 1.0
    while end < _LARGEST_EPSILON and profile(end) > enough:
        end = min(2 * end, _LARGEST_EPSILON)
    known = {float(epsilon): profile(float(epsilon)) for epsilon in np.linspace(0.0, end, _POINTS)}
    for _ in range(_REFINEMENTS):
        epsilons = np.array(sorted(known))
        best = np.argmax(_errors(epsilons, known, rates), axis=1)
        # Where the best line lies between two known ones, one more is drawn on either side of it.
        left, right = np.maximum(best - 1, 0), np.minimum(best + 1, len(epsilons) - 1)
        between = np.concatenate([epsilons[left] + epsilons[best], epsilons[best] + epsilons[right]]) / 2
        known |= {float(epsilon): profile(float(epsilon)) for epsilon in between if float(epsilon) not in known}
    errors = _errors(np.array(sorted(known)), known, rates).max(axis=1)
    # What the subtractions lose is taken off; no test of rate 1 errs.
    return np.asarray(np.clip(errors * (1 - _ROUNDING) - _ROUNDING, 0.0, 1 - rates))


def _errors(epsilons: Array, profile: dict[float, float], rates: Array) -> Array:
    """The larger of both lines at each epsilon, ``(rates, epsilons)``."""
    kept = 1 - np.minimum(1.0, [profile[float(epsilon)] for epsilon in epsilons])
    rate = rates[:, None]
    return np.asarray(np.maximum(kept - np.exp(epsilons) * rate, np.exp(-epsilons) * (kept - rate)))
