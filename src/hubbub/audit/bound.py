"""What an audit proved: a number, its confidence, and the assumptions without which it says nothing.

A lower bound errs on the other side than a guarantee: every step here rounds down, so that what is reported as proved is at
most what the theorem gives.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hubbub import gaussian
from hubbub._checks import Array, finite, open_unit, real_array
from hubbub.roots import bracket, grown

__all__ = ["GAUSSIAN_CURVE", "LowerBound", "delta_or_zero", "epsilon_at_least", "largest_rejected", "scores", "significance"]

# Quantiles and tails of scipy.special are right to about 1e-14: this covers them many times over.
_ROUNDING = 1e-12
GAUSSIAN_CURVE = (
    "The epsilon, not the mu, assumes that the trade-off curve is Gaussian, as that of one release with Gaussian noise is, "
    "independent or correlated."
)


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on the privacy loss of what was audited, at a confidence.

    Args:
        epsilon: What was audited is not (ε′, delta)-DP for any ε′ below this one; for a bound with ``mu``, if in addition its
            trade-off curve is Gaussian. 0 where nothing was proved.
        delta: The delta of that claim.
        confidence: The probability, over everything random in the audit, that the claim is true is at least this.
        mu: For the methods that assume a Gaussian trade-off curve: no μ-GDP holds for any μ below this one. ``None`` for
            the methods that assume no curve.
        assumptions: What the theorem needs, one sentence each.
        source: The theorem.
    """

    epsilon: float
    delta: float
    confidence: float
    mu: float | None
    assumptions: tuple[str, ...]
    source: str

    @property
    def statement(self) -> str:
        """The claim in words, with its confidence and every assumption."""
        if self.mu is None:
            claim = f"(epsilon, {self.delta!r})-DP fails for every epsilon below {_below(self.epsilon)}"
        else:
            claim = (
                f"mu-GDP fails for every mu below {_below(self.mu)}; a Gaussian trade-off curve with that mu has "
                f"epsilon {_below(self.epsilon)} at delta {self.delta!r}"
            )
        given = " ".join(self.assumptions)
        return f"With confidence {self.confidence:.10g}: {claim}. Assumed: {given} Source: {self.source}."


def _below(value: float) -> str:
    """Four decimals, rounded down."""
    return f"{math.floor(value * 1e4) / 1e4:.4f}"


def significance(confidence: object) -> float:
    """The probability with which a bound may be wrong, rounded down."""
    return (1 - open_unit("confidence", confidence)) * (1 - _ROUNDING)


def scores(name: str, value: npt.ArrayLike) -> Array:
    """A read-only float64 vector of finite numbers; text, truth values and complex numbers are refused by name."""
    kind = np.asarray(value).dtype.kind
    if kind not in "fiu" and np.asarray(value).size:
        raise TypeError(f"{name} holds values of kind {np.asarray(value).dtype}: must be a sequence of numbers")
    return real_array(name, value, ndim=1)


def delta_or_zero(value: object) -> float:
    """A delta, zero allowed."""
    number = finite("delta", value)
    if not 0 <= number < 1:
        raise ValueError(f"delta = {value!r}: must be at least 0 and below 1")
    return number


def epsilon_at_least(mu: float, delta: float) -> float:
    """The epsilon at ``delta`` of a Gaussian trade-off curve, rounded down.

    ``gaussian.epsilon`` rounds up, so its answer is stepped down until the exact delta at it is clearly above ``delta``: then
    the true epsilon is not below what is returned.

    Args:
        mu: Not negative; below 1e-9 the answer is 0.
        delta: Strictly between 0 and 1.

    Source: Dong, Roth and Su 2022, Corollary 2.13, https://arxiv.org/abs/1905.02383.
    """
    open_unit("delta", delta)
    if mu < 1e-9:
        return 0.0
    noise_multiplier = 1 / (mu * (1 - _ROUNDING))
    epsilon = gaussian.epsilon(delta=delta, noise_multiplier=noise_multiplier)
    step = _ROUNDING * epsilon
    while epsilon > 0 and gaussian.delta(epsilon=epsilon, noise_multiplier=noise_multiplier) < delta * (1 + 1e-9):
        epsilon, step = epsilon - step, 2 * step
    return max(epsilon, 0.0)


def largest_rejected(rejects: Callable[[float], bool]) -> float:
    """A parameter that the test rejects, within 1e-9 (relative) of the largest; 0 where it does not reject 0.

    A private mechanism stays so for every larger parameter, so that one rejected value disproves all below it.
    """
    if not rejects(0.0):
        return 0.0
    below, kept = grown(lambda parameter: not rejects(parameter), 0.0, 1.0)
    return bracket(rejects, fails_at=kept, holds_at=below, within=1e-9)[1]
