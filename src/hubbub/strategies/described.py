"""Any C, square or tall, known by its matrix alone: what is left of a strategy from outside once its code is gone."""

from dataclasses import dataclass

import numpy.typing as npt

from hubbub._checks import Array, integer, real_array
from hubbub.errors import ConfigError
from hubbub.participation import Participation
from hubbub.sensitivity import Sensitivity, of_matrix
from hubbub.strategies.strategy import Draw, Memory, Row

__all__ = ["Described"]


@dataclass(frozen=True, eq=False)
class Described:
    """A matrix that can be accounted for, not run.

    Args:
        rounds: Number of columns.
        C: ``(rows, rounds)``.
        origin: The class that it was, in words.

    Raises:
        ValueError: Another number of columns, or an entry that is not finite.

    Example:
        >>> from hubbub.participation import SingleParticipation
        >>> Described(rounds=2, C=[[1, 0], [0, 1], [1, 1]]).sensitivity(SingleParticipation()).value ** 2
        2.0000000000000004
    """

    rounds: int
    C: npt.ArrayLike
    origin: str = ""

    def __post_init__(self) -> None:
        C = real_array("C", self.C, ndim=2)
        if C.shape[1] != integer("rounds", self.rounds, at_least=1):
            raise ValueError(f"C has shape {C.shape}: must have rounds = {self.rounds} columns")
        object.__setattr__(self, "C", C)

    def matrix(self) -> Array:
        """C, ``(rows, rounds)``, read-only."""
        C: Array = self.C  # type: ignore[assignment] # the constructor made it an array
        return C

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """How far one client can move C·x, computed from the matrix."""
        return of_matrix(self.matrix(), participation)

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """Refused: how its noise is made is not known."""
        raise ConfigError("a strategy that is known by its matrix alone can be accounted for, not run")
