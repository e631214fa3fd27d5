"""Scores of canaries where nobody knows the rounds in which they took part: likelihood ratios over the coins.

Letters: y whitened along a canary's direction, N(0, I) if it is absent; a_t what its part in round t adds to y; q the
probability of a round. For each participation the score is the logarithm of

    Poisson:            Π_t (1 − q + q·exp(⟨a_t, y⟩ − ‖a_t‖²/2)),
    cyclic Poisson:     the mean over groups of that product over the rounds of the group,
    balls in bins:      the mean over slots of exp(⟨a, y⟩ − ‖a‖²/2), a the sum of a_t over the rounds of the slot,

which is the best test there is where a_t of one canary are orthogonal, as they are of independent noise, and of banded noise
within a group. Elsewhere it is some test: what it proves holds all the same.

Source: Neyman and Pearson 1933; for Poisson cohorts: Dong, Roth and Su 2022, Section 4, https://arxiv.org/abs/1905.02383.
"""

import math

import numpy as np
from scipy.special import logsumexp

from hubbub._checks import Array
from hubbub.participation import (
    BallsInBinsSampling,
    CyclicPoissonSampling,
    FixedSizeSampling,
    PoissonSampling,
    RandomParticipation,
    TruncatedPoissonSampling,
)

__all__ = ["likelihood_scores"]


def likelihood_scores(whitened: Array, parts: Array, participation: RandomParticipation) -> Array:
    """The score of each canary, by a test that does not know its rounds, ``(canaries,)``.

    Args:
        whitened: y of each canary, ``(rounds, canaries)``.
        parts: Column t is a_t, ``(rounds, rounds)``.
        participation: How cohorts are drawn.

    Example:
        >>> half = PoissonSampling(0.5)
        >>> likelihood_scores(np.array([[1.0, 0.0]]), np.array([[2.0]]), half).round(4).tolist()
        [0.0, -0.5662]
    """
    rounds = len(parts)
    match participation:
        case PoissonSampling(q) | TruncatedPoissonSampling(sampling_probability=q):
            return _by_coins(whitened, parts, q)
        case FixedSizeSampling(cohort_size, population):
            return _by_coins(whitened, parts, cohort_size / population)
        case CyclicPoissonSampling(q, cycle_length):
            groups = [_by_coins(whitened, parts[:, turn::cycle_length], q) for turn in range(min(cycle_length, rounds))]
            groups += [np.zeros(whitened.shape[1])] * (cycle_length - len(groups))
        case BallsInBinsSampling(bins):
            slots = np.stack([parts[:, turn::bins].sum(axis=1) for turn in range(bins)], axis=1)
            groups = list(_ratios(whitened, slots))
    mixed: Array = logsumexp(np.stack(groups), axis=0) - math.log(len(groups))
    return mixed


def _ratios(whitened: Array, parts: Array) -> Array:
    """⟨a, y⟩ − ‖a‖²/2 of each part and canary, ``(parts, canaries)``."""
    ratios: Array = parts.T @ whitened - np.square(parts).sum(axis=0)[:, None] / 2
    return ratios


def _by_coins(whitened: Array, parts: Array, probability: float) -> Array:
    """The sum over parts of log(1 − q + q·exp(ratio)), ``(canaries,)``."""
    stay = math.log1p(-probability) if probability < 1 else -math.inf
    summed: Array = np.logaddexp(stay, math.log(probability) + _ratios(whitened, parts)).sum(axis=0)
    return summed
