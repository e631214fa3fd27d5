"""Forward substitution, one round at a time: how any lower-triangular C is streamed."""

import numpy as np

from hubbub._checks import Array
from hubbub.strategies.strategy import Memory, Row

__all__ = ["bands_of", "substituted"]


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
