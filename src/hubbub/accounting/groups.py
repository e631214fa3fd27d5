"""What a group of units pays, where a guarantee is stated for one of them.

Letters: k the size of the group.
"""

import math
from collections.abc import Callable

from hubbub._checks import integer, open_unit, scale

__all__ = ["group_epsilon", "group_noise_multiplier"]

_ROUNDING = 1e-12
_LEAST_LOG_DELTA = -300 * math.log(10)
_MOST_TERMS = 1000


def group_noise_multiplier(noise_multiplier: float, group_size: int) -> float:
    """The noise multiplier that a group of units meets in a Gaussian mechanism: the group moves the sum by as many clip norms.

    Exact: what the group costs is what one unit would cost at this multiplier.

    Example:
        >>> group_noise_multiplier(noise_multiplier=3.0, group_size=2)
        1.5
    """
    return scale("noise_multiplier", noise_multiplier) / integer("group_size", group_size, at_least=1)


def group_epsilon(epsilon_at: Callable[[float], float], delta: float, group_size: int) -> float:
    """An epsilon for a group of units, from the epsilons of one unit, whatever the mechanism; an upper bound.

    A guarantee (ε, δ′) of one unit is (kε, δ′·(e^{kε} − 1)/(e^ε − 1)) for k. The largest δ′ is searched for which that is at
    most ``delta``; infinity where not even 1e-300 suffices.

    Args:
        epsilon_at: The epsilon of one unit at a delta between 0 and 1, an upper bound that falls as delta grows.
        delta: Of the group, strictly between 0 and 1.
        group_size: k, at least 1.

    Example:
        >>> from hubbub import gaussian
        >>> one = lambda delta: gaussian.epsilon(delta=delta, noise_multiplier=10.0)
        >>> round(group_epsilon(one, delta=1e-6, group_size=3), 4), round(one(1e-6) * 3, 4)
        (1.2963, 1.1906)

    Source: Vadhan 2017, "The Complexity of Differential Privacy", Lemma 2.2.
    """
    log_delta = math.log(open_unit("delta", delta))
    k = integer("group_size", group_size, at_least=1)
    if k == 1:
        return epsilon_at(delta)

    def cost(log_inner: float) -> float:
        """ln of the group's delta."""
        eps = epsilon_at(math.exp(log_inner))
        if math.isinf(eps):
            return math.inf
        # Σ_{j<k} e^{jε}, from its largest term.
        terms = [math.exp(-eps * j) for j in range(min(k, _MOST_TERMS))]
        rest = math.log(k / len(terms)) if k > _MOST_TERMS else 0.0
        return log_inner + (k - 1) * eps + math.log(math.fsum(terms)) + rest + _ROUNDING

    low, high = _LEAST_LOG_DELTA, log_delta
    if cost(low) > log_delta:
        return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) <= log_delta else (low, middle)
    return k * epsilon_at(math.exp(low)) * (1 + _ROUNDING)
