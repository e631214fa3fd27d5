"""A privacy loss on a grid."""

from dataclasses import dataclass

from hubbub._checks import Array

__all__ = ["Loss"]


@dataclass(frozen=True)
class Loss:
    """A discretized privacy loss L = ln P/Q that dominates the true one: its profile δ(ε) is nowhere below.

    Args:
        first: Position of the first mass, in steps of the mesh h.
        mass: ``mass[j]`` is the mass under P at the loss (``first`` + j)·h, ``(points,)``.
        infinite: Mass under P where the loss counts as infinite; it is added to delta.
    """

    first: int
    mass: Array
    infinite: float
