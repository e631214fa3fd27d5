"""Lower bounds on the error of every strategy, and of every lower-triangular Toeplitz strategy, in milliseconds.

Letters: X = CᵀC, n rounds, b rounds that two participations of one client are at least apart, k participations.

The squared sensitivity of C to a set of rounds that one client may join is at least Σ X_ii over it: the mean of Σ ±X_ij over
all signs. So a weight for each class of rounds that one client may join together gives a bound
(:mod:`hubbub.factorization.diagonal`). At most k rounds at a stride of at least b are such a class.
"""

import numpy as np

from hubbub._util.checks import Array, one_of
from hubbub.factorization.diagonal import Classes, Effort, maximize
from hubbub.mechanism.participation import (
    FixedEpochs,
    MinSeparation,
    Participation,
    SingleParticipation,
    require_pattern,
    worst_rounds,
)
from hubbub.mechanism.strategies.matrices import divide
from hubbub.mechanism.workloads import Workload, require_workload

# Enough for a relative 1e-4 of the best bound of this kind without momentum.
_QUICK = Effort(residual=0.03, evaluations=5, poles=1e-5)
# Momentum converges more slowly; this reaches about 1e-3.
_LONGER = Effort(residual=0.03, evaluations=15, poles=1e-5)
# Rounding of a sum, for each of its terms: a few units in the last place.
_ROUNDING = 1e-14


def lower_bound(workload: Workload, participation: Participation, objective: str) -> float:
    """A lower bound on the squared error of every strategy at sensitivity 1: banded, dense, tall, all of them.

    Proved by the dual of the least error with weights that are the same for rounds that a client may join together; rounding
    and truncation only lower it; or by one client, where that says more. O(rounds) time, ten milliseconds for 2000 rounds. For
    one participation it is the least error of any strategy to about 1e-4; for more it ignores most inner products between
    rounds of one client, and may be far less.

    Args:
        workload: A.
        participation: Which rounds one client may join.
        objective: ``"mean"`` or ``"max"`` of the squared errors over rounds.

    Raises:
        ValueError: The participation is random, the objective is unknown, or float64 cannot hold the workload.

    Example:
        >>> from hubbub.mechanism.workloads import prefix_sum
        >>> bound = lower_bound(prefix_sum(rounds=8), SingleParticipation(), "mean")
        >>> 2.231 < bound < 2.2332721666
        True

    Source: the dual is from Denisov et al. 2022, https://arxiv.org/abs/2202.08312, and Choquette-Choo et al. 2023,
    https://arxiv.org/abs/2211.06530.
    """
    one_of("objective", objective, ("mean", "max"))
    effort = _LONGER if require_workload(workload).momentum else _QUICK
    least = of_one_client(workload, participation, objective)
    try:
        with np.errstate(all="ignore"):
            return max(least, maximize(workload, classes_of(workload.rounds, participation), objective, effort).bound)
    except ArithmeticError as error:
        raise ValueError(f"workload: has no bound that float64 can prove ({error}); take rates that differ less") from error


def of_one_client(workload: Workload, participation: Participation, objective: str) -> float:
    """A lower bound on the squared error of every strategy at sensitivity 1, from one client; O(rounds).

    If a client adds the same unit vector in each round of a set π that it may join, row i of A·x moves by a_i = (A·1_π)_i, and
    C·x by at most the sensitivity. With A = B·C and Cauchy and Schwarz a_i² is at most the squared error of row i at
    sensitivity 1. Here π is as many rounds as a client may join, as early as it may.
    """
    apart, most = worst_rounds(participation, workload.rounds)
    joined = np.zeros(workload.rounds)
    joined[: apart * most : apart] = 1.0
    if workload.momentum:
        joined = divide(joined, np.array([1.0, -workload.momentum]))
    rates = 1.0 if workload.learning_rates is None else np.asarray(workload.learning_rates)
    with np.errstate(all="ignore"):
        moved = np.square(np.cumsum(rates * joined))
    least = float(moved.mean() if objective == "mean" else moved.max()) * (1 - workload.rounds * _ROUNDING)
    return least if np.isfinite(least) else 0.0


def classes_of(rounds: int, participation: Participation) -> Classes:
    """``(rounds,)``: classes of rounds that one client may join together; −1 for rounds that no client may join."""
    match require_pattern(participation):
        case SingleParticipation():
            return np.arange(rounds)
        case FixedEpochs(epochs, rounds_per_epoch):
            owner = np.arange(rounds) % rounds_per_epoch
            owner[epochs * rounds_per_epoch :] = -1
            return owner
        case MinSeparation(min_separation, max_participations):
            # The stride may be wider than b, so that no class has more rounds than a client may join.
            most = min(max_participations, -(-rounds // min_separation))
            return np.arange(rounds) % max(min_separation, -(-rounds // most))


def toeplitz_bound(root: Array, separation: int, participations: int, mean: bool) -> float:
    """A lower bound on the error of every lower-triangular Toeplitz strategy, at sensitivity 1 and learning rate 1; O(rounds).

    Let s be the square root of the workload's series: its coefficients are positive and do not increase, so that s, cut after
    i, has no zero in the unit disc (Eneström and Kakeya). By Landau's argument of 1913 the squared error of row i times
    c_0² + … + c_i² is then at least (s_0² + … + s_i²)²; at one participation the root itself attains it in the last row. The
    squared sensitivity is at least its mean over the signs of a client's contributions: a sum of squared norms of columns, of
    which as many reach c_i as start i + 1 rounds or more before the end. ``mean``: over rows, rather than the largest.

    Source: for prefix sums and one participation Dvijotham et al. 2024, https://arxiv.org/abs/2404.16706.
    """
    n = len(root)
    rows = np.square(np.cumsum(np.square(root)))
    if participations > 1:
        rows *= np.minimum(participations, np.arange(n)[::-1] // separation + 1)
    return float(rows.mean() if mean else rows.max()) * (1 - n * _ROUNDING)
