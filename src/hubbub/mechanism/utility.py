"""The error of A·N for unit noise, round by round: what the noise costs in accuracy.

Letters: A workload ``(rounds, rounds)``, C strategy, N noising matrix ``(rounds, rows)``, B = A·N. With noise of standard
deviation σ the released model of round t has in each coordinate the error σ²·‖B_t‖².
"""

import math
import sys

import numpy as np
from scipy.linalg import solve_triangular

from hubbub._util.checks import Array
from hubbub.mechanism.mechanism import Mechanism
from hubbub.mechanism.sensitivity import is_triangular
from hubbub.mechanism.strategies.identity import Identity
from hubbub.mechanism.strategies.strategy import Strategy, require_strategy
from hubbub.mechanism.workloads import Workload, require_workload

__all__ = [
    "largest_deviation",
    "largest_row_norm",
    "max_squared_error",
    "mean_squared_error",
    "noising_matrix",
    "require_inverse",
    "require_no_look_ahead",
    "root_mean_squared_error",
    "squared_errors",
]


# Of each entry of N·C − I, relative to the sum of the magnitudes that make it.
_TOLERANCE = 1e-8
# Up to this many rounds the deviation of each is computed from the matrix.
_EXACT = 2048


def noising_matrix(strategy: Strategy) -> Array:
    """N, ``(rounds, rows)``: the strategy's stream, applied to unit vectors.

    Args:
        strategy: C, ``(rows, rounds)``; its stream is asked once for each round.

    Example:
        >>> from hubbub.mechanism.strategies import Dense
        >>> noising_matrix(Dense([[1.0, 0.0], [0.5, 1.0]]))
        array([[ 1. ,  0. ],
               [-0.5,  1. ]])
    """
    size, memory = strategy.matrix().shape[0], ()
    N = np.empty((strategy.rounds, size))
    for t in range(strategy.rounds):
        N[t], memory = strategy.step(t, lambda i: (np.arange(size) == i).astype(np.float64), memory)
    return N


def largest_row_norm(strategy: Strategy) -> float:
    """The largest L2 norm of a row of N: how much more a round's noise varies than z does.

    Args:
        strategy: C.

    Example:
        >>> from hubbub.mechanism.strategies import Dense
        >>> largest_row_norm(Dense([[1.0, 0.0], [0.75, 1.0]]))
        1.25
    """
    C = np.asarray(strategy.matrix(), dtype=np.float64)
    N = solve_triangular(C, np.eye(len(C)), lower=True) if is_triangular(C) else noising_matrix(strategy)
    return float(np.linalg.norm(N, axis=1).max())


def largest_deviation(mechanism: Mechanism) -> float:
    """The largest standard deviation of a round's noise, per unit of clip norm.

    That of the longest row of N; of long runs estimated from a stream of 64 numbers a row, with room to spare.

    Example:
        >>> from hubbub.mechanism.participation import SingleParticipation
        >>> from hubbub.mechanism.strategies import Dense
        >>> largest_deviation(Mechanism(Dense([[1.0, 0.0], [0.0, 1.0]]), SingleParticipation(), noise_multiplier=2.0))
        2.0
    """
    strategy = mechanism.strategy
    if type(strategy) is Identity:
        return mechanism.stddev
    if mechanism.rounds <= _EXACT:
        largest = largest_row_norm(strategy)
    else:
        rng, largest, memory = np.random.default_rng(0), 0.0, ()
        for t in range(mechanism.rounds):
            row, memory = strategy.step(t, lambda _: rng.standard_normal(64), memory)
            largest = max(largest, 1.5 * float(np.std(row)))
    largest *= mechanism.stddev
    return largest if math.isfinite(largest) else sys.float_info.max


def require_inverse(strategy: Strategy) -> None:
    """Refuse a strategy whose stream does not invert its matrix: its noise would not be that of the guarantee.

    With E = N·C − I the noise is that of C·(I + E)⁻¹: no column of C may change by more than 1e-8 of itself.

    Raises:
        ValueError: N·C is not I.

    Example:
        >>> from hubbub.mechanism.strategies import BinaryTree
        >>> require_inverse(BinaryTree(rounds=8))
    """
    C, N = np.asarray(strategy.matrix(), dtype=np.float64), noising_matrix(strategy)
    if N.shape != C.T.shape:
        raise ValueError(f"strategy: its stream gives {N.shape}, its matrix needs (rounds, rows) = {C.T.shape}")
    errors = np.abs(N @ C - np.eye(strategy.rounds))
    error, norms = float(errors.max()), np.linalg.norm(C, axis=0)
    if not (norms @ errors <= _TOLERANCE * norms).all():
        raise ValueError(f"strategy: N·C differs from I by {error:.3g}: its stream does not invert its matrix")


def require_no_look_ahead(strategy: Strategy) -> None:
    """Refuse a strategy that draws a row of z before the round that needs it.

    Such a row would be remembered over a restart, and two copies of a run would add it to two different sums.

    Raises:
        ValueError: A round draws a row of z that belongs to a later one.

    Example:
        >>> from hubbub.mechanism.strategies import BinaryTree
        >>> require_no_look_ahead(BinaryTree(rounds=8))
    """
    C, memory, drawn = np.asarray(strategy.matrix(), dtype=np.float64), (), list[int]()

    def draw(row: int) -> Array:
        drawn.append(row)
        return np.ones(1)

    for t in range(strategy.rounds):
        already = len(drawn)
        _, memory = strategy.step(t, draw, memory)
        late = [i for i in drawn[already:] if np.flatnonzero(C[i]).size and np.flatnonzero(C[i])[-1] > t]
        if late:
            raise ValueError(f"strategy: round {t} draws row {late[0]} of z, which belongs to a later round")


def squared_errors(workload: Workload, strategy: Strategy) -> Array:
    """The squared error of each released model for unit noise: ‖(A·N)_t‖², ``(rounds,)``.

    Not scaled by the sensitivity: multiply by the squared standard deviation of z.

    Args:
        workload: A.
        strategy: C, of as many rounds.

    Raises:
        ValueError: Workload and strategy differ in their number of rounds.

    Example:
        >>> from hubbub.mechanism.strategies import Identity
        >>> from hubbub.mechanism.workloads import prefix_sum
        >>> squared_errors(prefix_sum(rounds=3), Identity(rounds=3))
        array([1., 2., 3.])
    """
    require_strategy(strategy)
    if require_workload(workload).rounds != strategy.rounds:
        raise ValueError(f"workload.rounds = {workload.rounds}: must equal strategy.rounds = {strategy.rounds}")
    C = np.asarray(strategy.matrix(), dtype=np.float64)
    if is_triangular(C):
        # N is C⁻¹ for any stream: B·C = A.
        B = solve_triangular(C, workload.matrix().T, trans="T", lower=True).T
    else:
        B = workload.matrix() @ noising_matrix(strategy)
    return np.asarray(np.square(B).sum(axis=1))


def mean_squared_error(workload: Workload, strategy: Strategy) -> float:
    """The mean over rounds of :func:`squared_errors`.

    Args:
        workload: A.
        strategy: C, of as many rounds.

    Raises:
        ValueError: As of :func:`squared_errors`.

    Example:
        >>> from hubbub.mechanism.strategies import Identity
        >>> from hubbub.mechanism.workloads import prefix_sum
        >>> mean_squared_error(prefix_sum(rounds=3), Identity(rounds=3))
        2.0
    """
    return float(squared_errors(workload, strategy).mean())


def max_squared_error(workload: Workload, strategy: Strategy) -> float:
    """The largest of :func:`squared_errors`.

    Args:
        workload: A.
        strategy: C, of as many rounds.

    Raises:
        ValueError: As of :func:`squared_errors`.

    Example:
        >>> from hubbub.mechanism.workloads import prefix_sum
        >>> max_squared_error(prefix_sum(4), Identity(4)), mean_squared_error(prefix_sum(4), Identity(4))
        (4.0, 2.5)
    """
    return float(squared_errors(workload, strategy).max())


def root_mean_squared_error(workload: Workload, strategy: Strategy) -> float:
    """The root of :func:`mean_squared_error`.

    Args:
        workload: A.
        strategy: C, of as many rounds.

    Raises:
        ValueError: As of :func:`squared_errors`.

    Example:
        >>> from hubbub.mechanism.strategies import BinaryTree
        >>> from hubbub.mechanism.workloads import prefix_sum
        >>> [round(root_mean_squared_error(prefix_sum(64), strategy), 2) for strategy in (Identity(64), BinaryTree(64))]
        [5.7, 1.74]
    """
    return math.sqrt(mean_squared_error(workload, strategy))
