"""A strategy as plain numbers and arrays, for ledgers and files, and back. Nothing that a record names is imported."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from hubbub._util.checks import Array, one_of
from hubbub.mechanism import strategies
from hubbub.mechanism.strategies import OWN
from hubbub.mechanism.strategies.strategy import Strategy

__all__ = ["from_parts", "strategy_arrays", "strategy_numbers"]


def strategy_arrays(strategy: Strategy) -> dict[str, Array]:
    """The arrays of a strategy: its coefficients or its matrix; for a class of others, the matrix.

    Example:
        >>> from hubbub.mechanism.strategies import BandedToeplitz
        >>> strategy_arrays(BandedToeplitz(4, (1.0, 0.5)))
        {'coefficients': array([1. , 0.5])}
    """
    if type(strategy) not in OWN:
        return {"C": np.ascontiguousarray(strategy.matrix(), dtype=np.float64)}
    return {name: np.asarray(v, dtype=np.float64) for name, v in _values(strategy).items() if isinstance(v, tuple | np.ndarray)}


def strategy_numbers(strategy: Strategy) -> dict[str, Any]:
    """The class name and the plain numbers of a strategy; for a class of others, its name as origin.

    Example:
        >>> from hubbub.mechanism.strategies import BinaryTree
        >>> strategy_numbers(BinaryTree(rounds=8))
        {'name': 'BinaryTree', 'rounds': 8, 'decoder': 'plain', 'rounds_per_tree': None, 'completed': False}
        >>> from_parts(strategy_numbers(BinaryTree(rounds=8))) == BinaryTree(rounds=8)
        True
    """
    kind = type(strategy)
    if kind not in OWN:
        origin = strategy.origin if isinstance(strategy, strategies.Described) else f"{kind.__module__}.{kind.__qualname__}"
        return {"name": "Described", "origin": origin, "rounds": strategy.rounds}
    return {
        "name": kind.__name__,
        **{name: v for name, v in _values(strategy).items() if not isinstance(v, tuple | np.ndarray)},
    }


def from_parts(parts: Mapping[str, Any]) -> Strategy:
    """The strategy of a name and its fields, checked by its constructor.

    Raises:
        ValueError, TypeError: An unknown strategy, or invalid fields.
    """
    kind = getattr(strategies, one_of("strategy.name", parts.get("name"), (*OWN.names, "Described")))
    strategy: Strategy = kind(**{name: value for name, value in parts.items() if name != "name"})
    return strategy


def _values(strategy: Strategy) -> dict[str, Any]:
    return {part.name: getattr(strategy, part.name) for part in fields(strategy)}  # type: ignore[arg-type] # dataclasses
