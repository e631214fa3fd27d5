"""Strategies that can be accounted for, not run: only the matrix, or only bands and column norms, are known.

A run's record keeps the matrix of a strategy class of others, not its code. A publication may state only bands and column
norms; accounting needs no more, since columns at least ``bands`` rounds apart do not overlap.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hubbub._util.checks import Array, Rebuilt, integer, plain_numbers, real_array, rounds_count, scale
from hubbub.errors import ConfigError
from hubbub.mechanism.participation import Participation, covering, worst_rounds
from hubbub.mechanism.sensitivity import Sensitivity, of_columns, of_matrix, require_full_rank
from hubbub.mechanism.strategies.strategy import Description, Draw, Memory, Row

__all__ = ["Columns", "Described"]


@dataclass(frozen=True, eq=False)
class Described(Rebuilt):
    """A matrix-only strategy.

    Args:
        rounds: Number of columns.
        C: ``(rows, rounds)``.
        origin: The name of the class that it came from.

    Raises:
        ValueError: Another number of columns, an entry that is not finite, or not full column rank.

    Example:
        >>> from hubbub.mechanism.participation import SingleParticipation
        >>> Described(rounds=2, C=[[1, 0], [0, 1], [1, 1]]).sensitivity(SingleParticipation()).value ** 2
        2.0000000000000004
    """

    rounds: int
    C: npt.ArrayLike
    origin: str = ""

    def __post_init__(self) -> None:
        plain_numbers(self)
        C = real_array("C", self.C, ndim=2)
        if C.shape[1] != integer("rounds", self.rounds, at_least=1):
            raise ValueError(f"C has shape {C.shape}: must have rounds = {self.rounds} columns")
        object.__setattr__(self, "C", require_full_rank("C", C))

    def matrix(self) -> Array:
        """C, ``(rows, rounds)``, read-only."""
        return np.asarray(self.C)

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """How far one client can move C·x, computed from the matrix."""
        return of_matrix(self.matrix(), participation)

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """Refused: only the matrix is known."""
        raise ConfigError("a strategy that is known by its matrix alone can be accounted for, not run")


@dataclass(frozen=True)
class Columns:
    """A lower-triangular C of at most ``bands`` diagonals whose columns have at most the given squared norm.

    Its matrix is not known.

    Args:
        rounds: n, at least 1.
        bands: b, from 1 to n.
        squared_norm: The squared L2 norm of every column, from 1e-12 to 1e12; the largest, if norms differ: sensitivities are
            then bounds.

    Raises:
        ValueError: More bands than rounds, or a number out of range.

    Example:
        >>> from hubbub.mechanism.participation import MinSeparation
        >>> columns = Columns(rounds=2000, bands=400, squared_norm=0.2)
        >>> round(columns.sensitivity(MinSeparation(485, 3)).value ** 2, 12)
        0.6
    """

    rounds: int
    bands: int
    squared_norm: float

    def __post_init__(self) -> None:
        plain_numbers(self, rounds=rounds_count)
        integer("bands", self.bands, at_least=1, at_most=self.rounds)
        scale("column_norm_squared", self.squared_norm)

    def leading(self, rounds: int) -> "Columns":
        """The first ``rounds`` rounds."""
        return Columns(rounds, min(self.bands, rounds), self.squared_norm)

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """How far one client can move C·x: exact for columns that do not overlap, else a bound by adding their norms."""
        separation, participations = worst_rounds(covering(participation, self.rounds), self.rounds)
        if self.bands <= separation:
            return of_columns(np.full(self.rounds, self.squared_norm), participation)
        summed = participations * math.sqrt(self.squared_norm)
        return Sensitivity(summed, exact=False, source="sum of the column norms: columns overlap")

    @property
    def description(self) -> Description:
        """Words, bands and sources, for statements and reports."""
        return Description(f"banded, {self.bands} bands", self.bands, ("choquettechoo2023multi",))

    def matrix(self) -> Array:
        """Refused: the matrix is not known."""
        raise ConfigError("strategy 'banded' is described by its column norms: it can be accounted for, not run")

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """Refused: the matrix is not known."""
        raise ConfigError("strategy 'banded' is described by its column norms: it can be accounted for, not run")
