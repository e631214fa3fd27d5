"""Matrices that others published, checked before use against what they are said to be.

Letters: C strategy, B = A·C⁻¹ decoder, A workload, all ``(rounds, rounds)``.

Nothing that a file or its page states is taken over. C must be lower triangular and have the bands that it is said to have,
B·C must be the workload, and the norms of its columns, which the noise is calibrated by, are computed and reported.
"""

import math
from pathlib import Path

import numpy as np

from hubbub._util.checks import integer, number, probability
from hubbub._util.tensor_proto import read_tensor_proto
from hubbub.errors import DataError
from hubbub.mechanism.strategies.dense import Dense, load
from hubbub.mechanism.workloads import Workload

# The largest |B·C − A| relative to A's largest entry: met by matrices in float32, not by those of another workload.
TOLERANCE = 1e-6


def verified(matrix: str | Path, *, bands: int | None = None) -> Dense:
    """A published strategy, checked: finite, square, lower triangular, no zero on the diagonal, and of its bands.

    Args:
        matrix: The file of C: ``.npy``, or a TensorFlow ``TensorProto``.
        bands: The most diagonals that C may have.

    Raises:
        DataError: The file is missing or torn, or the matrix fails a check: the message names file and entry.
    """
    try:
        strategy = load(matrix)
    except ValueError as error:
        raise DataError(str(error)) from error
    if bands is not None and strategy.bands > integer("bands", bands, at_least=1):
        C, d = strategy.matrix(), strategy.bands - 1
        j = int(np.flatnonzero(np.diagonal(C, -d))[0])
        raise DataError(
            f"{matrix}: C[{j + d}, {j}] = {C[j + d, j]}: must be 0 in a matrix of {bands} bands; it has {strategy.bands}"
        )
    return strategy


def decoder_difference(b_matrix: str | Path, strategy: Dense, workload: Workload) -> float:
    """The largest entry of |B·C − A|, relative to A's largest.

    Google's matrices are for prefix sums times learning rates: ``Workload(rounds, learning_rates=...)``.

    Args:
        b_matrix: The file of B: ``.npy``, or a TensorFlow ``TensorProto``.
        strategy: C.
        workload: A.

    Raises:
        DataError: The file is missing or torn, B has another shape, or the difference is more than :data:`TOLERANCE`.
    """
    B, C = read_tensor_proto(b_matrix), strategy.matrix()
    if B.shape != C.shape or workload.rounds != len(C):
        raise DataError(
            f"{b_matrix}: B has shape {B.shape}: must be {C.shape} as C, for a workload of {workload.rounds} rounds"
        )
    A = workload.matrix()
    with np.errstate(all="ignore"):
        errors = np.nan_to_num(np.abs(B @ C - A), nan=math.inf) / float(np.abs(A).max())
    i, j = (int(index) for index in np.unravel_index(int(np.argmax(errors)), errors.shape))
    if errors[i, j] > TOLERANCE:
        raise DataError(
            f"{b_matrix}: B·C differs from the workload by {errors[i, j]:.3g} of its largest entry, at [{i}, {j}]: must be "
            f"within {TOLERANCE:g}; give the learning rates and the momentum that it was made for"
        )
    return float(errors[i, j])


def learning_rates(path: str | Path) -> tuple[float, ...]:
    """The learning rate of each round from a file: ``.npy``, or a TensorFlow ``TensorProto``.

    Raises:
        DataError: The file is missing, torn, or holds no vector of positive numbers.
    """
    rates = read_tensor_proto(path)
    if rates.ndim != 1 or not rates.size:
        raise DataError(f"{path}: has shape {rates.shape}: must be (rounds,), a learning rate a round")
    try:
        return Workload(len(rates), learning_rates=tuple(rates.tolist())).learning_rates or ()
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def cooldown(rounds: int, fraction: float = 0.25, last: float = 0.05) -> tuple[float, ...]:
    """Learning rates of 1 that fall in equal steps to ``last`` over the last part of the rounds.

    Example:
        >>> cooldown(rounds=8)
        (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.05)
        >>> cooldown(rounds=4)
        (1.0, 1.0, 1.0, 0.05)

    Source: the schedule of the matrices published with Choquette-Choo et al. 2023, https://arxiv.org/abs/2306.08153, for which
    25 % of the rounds end at 0.05.
    """
    falling = int(integer("rounds", rounds, at_least=1) * number("fraction", fraction, lambda x: 0 <= x <= 1, "be from 0 to 1"))
    first = 1.0 if falling > 1 else probability("last", last)
    return (*(1.0,) * (rounds - falling), *np.linspace(first, probability("last", last), falling).tolist())
