"""What a strategy is: one matrix C stated three ways, and one shared contract test that they agree.

Letters: C strategy ``(rows, rounds)``, z independent noise ``(rows, dim)``, N noising matrix ``(rounds, rows)`` with N·C = I.
Round t of a run releases x_t + (N·z)_t, which is a function of C·x + z: the guarantee is that of one Gaussian release.
For square C the noising matrix is C⁻¹.

Forward substitution, one round at a time: how any lower-triangular C is streamed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from hubbub._util.checks import Array
from hubbub.errors import NoiseExhaustedError
from hubbub.mechanism.participation import Participation
from hubbub.mechanism.sensitivity import Sensitivity

__all__ = [
    "Draw",
    "Memory",
    "Own",
    "Progress",
    "Strategy",
    "WithLeadingPart",
    "bands_of",
    "memory_rows",
    "progress",
    "substituted",
]

# A row of z, or a combination of rows: any array type with + and scalar ×; strategies never look inside.
Row = Any
# Row i of z; each is asked for at most once, in increasing order.
Draw = Callable[[int], Row]
# What a strategy carries from round to round; starts as ().
Memory = tuple[Row, ...]


class Strategy(Protocol):
    """A way to correlate noise over rounds. Implement it anywhere; ``hubbub.testing.check_strategy`` tests yours."""

    @property
    def rounds(self) -> int:
        """Number of rounds n; there is no noise for round n."""

    def matrix(self) -> Array:
        """C as a dense matrix, ``(rows, rounds)``."""

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """How far one client can move C·x."""

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """Row ``round_index`` of N·z, and what the next round needs to know.

        Args:
            round_index: t; called for 0, 1, 2, … in order.
            draw: Gives row i of z, at most once, in increasing order of i over the whole run.
            memory: What the step before returned; ``()`` for round 0. Never changed in place.
        """


@runtime_checkable
class WithLeadingPart(Protocol):
    """A strategy whose first rounds are a strategy of its own family, so that no matrix need be built for them."""

    def leading(self, rounds: int) -> Strategy:
        """The part of C that the first ``rounds`` rounds use."""


class Own(Protocol):
    """What the families of this package say of themselves beside; a class of others is known by its name and its matrix."""

    sources: ClassVar[tuple[str, ...]]
    """Keys of the papers that it is from, in a report's references."""

    @property
    def words(self) -> str:
        """What it is, for a statement."""

    @property
    def matrix_bands(self) -> int | None:
        """At most so many diagonals C has, the main one counted; ``None`` if it is not square and lower triangular."""


def memory_rows(strategy: Strategy) -> int | None:
    """The most rows that a strategy's steps carry, as its ``memory_rows`` says; ``None`` where it has none to say so."""
    stated: int | None = getattr(strategy, "memory_rows", None)
    return stated


@dataclass(frozen=True)
class Progress:
    """What some rounds have drawn and remember: one more than the last row of z, and rows now and at most."""

    drawn: int
    remembered: int
    most_remembered: int


def progress(strategy: Strategy, rounds: int) -> Progress:
    """How far the first rounds bring a strategy, found on rows of one number."""
    drawn, most, memory = 0, 0, ()

    def draw(index: int) -> Array:
        nonlocal drawn
        drawn = index + 1
        return np.zeros(1)

    for t in range(rounds):
        _, memory = strategy.step(t, draw, memory)
        most = max(most, len(memory))
    return Progress(drawn, len(memory), most)


_MOST_DENSE = 20_000


def require_dense(rounds: int) -> None:
    """Refuse, before anything is allocated, a dense matrix that would not fit in memory."""
    if rounds > _MOST_DENSE:
        raise ValueError(
            f"rounds = {rounds}: a dense matrix of {8 * rounds**2 / 2**30:,.0f} GiB is needed for this pattern; use at most "
            f"{_MOST_DENSE:,} rounds, or a strategy and a pattern whose columns do not overlap"
        )


def require_round(round_index: int, rounds: int) -> None:
    """Refuse noise for a round that the strategy does not have: a last row used again would not hide anything."""
    if not 0 <= round_index < rounds:
        raise NoiseExhaustedError(
            f"round_index = {round_index}: the strategy has noise for rounds 0 to {rounds - 1} only; "
            "plan a longer strategy, or a second run, whose privacy cost adds to that of this one"
        )


def bands_of(C: Array) -> int:
    """The number of diagonals of a lower-triangular matrix up to the last that is not 0, the main one counted."""
    return max(d for d in range(len(C)) if d == 0 or np.diagonal(C, -d).any()) + 1


def substituted(coefficients: Array, drawn: Row, memory: Memory, bands: int) -> tuple[Row, Memory]:
    """The next row y of C⁻¹z, and the last ``bands`` − 1 rows.

    Args:
        coefficients: ``(t + 1,)``, the row of C up to its diagonal.
        drawn: The row of z.
        memory: The last rows of C⁻¹z, the newest last.
        bands: Of C.
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
