"""The strategy of least error of all: for one participation, and for clients that take part once in each epoch."""

import numpy as np

from hubbub._util.checks import Array, one_of
from hubbub.factorization.epochs import best_for_epochs
from hubbub.factorization.optimized import Objective, Optimized
from hubbub.factorization.semiseparable import best_recursion, best_weights, root_of_weights, squared_errors
from hubbub.factorization.threads import on_one_thread
from hubbub.mechanism import utility
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, Participation, SingleParticipation, require_pattern
from hubbub.mechanism.strategies.dense import Dense
from hubbub.mechanism.strategies.semiseparable import Semiseparable
from hubbub.mechanism.workloads import Workload

__all__ = ["optimize"]

# Beyond these numbers of rounds the time or the memory of an answer is no longer that of a few minutes.
_MOST_BY_RECURSION = 1_000_000
_MOST_BY_MATRIX = 4096
_MOST_IN_EPOCHS = 5000
_MOST_DECOMPOSED = 1000


@on_one_thread
def optimize(
    workload: Workload,
    *,
    participation: Participation = SingleParticipation(),  # noqa: B008 # a frozen value
    objective: Objective = "mean",
) -> Optimized[Dense | Semiseparable]:
    """The strategy of least error among all that there are, banded or not, with a bound that proves it.

    For one participation without momentum the answer is streamed by some thirty buffers and needs no matrix; time and memory
    grow with the rounds alone. Else it is a matrix. ``relative_gap`` says how near to the optimum it is; momentum takes some
    of the nearness.

    Args:
        workload: A; with momentum, of at most 4096 rounds for one participation and 1000 for more.
        participation: One participation, or ``FixedEpochs`` whose epochs fill the rounds.
        objective: ``"mean"`` or ``"max"`` of the squared errors over rounds.

    Raises:
        ValueError: A pattern or a number of rounds that it cannot do; the message names what can.

    Example:
        >>> from hubbub.mechanism.workloads import prefix_sum
        >>> round(optimize(prefix_sum(rounds=8)).squared_error, 6)
        2.233272

    Source: Denisov et al. 2022, https://arxiv.org/abs/2202.08312; Choquette-Choo et al. 2023,
    https://arxiv.org/abs/2211.06530.
    """
    one_of("objective", objective, ("mean", "max"))
    try:
        strategy, errors, bound, iterations = _optimum(workload, participation, objective)
    except (ArithmeticError, np.linalg.LinAlgError) as failure:
        raise ValueError(
            f"workload: its momentum and learning rates are too uneven for float64 to find the best strategy ({failure}); "
            "use banded.optimize"
        ) from failure
    error = float(errors.mean() if objective == "mean" else errors.max())
    # Columns of a recursion have norm 1 as they are made.
    sensitivity = 1.0 if isinstance(strategy, Semiseparable) else strategy.sensitivity(participation).value
    squared = error * sensitivity**2
    return Optimized(strategy, workload, participation, objective, squared, bound, "every strategy", iterations)


def _optimum(
    workload: Workload, participation: Participation, objective: Objective
) -> tuple[Dense | Semiseparable, Array, float, int]:
    """The strategy, the squared error of each round for unit noise, the bound, and the number of evaluations."""
    n = workload.rounds
    match require_pattern(participation):
        case FixedEpochs(epochs, b) if n > b:
            return _for_epochs(workload, FixedEpochs(min(epochs, -(-n // b)), b), objective)
        case MinSeparation(b, most) if most > 1 and n > b:
            raise ValueError(
                f"participation = {participation!r}: the best dense strategy is known for SingleParticipation and FixedEpochs "
                f"only; use banded.optimize with at most {b} bands"
            )
        case _:
            return _for_one(workload, objective)


def _for_one(workload: Workload, objective: Objective) -> tuple[Dense | Semiseparable, Array, float, int]:
    most = _MOST_BY_MATRIX if workload.momentum else _MOST_BY_RECURSION
    if workload.rounds > most:
        raise ValueError(
            f"workload.rounds = {workload.rounds}: must be at most {most:,} with momentum = {workload.momentum}; use "
            "blt.optimize or toeplitz.optimize"
        )
    if not workload.momentum:
        recursion, dual = best_recursion(workload, objective)
        return Semiseparable(*recursion), squared_errors(workload, recursion), dual.bound, dual.evaluations
    dual = best_weights(workload, objective)
    strategy = Dense(root_of_weights(workload, dual.v, dual.w))
    return strategy, utility.squared_errors(workload, strategy), dual.bound, dual.evaluations


def _for_epochs(
    workload: Workload, pattern: FixedEpochs, objective: Objective
) -> tuple[Dense | Semiseparable, Array, float, int]:
    n, k, b = workload.rounds, pattern.epochs, pattern.rounds_per_epoch
    if n != k * b:
        raise ValueError(
            f"workload.rounds = {n}: must be epochs · rounds_per_epoch = {k * b} for {pattern!r}; plan whole epochs, or use "
            "banded.optimize"
        )
    if workload.momentum and objective == "max":
        raise ValueError(
            f"workload.momentum = {workload.momentum}: the largest error over epochs needs a momentum of 0 here; optimize the "
            "mean, or use banded.optimize"
        )
    most = _MOST_DECOMPOSED if workload.momentum or objective == "max" or b == 1 else _MOST_IN_EPOCHS
    if n > most:
        raise ValueError(
            f"workload.rounds = {n}: must be at most {most} for {pattern!r}, objective = {objective!r} and momentum = "
            f"{workload.momentum}; use banded.optimize"
        )
    optimum = best_for_epochs(workload, k, b, objective)
    strategy = Dense(optimum.C)
    return strategy, utility.squared_errors(workload, strategy), optimum.bound, optimum.iterations
