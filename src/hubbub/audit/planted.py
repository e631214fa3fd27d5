"""Canaries among the clients of a run: who they are, in which direction each contributes, and whether it is there.

Each canary has some coordinates of the model for itself and contributes ± the same amount in each: so directions are orthogonal
to the last bit, reach over all layers, and take no more memory than one row, however many canaries there are.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hubbub._checks import Array, integer

__all__ = ["INSIDE", "OUTSIDE", "Canaries", "plant"]

# Clip norms that a canary sends: far more than one, so that the clip has work to do; or just within, which it must leave alone.
OUTSIDE, INSIDE = 64.0, 1 - 2.0**-10


@dataclass(frozen=True, eq=False)
class Canaries:
    """The canaries of one run.

    Args:
        clients: The ids that they have in the run.
        present: Which of them contribute, ``(canaries,)``.
        owner: The number of the canary to which a coordinate belongs, ``(dim,)``.
        vector: Entry i is that of its owner's direction, a vector of norm 1, ``(dim,)``.
        sent: How many clip norms each sends in each round before the clip, ``(canaries, rounds)``.
    """

    clients: tuple[Hashable, ...]
    present: npt.NDArray[np.bool_]
    owner: npt.NDArray[np.int64]
    vector: Array
    sent: Array

    def direction(self, canary: int) -> Array:
        """A canary's direction, ``(dim,)``."""
        own: Array = np.where(self.owner == canary, self.vector, 0.0)
        return own

    def along(self, row: Array) -> Array:
        """How far a row goes along each direction, ``(canaries,)``."""
        found: Array = np.bincount(self.owner, weights=row * self.vector, minlength=len(self.clients)).astype(np.float64)
        return found

    def combined(self, amounts: Array, where: slice) -> Array:
        """The sum of all directions, each so many times, ``(canaries,)``, at some coordinates."""
        found: Array = amounts[self.owner[where]] * self.vector[where]
        return found


def plant(
    clients: Sequence[Hashable], dim: int, rounds: int, *, canaries: int, unclipped: float, rng: np.random.Generator
) -> Canaries:
    """Choose which clients are canaries, toss a fair coin for each, and deal the coordinates out.

    Args:
        clients: All ids.
        dim: Numbers in an update.
        rounds: Of the run.
        canaries: How many; at most as many as there are clients and coordinates.
        unclipped: How often a canary sends what the clip leaves as it is; else it sends far more than the clip norm.
        rng: Unknown to whoever runs the rounds.

    Raises:
        ValueError: More canaries than clients, or than coordinates.
    """
    count = integer("canaries", canaries, at_least=1, at_most=min(len(clients), dim))
    chosen = rng.choice(len(clients), size=count, replace=False)
    owner = rng.permutation(np.arange(dim) % count)
    vector = rng.choice([-1.0, 1.0], size=dim) / np.sqrt(np.bincount(owner, minlength=count))[owner]
    inside = rng.random((count, rounds)) < unclipped
    return Canaries(
        clients=tuple(clients[int(i)] for i in chosen),
        present=rng.random(count) < 0.5,
        owner=owner.astype(np.int64),
        vector=vector,
        sent=np.where(inside, INSIDE, OUTSIDE),
    )
