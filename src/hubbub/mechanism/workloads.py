"""Workloads: the linear queries of the stream of updates that training releases.

An optimizer that steps along privatized sums releases, in round t, row t of A·x, where row s of x is the sum of the
clipped updates of round s. Momentum and learning-rate schedules are part of A: a strategy optimized for A minimizes the error
of the *models*, not of single updates.

Letters: A workload, n rounds, β momentum, η learning rates.
"""

from dataclasses import dataclass

import numpy as np

from hubbub._util.checks import Array, number, numbers_within, plain_numbers, rounds_count, shown
from hubbub.mechanism.strategies.strategy import require_dense

__all__ = ["Workload", "momentum", "prefix_sum"]


@dataclass(frozen=True)
class Workload:
    """A lower-triangular workload A of SGD with momentum β and a learning rate η for each round.

    With the momentum buffer m_t = β·m_{t-1} + x_t and the model θ_t = θ_{t-1} + η_t·m_t, the models are A·x.

    Args:
        rounds: n, at least 1.
        momentum: β in [0, 1).
        learning_rates: η, one positive number a round; ``None`` means 1 in each.

    Raises:
        ValueError: A number out of range, a learning rate outside 1e-100 to 1e100 (0 would make A singular), or not one rate
            a round.

    Example:
        >>> Workload(rounds=3, momentum=0.5, learning_rates=(1.0, 1.0, 0.5)).matrix()
        array([[1.   , 0.   , 0.   ],
               [1.5  , 1.   , 0.   ],
               [1.625, 1.25 , 0.5  ]])
    """

    rounds: int
    momentum: float = 0.0
    learning_rates: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        plain_numbers(self, rounds=rounds_count)
        number("momentum", self.momentum, lambda x: 0 <= x < 1, "be at least 0 and below 1")
        if self.learning_rates is None:
            return
        rule = "from 1e-100 to 1e100; in the place of 0 give a small positive rate, or leave that round out"
        found = numbers_within("learning_rates", self.learning_rates, rule, lambda rate: 1e-100 <= rate <= 1e100)
        rates = tuple(found.tolist())
        if len(rates) != self.rounds:
            raise ValueError(f"learning_rates has {len(rates)} entries: must have one for each of {self.rounds} rounds")
        object.__setattr__(self, "learning_rates", rates)

    def matrix(self) -> Array:
        """A as a dense matrix, ``(rounds, rounds)``, of at most 20,000 rounds."""
        require_dense(self.rounds)
        column = np.concatenate([np.zeros(self.rounds - 1), self.momentum ** np.arange(self.rounds)])
        buffer = np.lib.stride_tricks.sliding_window_view(column, self.rounds)[:, ::-1].copy()
        if self.learning_rates is not None:
            buffer *= np.asarray(self.learning_rates)[:, None]
        return np.cumsum(buffer, axis=0, out=buffer)

    def inverse_bands(self) -> Array:
        """The diagonals of A⁻¹, which is lower banded: entry ``[d, j]`` is that of row j + d and column j.

        Two rows without momentum, three with it, ``(2 or 3, rounds)``; what would lie below the last row of A⁻¹ is 0. From
        A⁻¹ = (I − βS)·diag(1/η)·(I − S) with S the shift by one round.

        Example:
            >>> prefix_sum(rounds=3).inverse_bands()
            array([[ 1.,  1.,  1.],
                   [-1., -1.,  0.]])
        """
        own = np.ones(self.rounds) if self.learning_rates is None else 1 / np.asarray(self.learning_rates)
        following = np.append(own[1:], 0.0)
        bands = [own, -following - self.momentum * own]
        bands[1][-1] = 0.0
        if self.momentum:
            bands.append(self.momentum * following)
            bands[2][-2:] = 0.0
        return np.stack(bands)

    def coefficients(self) -> Array:
        """The first column of A, ``(rounds,)``: it determines A if learning rates are equal, so that A is Toeplitz."""
        column = np.cumsum(self.momentum ** np.arange(self.rounds))
        if self.learning_rates is None:
            return column
        increments = np.append(column[0], np.diff(column))
        return np.cumsum(increments * np.asarray(self.learning_rates))

    @property
    def toeplitz(self) -> bool:
        """Whether each column of A is the previous one, shifted by a round."""
        return self.learning_rates is None or len(set(self.learning_rates)) == 1


def require_workload(value: object) -> Workload:
    """The value, refused with a ``TypeError`` if it is no workload."""
    if not isinstance(value, Workload):
        raise TypeError(f"workload = {shown(value)}: must be a Workload, such as prefix_sum(rounds)")
    return value


def prefix_sum(rounds: int) -> Workload:
    """The workload of plain SGD: row t is the sum of rounds 0 to t.

    Example:
        >>> prefix_sum(rounds=3).matrix()
        array([[1., 0., 0.],
               [1., 1., 0.],
               [1., 1., 1.]])
    """
    return Workload(rounds)


def momentum(rounds: int, momentum: float, learning_rates: "tuple[float, ...] | Array | None" = None) -> Workload:
    """The workload of SGD with momentum and a learning-rate schedule.

    Args:
        rounds: Number of rounds.
        momentum: β in [0, 1).
        learning_rates: ``(rounds,)`` positive numbers, or ``None`` for 1 in each round.

    Example:
        >>> momentum(rounds=3, momentum=0.5).matrix()
        array([[1.  , 0.  , 0.  ],
               [1.5 , 1.  , 0.  ],
               [1.75, 1.5 , 1.  ]])

    Source: Choquette-Choo et al. 2023, "Multi-Epoch Matrix Factorization Mechanisms", https://arxiv.org/abs/2211.06530.
    """
    return Workload(rounds, momentum, learning_rates)  # type: ignore[arg-type] # which makes a tuple of an array
