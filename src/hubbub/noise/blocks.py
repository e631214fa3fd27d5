"""Several rounds of N·z as one matrix product, found from the strategy's own ``step``.

A step makes its row and its next memory by adding multiples of the rows that it remembers and of rows of z. Fed with unit
vectors in their place, it tells the multiples: so a block of rounds is ``released = K·[memory; z]``, with no second statement
of the strategy that could disagree with the first. Rows that a step merely carries on need no arithmetic, and are told apart.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hubbub._checks import Array, integer
from hubbub.strategies.strategy import Strategy, memory_rows, require_round

__all__ = ["Block", "Kept", "Progress", "block_of", "progress", "rounds_per_pass"]

# More rounds at a time read the memory less often, and need a row of room each.
_FEW, _MANY = 8, 16


@dataclass(frozen=True)
class Kept:
    """A row of the next memory: an earlier one (``"memory"``), a released one, or a ``"combination"``, by its number."""

    kind: str
    number: int


@dataclass(frozen=True, eq=False)
class Block:
    """What the rounds from ``start`` up to ``stop`` make of the memory before them and of z.

    ``drawn`` are the rows of z in the order of their use, ``drawn_after`` one more than the last of them after each round.
    ``coefficients`` is ``(rounds + combinations, memory + drawn)``: the released rows, then those that are only remembered.
    """

    start: int
    stop: int
    drawn: tuple[int, ...]
    drawn_after: tuple[int, ...]
    coefficients: Array
    kept: tuple[Kept, ...]


def rounds_per_pass(strategy: Strategy) -> int:
    """How many rounds a pass makes: few where little is remembered, since each needs a row of room."""
    remembered = memory_rows(strategy)
    return _FEW if remembered is not None and remembered <= _FEW else _MANY


def block_of(strategy: Strategy, start: int, stop: int, remembered: int, drawn: int) -> Block:
    """The block of rounds ``start`` to ``stop`` − 1.

    Args:
        strategy: Any; its ``step`` is called with NumPy vectors.
        start: The first round.
        stop: One more than the last; what lies beyond the strategy's last round is left out.
        remembered: How many rows are remembered before.
        drawn: One more than the last row of z that was drawn before.

    Raises:
        NoiseExhaustedError: The strategy has no round ``start``.
    """
    require_round(start, strategy.rounds)
    stop = min(integer("stop", stop, at_least=start + 1), strategy.rounds)
    width = remembered + _count_draws(strategy, start, stop, remembered)
    unit = np.eye(width)
    memory: tuple[Any, ...] = tuple(unit[:remembered])
    before = {id(row): Kept("memory", number) for number, row in enumerate(memory)}
    rows, order, after, released = memory, [], [], []

    def draw(index: int) -> Array:
        order.append(index)
        row: Array = unit[remembered + len(order) - 1]
        return row

    for t in range(start, stop):
        row, rows = strategy.step(t, draw, rows)
        # Kept until the end, so that no two rows have one identity.
        released.append(row)
        after.append(order[-1] + 1 if order else drawn)
    known = before | {id(row): Kept("released", number) for number, row in enumerate(released)}
    kept: list[Kept] = []
    combinations: list[Array] = []
    for row in rows:
        if id(row) not in known:
            known[id(row)] = Kept("combination", len(combinations))
            combinations.append(row)
        kept.append(known[id(row)])
    coefficients = np.array([*released, *combinations], dtype=np.float64)
    return Block(start, stop, tuple(order), tuple(after), coefficients, tuple(kept))


def _count_draws(strategy: Strategy, start: int, stop: int, remembered: int) -> int:
    count = 0

    def draw(index: int) -> Array:
        nonlocal count
        count += 1
        return np.zeros(1)

    memory: tuple[Any, ...] = (np.zeros(1),) * remembered
    for t in range(start, stop):
        _, memory = strategy.step(t, draw, memory)
    return count


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
