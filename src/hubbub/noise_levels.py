"""How loud the noise is: in each release, and in each model that the releases are added up to.

Letters: A workload, C strategy, N noising matrix ``(rounds, rows)`` with N·C = I, B = A·N; β momentum, η learning rates.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_banded, solve_triangular

from hubbub._checks import Array
from hubbub.strategies import Identity, Strategy
from hubbub.strategies.banded_inverse import BandedInverse
from hubbub.strategies.blt import BufferedLinearToeplitz
from hubbub.strategies.toeplitz import BandedToeplitz
from hubbub.utility import noising_matrix
from hubbub.workloads import Workload

__all__ = ["MOST_ROUNDS", "NoiseLevels", "noise_levels"]

# Of strategies without a closed form: beyond, the matrix takes minutes.
MOST_ROUNDS = 4096


@dataclass(frozen=True, eq=False)
class NoiseLevels:
    """Standard deviations of a coordinate, for noise z of standard deviation 1.

    Args:
        releases: ``(rounds,)``, of the noise that a round's sum gets: the norms of the rows of N.
        models: ``(rounds,)``, of the noise in what the workload makes of all sums so far: the norms of the rows of A·N.
    """

    releases: Array
    models: Array

    def model(self, objective: str) -> float:
        """Of the models one number: the root of the ``"mean"`` over rounds of their squares, or the ``"max"``."""
        return float(self.models.max() if objective == "max" else np.sqrt(np.square(self.models).mean()))


def noise_levels(workload: Workload, strategy: Strategy) -> NoiseLevels | None:
    """The levels, computed from the definition; ``None`` where that needs a matrix of more than :data:`MOST_ROUNDS` rounds.

    Args:
        workload: A; of as many rounds as the strategy.
        strategy: C. Toeplitz ones of any length have a closed form.

    Example:
        >>> from hubbub.workloads import prefix_sum
        >>> noise_levels(prefix_sum(rounds=4), Identity(rounds=4)).models.round(3)
        array([1.   , 1.414, 1.732, 2.   ])
    """
    if workload.rounds != strategy.rounds:
        raise ValueError(f"workload.rounds = {workload.rounds}: must equal strategy.rounds = {strategy.rounds}")
    first = _first_column(strategy)
    if first is not None and workload.toeplitz:
        return NoiseLevels(_running_norms(first), _running_norms(_steps(workload, first)))
    if workload.rounds > MOST_ROUNDS:
        return None
    N = _noising_matrix(strategy)
    return NoiseLevels(np.linalg.norm(N, axis=1), _added_up(workload, N))


def _first_column(strategy: Strategy) -> Array | None:
    """The first column of N, ``(rounds,)``, of which each other one is a shift; ``None`` where they are not."""
    n = strategy.rounds
    match strategy:
        case Identity():
            return np.asarray(np.eye(1, n)[0])
        case BandedToeplitz(coefficients=c):
            lower = np.tile(np.array(c)[:, None], n)
            return np.asarray(solve_banded((len(c) - 1, 0), lower, np.eye(1, n)[0]))
        case BufferedLinearToeplitz():
            return _response(strategy)
        case BandedInverse():
            return np.concatenate([strategy.noising_coefficients, np.zeros(n - strategy.bands)])
        case _:
            return None


def _response(strategy: Strategy) -> Array:
    """What the strategy's own stream makes of one unit of noise in the first round, ``(rounds,)``."""
    answers, memory = np.empty(strategy.rounds), ()
    for t in range(strategy.rounds):
        answers[t], memory = strategy.step(t, lambda row: float(row == 0), memory)
    return answers


def _steps(workload: Workload, releases: Array) -> Array:
    """The models that an optimizer of equal learning rates makes of one number a round, ``(rounds,)``."""
    rate = 1.0 if workload.learning_rates is None else workload.learning_rates[0]
    if not workload.momentum:
        return np.asarray(rate * np.cumsum(releases))
    buffers, buffer = np.empty(workload.rounds), 0.0
    for t, release in enumerate(releases):
        buffer = buffers[t] = workload.momentum * buffer + release
    return np.asarray(rate * np.cumsum(buffers))


def _running_norms(column: Array) -> Array:
    return np.asarray(np.sqrt(np.cumsum(np.square(column))))


def _noising_matrix(strategy: Strategy) -> Array:
    C = np.asarray(strategy.matrix(), dtype=np.float64)
    if C.shape[0] == C.shape[1] and not np.triu(C, 1).any():
        return np.asarray(solve_triangular(C, np.eye(len(C)), lower=True))
    return noising_matrix(strategy)


def _added_up(workload: Workload, N: Array) -> Array:
    """The norms of the rows of A·N, by the steps of the optimizer whose workload A is."""
    rates = np.ones(workload.rounds) if workload.learning_rates is None else np.asarray(workload.learning_rates)
    buffer, model = np.zeros(N.shape[1]), np.zeros(N.shape[1])
    norms = np.empty(workload.rounds)
    for t, row in enumerate(N):
        buffer = workload.momentum * buffer + row
        model += rates[t] * buffer
        norms[t] = np.linalg.norm(model)
    return norms
