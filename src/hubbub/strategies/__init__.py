"""How noise is correlated over rounds: one family of C a file, siblings independent of one another."""

from hubbub.strategies.columns import Columns
from hubbub.strategies.dense import Dense
from hubbub.strategies.described import Described
from hubbub.strategies.identity import Identity
from hubbub.strategies.strategy import Strategy
from hubbub.strategies.toeplitz import BandedToeplitz
from hubbub.strategies.tree import BinaryTree

__all__ = ["OWN", "BandedToeplitz", "BinaryTree", "Columns", "Dense", "Described", "Identity", "Strategy"]

# Strategies whose stated sensitivity is computed by us from plain numbers and arrays, which describe them completely. Of all
# others the sensitivity is computed again from the matrix.
OWN: tuple[type, ...] = (BandedToeplitz, BinaryTree, Columns, Dense, Identity)
