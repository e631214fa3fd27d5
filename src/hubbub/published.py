"""Matrices that others published, checked before use against what they are said to be.

Letters: C strategy, B = A·C⁻¹ decoder, A workload, all ``(rounds, rounds)``.

Nothing that a file or its page states is taken over. C must be lower triangular and have the bands that it is said to have,
B·C must be the workload, and the norms of its columns, which the noise is calibrated by, are computed and told.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hubbub._checks import Array, integer
from hubbub.errors import DataError
from hubbub.strategies.dense import Dense, load
from hubbub.tensor_proto import read_tensor_proto
from hubbub.workloads import Workload

__all__ = ["TOLERANCE", "Published", "cooldown", "learning_rates", "verified"]

# How far B·C may be from A, in terms of A's largest entry: what matrices in float32 keep to, and none of another workload.
TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Published:
    """A matrix that holds what it promised.

    Args:
        strategy: C.
        bands: How many diagonals it has up to the last that is not 0.
        column_norms: The least and the largest L2 norm of its columns.
        difference: The largest entry of |B·C − A|, in terms of A's largest; ``None`` where no B was given.
    """

    strategy: Dense
    bands: int
    column_norms: tuple[float, float]
    difference: float | None


def verified(
    matrix: str | Path, workload: Workload | None = None, *, b_matrix: str | Path | None = None, bands: int | None = None
) -> Published:
    """A published strategy, after everything that can be checked was.

    Args:
        matrix: The file of C: ``.npy``, or a TensorFlow ``TensorProto``.
        workload: A; needed with ``b_matrix``. Google's matrices are for prefix sums times learning rates.
        b_matrix: The file of B.
        bands: As many diagonals as C is said to have at most.

    Raises:
        DataError: A file is missing or torn, or a matrix is not what it is said to be: the message names file and entry.
        ValueError: ``b_matrix`` without a workload.
    """
    try:
        strategy = load(matrix)
    except ValueError as error:
        raise DataError(str(error)) from error
    C = strategy.matrix()
    if bands is not None and strategy.bands > integer("bands", bands, at_least=1):
        d = strategy.bands - 1
        j = int(np.flatnonzero(np.diagonal(C, -d))[0])
        raise DataError(f"{matrix}: C[{j + d}, {j}] = {C[j + d, j]}: must be 0 below {bands} bands; it has {strategy.bands}")
    difference = None
    if b_matrix is not None:
        if workload is None:
            raise ValueError(f"b_matrix = {b_matrix}: needs the workload that B·C is compared with")
        difference = _difference(C, b_matrix, workload)
    norms = np.linalg.norm(C, axis=0)
    return Published(strategy, strategy.bands, (float(norms.min()), float(norms.max())), difference)


def _difference(C: Array, b_matrix: str | Path, workload: Workload) -> float:
    B = read_tensor_proto(b_matrix)
    if B.shape != C.shape or workload.rounds != len(C):
        raise DataError(
            f"{b_matrix}: B has shape {B.shape}: must be {C.shape} as C, for a workload of {workload.rounds} rounds"
        )
    A = workload.matrix()
    with np.errstate(all="ignore"):
        errors = np.abs(B @ C - A) / float(np.abs(A).max())
    # A comparison that is false for what is not a number.
    worst = np.unravel_index(int(np.argmax(np.where(np.isnan(errors), math.inf, errors))), errors.shape)
    i, j = (int(index) for index in worst)
    if not errors[i, j] <= TOLERANCE:
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
    wrong = np.flatnonzero(~((rates > 0) & (rates < math.inf)))
    if wrong.size:
        raise DataError(f"{path}: learning_rates[{wrong[0]}] = {rates[wrong[0]]}: must be above 0 and finite")
    return tuple(rates.tolist())


def cooldown(rounds: int, fraction: float = 0.25, last: float = 0.05) -> tuple[float, ...]:
    """Learning rates of 1 that fall in equal steps to ``last`` over the last part of the rounds.

    Example:
        >>> cooldown(rounds=8)
        (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.05)

    Source: the schedule of the matrices published with Choquette-Choo et al. 2023, https://arxiv.org/abs/2306.08153, for which
    25 % of the rounds end at 0.05.
    """
    falling = int(rounds * fraction)
    return (*(1.0,) * (rounds - falling), *np.linspace(1.0, last, falling).tolist())
