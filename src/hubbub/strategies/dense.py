"""Any lower-triangular C: one that was optimized elsewhere or published, or the best of all.

Letters: C strategy ``(rounds, rounds)``, X = CᵀC, y rows of C⁻¹z, A workload, n rounds, b rounds of an epoch, k epochs.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hubbub._checks import Array, one_of, real_array
from hubbub.factorization import recursions
from hubbub.factorization.epochs import best_for_epochs
from hubbub.factorization.normal_form import gram_root, triangular_form
from hubbub.factorization.threads import on_one_thread
from hubbub.participation import (
    FixedEpochs,
    MinSeparation,
    Participation,
    RandomParticipation,
    SingleParticipation,
    require_participation,
)
from hubbub.sensitivity import Sensitivity, of_matrix
from hubbub.strategies.optimized import Objective, Optimized
from hubbub.strategies.semiseparable import Semiseparable
from hubbub.strategies.strategy import Draw, Memory, Row, require_round
from hubbub.strategies.substitution import bands_of, substituted
from hubbub.tensor_proto import read_tensor_proto
from hubbub.workloads import Workload

__all__ = ["Dense", "from_gram", "from_matrix", "load", "optimize"]

# Its inverse would overflow below this.
_LEAST_DIAGONAL = 1e-100
# Beyond these numbers of rounds the time or the memory of an answer is no longer that of a few minutes.
_MOST_BY_RECURSION = 1_000_000
_MOST_BY_MATRIX = 4096
_MOST_IN_EPOCHS = 5000
_MOST_DECOMPOSED = 1000


@dataclass(frozen=True, eq=False)
class Dense:
    """A strategy given as a matrix.

    Args:
        C: ``(rounds, rounds)``, lower triangular, no zero on the diagonal. Copied.

    Raises:
        ValueError: C is not square, not lower triangular, has a zero on its diagonal, or an entry that is not finite; the
            message names row and column.

    Example:
        >>> Dense([[1.0, 0.0], [0.5, 1.0]]).rounds
        2
    """

    C: npt.ArrayLike

    def __post_init__(self) -> None:
        C = real_array("C", self.C, ndim=2)
        if C.shape[0] != C.shape[1]:
            raise ValueError(f"C has shape {C.shape}: must be square, one row and one column a round")
        above = np.argwhere(np.triu(C, 1))
        if above.size:
            i, j = (int(v) for v in above[0])
            raise ValueError(
                f"C[{i}, {j}] = {C[i, j]}: C must be lower triangular, or round {i} would need noise of a later round"
            )
        zero = np.flatnonzero(np.abs(np.diag(C)) < _LEAST_DIAGONAL)
        if zero.size:
            raise ValueError(f"C[{zero[0]}, {zero[0]}] = {C[zero[0], zero[0]]}: the diagonal of C must not be 0, or nearly so")
        object.__setattr__(self, "C", C)

    @property
    def rounds(self) -> int:
        """Number of rounds n."""
        return len(self.matrix())

    def matrix(self) -> Array:
        """C, ``(rounds, rounds)``, read-only."""
        C: Array = self.C  # type: ignore[assignment] # the constructor made it an array
        return C

    @cached_property
    def bands(self) -> int:
        """The number of diagonals up to the last that is not 0, the main one counted."""
        return bands_of(self.matrix())

    @property
    def memory_rows(self) -> int:
        """The most rows that a round hands to the next."""
        return self.bands - 1

    def leading(self, rounds: int) -> "Dense":
        """The first ``rounds`` rounds."""
        return Dense(self.matrix()[:rounds, :rounds])

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """How far one client can move C·x, computed from the matrix."""
        return of_matrix(self.matrix(), participation)

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """Row ``round_index`` of C⁻¹z, by forward substitution over the last ``bands`` − 1 rows."""
        require_round(round_index, self.rounds)
        return substituted(self.matrix()[round_index, : round_index + 1], draw(round_index), memory, self.bands)


def from_gram(X: npt.ArrayLike) -> Dense:
    """The strategy whose columns have the inner products X, ``(rounds, rounds)``.

    Raises:
        ValueError: X is not symmetric and positive definite.

    Example:
        >>> from_gram([[1.25, 0.5], [0.5, 1.0]]).matrix()
        array([[1. , 0. ],
               [0.5, 1. ]])
    """
    return Dense(gram_root(X))


def from_matrix(C: npt.ArrayLike) -> Dense:
    """The triangular strategy that is as private as C, tall or not, and as exact as the best decoder of C.

    Raises:
        ValueError: C has fewer rows than rounds, or not full column rank.

    Example:
        >>> from_matrix([[1, 0], [0, 1], [1, 1]]).matrix().round(3)
        array([[1.225, 0.   ],
               [0.707, 1.414]])
    """
    return Dense(triangular_form(C))


def load(path: str | Path) -> Dense:
    """A strategy from a file: a NumPy array (``.npy``) or a serialized TensorFlow ``TensorProto`` (any other name).

    Nothing that a file says about its sensitivity is used: a strategy computes it from the matrix.

    Raises:
        DataError: The file is missing or is not such a file.
        ValueError: The matrix is no strategy (see :class:`Dense`).
    """
    matrix = read_tensor_proto(path)
    try:
        return Dense(matrix)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


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
        >>> from hubbub.workloads import prefix_sum
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
    return Optimized(
        strategy,
        workload,
        participation,
        objective,
        squared_error=error * sensitivity**2,
        lower_bound=bound,
        bound_family="every strategy",
        iterations=iterations,
    )


def _optimum(
    workload: Workload, participation: Participation, objective: Objective
) -> tuple[Dense | Semiseparable, Array, float, int]:
    """The strategy, the squared error of each round for unit noise, the bound, and the number of evaluations."""
    require_participation(participation)
    n = workload.rounds
    if isinstance(participation, RandomParticipation):
        raise ValueError(
            f"participation = {participation!r}: random cohorts promise no set of rounds to optimize for; optimize for a "
            "pattern, such as SingleParticipation()"
        )
    match participation:
        case SingleParticipation():
            return _for_one(workload, objective)
        case FixedEpochs(epochs, rounds_per_epoch):
            if n <= rounds_per_epoch:
                return _for_one(workload, objective)
            return _for_epochs(workload, FixedEpochs(min(epochs, -(-n // rounds_per_epoch)), rounds_per_epoch), objective)
        case MinSeparation(min_separation, max_participations):
            if max_participations == 1 or n <= min_separation:
                return _for_one(workload, objective)
            raise ValueError(
                f"participation = {participation!r}: the best dense strategy is known for SingleParticipation and FixedEpochs "
                f"only; use banded.optimize with at most {min_separation} bands"
            )


def _for_one(workload: Workload, objective: Objective) -> tuple[Dense | Semiseparable, Array, float, int]:
    most = _MOST_BY_MATRIX if workload.momentum else _MOST_BY_RECURSION
    if workload.rounds > most:
        raise ValueError(
            f"workload.rounds = {workload.rounds}: must be at most {most:,} with momentum = {workload.momentum}; use "
            "blt.optimize or toeplitz.optimize"
        )
    if not workload.momentum:
        recursion, dual = recursions.best_recursion(workload, objective)
        return Semiseparable(*recursion), recursions.squared_errors(workload, recursion), dual.bound, dual.evaluations
    dual = recursions.best_weights(workload, objective)
    C = recursions.root_of_weights(workload, dual.v, dual.w)
    return Dense(C), recursions.row_errors(workload, C), dual.bound, dual.evaluations


def _for_epochs(
    workload: Workload, pattern: FixedEpochs, objective: Objective
) -> tuple[Dense | Semiseparable, Array, float, int]:
    n, epochs, rounds_per_epoch = workload.rounds, pattern.epochs, pattern.rounds_per_epoch
    if n != epochs * rounds_per_epoch:
        raise ValueError(
            f"workload.rounds = {n}: must be epochs · rounds_per_epoch = {epochs * rounds_per_epoch} for {pattern!r}; plan "
            "whole epochs, or use banded.optimize"
        )
    if workload.momentum and objective == "max":
        raise ValueError(
            f"workload.momentum = {workload.momentum}: the largest error over epochs needs a momentum of 0 here; optimize the "
            "mean, or use banded.optimize"
        )
    most = _MOST_DECOMPOSED if workload.momentum or objective == "max" or rounds_per_epoch == 1 else _MOST_IN_EPOCHS
    if n > most:
        raise ValueError(
            f"workload.rounds = {n}: must be at most {most} for {pattern!r}, objective = {objective!r} and momentum = "
            f"{workload.momentum}; use banded.optimize"
        )
    optimum = best_for_epochs(workload, epochs, rounds_per_epoch, objective)
    return Dense(optimum.C), recursions.row_errors(workload, optimum.C), optimum.bound, optimum.iterations
