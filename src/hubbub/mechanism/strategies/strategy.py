"""The contract of a strategy: one matrix C, stated as a matrix, as sensitivities and as a stream of noise.

Letters: C strategy ``(rows, rounds)``, z independent noise ``(rows, dim)``, N noising matrix ``(rounds, rows)`` with N·C = I.
Round t of a run releases x_t + (N·z)_t. All rounds together are a function of C·x + z, so the guarantee is that of one Gaussian
release. For square C the noising matrix is C⁻¹, and any lower-triangular C is streamed by forward substitution.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from hubbub._util.checks import Array, rounds_count, shown
from hubbub.errors import NoiseExhaustedError
from hubbub.mechanism.participation import Participation
from hubbub.mechanism.sensitivity import Sensitivity

__all__ = ["Description", "Draw", "Memory", "Progress", "Strategy", "WithLeadingPart", "memory_rows", "progress", "substituted"]

# A row of z, or a combination of rows: any array type with + and multiplication by a number.
Row = Any
# Row i of z; each is drawn at most once, in increasing order.
Draw = Callable[[int], Row]
# State from one round to the next; starts as ().
Memory = tuple[Row, ...]


class Strategy(Protocol):
    """A way to correlate noise over rounds. Implement it anywhere; ``hubbub.testing.check_strategy`` tests yours.

    Example:
        >>> import numpy as np
        >>> from hubbub.errors import NoiseExhaustedError
        >>> from hubbub.mechanism.sensitivity import of_matrix
        >>> from hubbub.testing import check_strategy
        >>> class Halved:  # each round takes away half of the noise of the round before
        ...     def __init__(self, rounds):
        ...         self.rounds = rounds
        ...
        ...     def matrix(self):
        ...         return np.tril(0.5 ** np.subtract.outer(np.arange(self.rounds), np.arange(self.rounds)))
        ...
        ...     def sensitivity(self, participation):
        ...         return of_matrix(self.matrix(), participation)
        ...
        ...     def step(self, round_index, draw, memory):
        ...         if round_index >= self.rounds:
        ...             raise NoiseExhaustedError(f"round {round_index}: there are {self.rounds}")
        ...         z = draw(round_index)
        ...         return z - 0.5 * memory[0] if memory else z, (z,)
        >>> check_strategy(Halved(6))
    """

    @property
    def rounds(self) -> int:
        """Number of rounds n; there is no noise for round n."""

    def matrix(self) -> Array:
        """C as a dense matrix, ``(rows, rounds)``."""

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """How far one client can move C·x."""

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """Row ``round_index`` of N·z, and the memory for the next round.

        Args:
            round_index: t; called for 0, 1, 2, … in order.
            draw: Gives row i of z, at most once, in increasing order of i over the whole run.
            memory: Returned by the previous step; ``()`` for round 0. Never changed in place.
        """


@runtime_checkable
class WithLeadingPart(Protocol):
    """A strategy whose first rounds are a strategy of its own family, so that no matrix is needed for them."""

    def leading(self, rounds: int) -> Strategy:
        """The part of C that the first ``rounds`` rounds use."""


class Description(NamedTuple):
    """What a family of this package states of a strategy.

    Args:
        words: Its name, for a statement.
        matrix_bands: The most diagonals that C has, the main one counted; ``None`` if C is not square and lower triangular.
        sources: Keys of its papers, in a report's references.
        toeplitz: Whether C is square, lower triangular and Toeplitz, so that its first column says all of it.
    """

    words: str
    matrix_bands: int | None
    sources: tuple[str, ...]
    toeplitz: bool = False


def memory_rows(strategy: Strategy) -> int | None:
    """The most rows that a strategy's steps remember, by its ``memory_rows``; ``None`` if it has no such attribute."""
    stated: int | None = getattr(strategy, "memory_rows", None)
    return stated


@dataclass(frozen=True)
class Progress:
    """After some rounds: one more than the last row of z that was drawn, and the rows remembered now and at most."""

    drawn: int
    remembered: int
    most_remembered: int


def progress(strategy: Strategy, rounds: int) -> Progress:
    """Rows drawn and remembered by the first rounds, measured on rows of one number."""
    drawn, most, memory = 0, 0, ()

    def draw(index: int) -> Array:
        nonlocal drawn
        drawn = index + 1
        return np.zeros(1)

    for t in range(rounds):
        _, memory = strategy.step(t, draw, memory)
        most = max(most, len(memory))
    return Progress(drawn, len(memory), most)


def require_strategy(value: object) -> None:
    """Refuse a value that is no strategy with a ``TypeError``."""
    if not all(hasattr(value, name) for name in ("rounds", "matrix", "sensitivity", "step")):
        hint = "give its .strategy" if hasattr(value, "strategy") else "such as Identity(rounds) or Dense(matrix)"
        raise TypeError(f"strategy = {shown(value)}: must be a strategy of hubbub.mechanism.strategies or of your own; {hint}")
    rounds_count("rounds", value.rounds)  # type: ignore[attr-defined] # which it has


MOST_DENSE = 20_000


def require_dense(rounds: int) -> None:
    """Refuse, before anything is allocated, a dense matrix that would not fit in memory."""
    if rounds > MOST_DENSE:
        raise ValueError(
            f"rounds = {rounds}: a dense matrix of {8 * rounds**2 / 2**30:,.0f} GiB is needed for this pattern; use at most "
            f"{MOST_DENSE:,} rounds, or a strategy and a pattern whose columns do not overlap"
        )


def require_round(round_index: int, rounds: int) -> None:
    """Refuse noise for a round that the strategy does not have: reusing the last row would hide nothing."""
    if not 0 <= round_index < rounds:
        raise NoiseExhaustedError(
            f"round_index = {round_index}: the strategy has noise for rounds 0 to {rounds - 1} only; "
            "plan a longer strategy, or a second run, whose privacy cost adds to that of this one"
        )


def substituted(coefficients: Array, drawn: Row, memory: Memory, bands: int) -> tuple[Row, Memory]:
    """The next row of C⁻¹z by forward substitution, and the last ``bands`` − 1 rows, the newest last.

    ``coefficients``, ``(t + 1,)``, is the row of C up to its diagonal, ``drawn`` the row of z.
    """
    *before, own = coefficients.tolist()
    row = drawn
    for coefficient, earlier in zip(reversed(before), reversed(memory), strict=False):
        if row is drawn:
            row = drawn - coefficient * earlier
        else:
            row -= coefficient * earlier
    if own != 1:
        row = (1 / own) * row
    kept = (*memory, row)
    return row, kept[max(0, len(kept) - (bands - 1)) :]
