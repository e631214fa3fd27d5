"""Balls-in-bins with correlated noise, by sampling: a statement that holds with a confidence, and no proof.

Letters: C the strategy, b bins, m_j = C·1{rounds of slot j}/σ the shift of a unit of slot j, P = (1/b)·Σ_j N(m_j, I), Q =
N(0, I), L = ln dP/dQ. Where C has entries off its diagonal the shifts of neighbouring slots overlap, and the ratio is no
mean of independent ones. But δ(ε) = E_P (1 − e^(ε − L))⁺ is the mean of numbers in [0, 1], and so has an upper confidence
bound: with probability 1 − α the mean p of n such numbers with average a < p has n·kl(a, p) ≤ ln 1/α, kl the divergence of
two coins.

Source: Choquette-Choo et al. 2025, Lemma 3.2, https://arxiv.org/abs/2410.06266 (the pair dominates for C without negative
entries); Chua et al. 2025, Fact 4.2, https://arxiv.org/abs/2412.16802 (sampled deltas need a confidence); Hoeffding 1963,
"Probability Inequalities for Sums of Bounded Random Variables", Theorem 1, equation 2.1.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, xlogy

from hubbub._checks import Array, integer, non_negative, open_unit, real_array, scale
from hubbub.errors import BudgetError

__all__ = ["SampledDelta", "sampled_delta"]

# Rows of samples times bins that are held at once.
_MOST_NUMBERS = 2_000_000
# A bound this many times the average says that there were too few samples.
_WIDEST = 2.0
_MOST_ENTRIES = 20_000_000


@dataclass(frozen=True)
class SampledDelta:
    """What was seen of a delta; ``upper`` is above the truth unless the sampling went wrong, by a chance of 1 − ``confidence``.

    Args:
        upper: The bound.
        estimate: The average, near the truth and on either side of it.
        confidence: Of ``upper``, for both directions together.
        samples: For each direction.
        seed: Of the samples. A seed that was chosen for its answer voids the confidence.
    """

    upper: float
    estimate: float
    confidence: float
    samples: int
    seed: int

    def __str__(self) -> str:
        return (
            f"delta at most {self.upper:.3g} with confidence {self.confidence:g} over {self.samples} samples from seed "
            f"{self.seed}; a statistical statement, not a proof"
        )


def sampled_delta(
    coefficients: npt.ArrayLike,
    bins: int,
    rounds: int,
    noise_multiplier: float,
    *,
    epsilon: float,
    samples: int = 400_000,
    confidence: float = 0.999,
    seed: int,
) -> SampledDelta:
    """The delta of balls-in-bins with correlated noise under zero-out and add-or-remove-one, as far as samples tell.

    Args:
        coefficients: The first column of a lower triangular Toeplitz C, none negative; zeros follow.
        bins: b, at most ``rounds``.
        rounds: Of the run.
        noise_multiplier: Standard deviation of the noise over the clip norm and over the norm of C's first column.
        epsilon: At least 0.
        samples: For each of the two directions.
        confidence: Strictly between 0 and 1.
        seed: Of the samples.

    Returns:
        The larger of both directions. It is never mixed into an epsilon that is stated as a guarantee.

    Raises:
        BudgetError: The samples cannot resolve a delta so small: the bound would be more than twice the average.
        ValueError: A number out of range, or a negative coefficient.

    Example:
        >>> seen = sampled_delta([1.0, 0.5], bins=4, rounds=8, noise_multiplier=1.0, epsilon=0.5, samples=20_000, seed=1)
        >>> seen.estimate < seen.upper
        True
        >>> print(seen)
        delta at most 0.259 with confidence 0.999 over 20000 samples from seed 1; a statistical statement, not a proof
    """
    rounds = integer("rounds", rounds, at_least=1, at_most=10**7)
    bins = integer("bins", bins, at_least=1, at_most=min(rounds, 10_000))
    samples = integer("samples", samples, at_least=2, at_most=10**9)
    epsilon = non_negative("epsilon", epsilon)
    failure = (1 - open_unit("confidence", confidence)) / 2
    seed = integer("seed", seed, at_least=0)
    shifts = _shifts(coefficients, bins, rounds) / scale("noise_multiplier", noise_multiplier)
    generator = np.random.default_rng(seed)
    estimates = [_average(shifts @ shifts.T, epsilon, samples, generator, remove=remove) for remove in (True, False)]
    estimate, upper = max(estimates), max(_upper(estimate, samples, failure) for estimate in estimates)
    if upper > _WIDEST * estimate:
        raise BudgetError(
            f"samples = {samples}: too few for epsilon = {epsilon!r}, as the average {estimate:.2g} may hide a delta of "
            f"{upper:.2g}; take more samples, a smaller epsilon, or independent noise, for which BallsInBins is exact"
        )
    return SampledDelta(upper, estimate, float(confidence), samples, seed)


def _shifts(coefficients: npt.ArrayLike, bins: int, rounds: int) -> Array:
    """``(bins, rounds)``: what a unit of each slot adds to C·x, for a first column of norm 1."""
    column = real_array("coefficients", coefficients, ndim=1)
    if (column < 0).any():
        where = int(np.argmax(column < 0))
        raise ValueError(f"coefficients[{where}] = {column[where]}: must not be negative, or the pair does not dominate")
    if not column.any():
        raise ValueError("coefficients are all 0: C must have an inverse")
    if bins * rounds > _MOST_ENTRIES:
        raise ValueError(f"bins = {bins}: times {rounds} rounds is too much to hold, at most {_MOST_ENTRIES}")
    shifts = np.zeros((bins, rounds))
    for lag, coefficient in enumerate(column[:rounds] / np.linalg.norm(column)):
        joined = np.arange(rounds - lag)
        shifts[joined % bins, joined + lag] += coefficient
    return shifts


def _average(gram: Array, epsilon: float, samples: int, generator: np.random.Generator, *, remove: bool) -> float:
    """The average of (1 − e^(ε − L))⁺ under P, or of that of −L under Q.

    Only the products ⟨m_j, y⟩ matter; they are Gaussian with the Gram matrix of the shifts as covariance.
    """
    bins = len(gram)
    values, vectors = np.linalg.eigh(gram)
    root = vectors * np.sqrt(np.maximum(values, 0))
    total, left = 0.0, samples
    while left:
        count = min(left, max(1, _MOST_NUMBERS // bins))
        products = generator.standard_normal((count, bins)) @ root.T
        if remove:
            products += gram[generator.integers(bins, size=count)]
        losses = logsumexp(products - np.diag(gram) / 2, axis=1) - math.log(bins)
        excess = epsilon - (losses if remove else -losses)
        total += float(-np.expm1(excess[excess < 0]).sum())
        left -= count
    return total / samples


def _upper(average: float, samples: int, failure: float) -> float:
    """The largest mean at which an average as small as this has a chance of at least ``failure``."""
    target = -math.log(failure) / samples
    low, high = average, 1.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        divergence = xlogy(average, average / middle) + xlogy(1 - average, (1 - average) / (1 - middle))
        low, high = (middle, high) if divergence <= target else (low, middle)
    return high
