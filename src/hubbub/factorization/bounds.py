"""Below which error no strategy comes, in milliseconds: what an answer of any family is compared with.

Letters: X = CᵀC, n rounds, b rounds that two participations of one client are at least apart, k participations.

The squared sensitivity of C to a set of rounds that one client may join is at least Σ X_ii over it: the mean of Σ ±X_ij over
all signs. So a weight for each class of rounds that one client may join together gives a bound
(:mod:`hubbub.factorization.diagonal`). Rounds at a stride of at least b are such a class where they are at most k.
"""

import numpy as np

from hubbub._util.checks import one_of
from hubbub.factorization.diagonal import Classes, Effort, alone, maximize
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, Participation, SingleParticipation, require_pattern
from hubbub.mechanism.workloads import Workload

__all__ = ["classes_of", "lower_bound"]

# Enough for a relative 1e-4 of the best bound of this kind without momentum.
_QUICK = Effort(residual=0.03, evaluations=5, poles=1e-5)
# Momentum converges more slowly; this reaches about 1e-3.
_LONGER = Effort(residual=0.03, evaluations=15, poles=1e-5)


def lower_bound(workload: Workload, participation: Participation, objective: str) -> float:
    """A squared error that no strategy is below at sensitivity 1, whatever its family: banded, dense, tall, all of them.

    Proved by the dual of the least error with weights that are the same for rounds that a client may join together; rounding
    and truncation only lower it. O(rounds) time, about ten milliseconds for 2000 rounds. For one participation it is the least
    error of any strategy to about 1e-4; for more it ignores what rounds of one client add to one another, and may be far less.

    Args:
        workload: A.
        participation: What one client may join.
        objective: ``"mean"`` or ``"max"`` of the squared errors over rounds.

    Raises:
        ValueError: The participation is random, or the objective is another word.

    Example:
        >>> from hubbub.mechanism.workloads import prefix_sum
        >>> bound = lower_bound(prefix_sum(rounds=8), SingleParticipation(), "mean")
        >>> 2.231 < bound < 2.2332721666
        True

    Source: the dual is from Denisov et al. 2022, https://arxiv.org/abs/2202.08312, and Choquette-Choo et al. 2023,
    https://arxiv.org/abs/2211.06530.
    """
    one_of("objective", objective, ("mean", "max"))
    effort = _LONGER if workload.momentum else _QUICK
    return maximize(workload, classes_of(workload.rounds, participation), objective, effort).bound


def classes_of(rounds: int, participation: Participation) -> Classes:
    """Classes of rounds that one client may join together, as many of them as the participation gives.

    Example:
        >>> classes_of(6, MinSeparation(min_separation=2, max_participations=2))
        array([0, 1, 2, 0, 1, 2])
    """
    match require_pattern(participation):
        case SingleParticipation():
            return alone(rounds)
        case FixedEpochs(epochs, rounds_per_epoch):
            owner = np.arange(rounds) % rounds_per_epoch
            owner[epochs * rounds_per_epoch :] = -1
            return owner
        case MinSeparation(min_separation, max_participations):
            # A stride that is wider than must be leaves no class with more rounds than a client may join.
            most = min(max_participations, -(-rounds // min_separation))
            return np.arange(rounds) % max(min_separation, -(-rounds // most))
