"""Rows of z from the keys of several starts: each row from the key under which it was first drawn."""

from collections.abc import Sequence

import torch

from hubbub.noise.sources import SecureSource, Segments

__all__ = ["EpochSource"]


class EpochSource:
    """Rows of z from the key of the epoch in which each was first drawn.

    Every start of a run draws the rows that nobody has seen from a key of its own, so that no record that was rolled back makes
    a row meet two sums; rows that were drawn before are drawn again, since later noise is correlated with them.

    Args:
        epochs: The first row and the key of each.
    """

    def __init__(self, epochs: Sequence[tuple[int, bytes]]) -> None:
        self._epochs = [(first_row, SecureSource(key)) for first_row, key in epochs]

    def start(self, first_row: int, key: bytes) -> None:
        """Draw the rows from ``first_row`` on from a new key."""
        self._epochs.append((first_row, SecureSource(key)))

    def segment_length(self, device: torch.device) -> int:
        """That of every secure source."""
        return SecureSource.segment_length(device)

    def segments(self, index: int, first: int) -> Segments:
        """The segments of row ``index`` of z."""
        return next(source for first_row, source in reversed(self._epochs) if first_row <= index).segments(index, first)
