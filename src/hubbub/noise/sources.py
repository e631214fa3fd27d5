"""Sources of rows of z, of two kinds:

* ``secure``: AES-256 in counter mode under a secret key, made Gaussian by Box and Muller's formula in float64 with a radius
  of 106 random bits, so that tails are right beyond 11 standard deviations. No rejection: the work does not depend on the
  values.
* ``simulation``: the same under a key that follows from a seed; for experiments, not for release: the seed removes the noise.

A row is made on a processor, in segments of a fixed length, each a function of the key, the row and its own number, so that any
part of a row can be made anywhere.
"""

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from hubbub._util.prf import Uncopied, derive, require_own_process, seed_key, word_stream
from hubbub.errors import NoiseExhaustedError

# Numbers in a segment: few enough for the cache, many enough that calls do not count. Changing it changes rows.
_SEGMENT = 1 << 16
# 64-bit words of two numbers, and of a segment.
_WORDS_PER_PAIR = 3
_WORDS = _SEGMENT // 2 * _WORDS_PER_PAIR

# Writes the next segment of a row to a tensor on a processor, which is shorter at the row's end.
Segments = Callable[[torch.Tensor], None]


class NoiseSource(Protocol):
    """A source of rows of z."""

    @property
    def segment_length(self) -> int:
        """Numbers of a segment."""

    def segments(self, index: int, first: int) -> Segments:
        """The segments of row ``index`` of z from number ``first`` on, the same at each call."""


def _row(source: NoiseSource, index: int, dim: int) -> torch.Tensor:
    """Row ``index`` of z, ``(dim,)`` float64."""
    row = torch.empty(dim, dtype=torch.float64, device="cpu")
    fill, length = source.segments(index, 0), source.segment_length
    for start in range(0, dim, length):
        fill(row[start : start + length])
    return row


class SimulationSource:
    """Noise from a seed, for simulations; not for release.

    Args:
        seed: Whoever knows it can take the noise away again.

    Example:
        >>> bool((SimulationSource(seed=0).row(0, dim=3) == SimulationSource(seed=0).row(0, dim=3)).all())
        True
    """

    def __init__(self, seed: int) -> None:
        self._key = derive(seed_key(seed), "noise")

    segment_length = _SEGMENT
    row = _row

    def segments(self, index: int, first: int) -> Segments:
        """The segments of row ``index`` of z, made in float64 and rounded to the dtype of the tensors that are given."""
        words = word_stream(derive(self._key, index), first * _WORDS)
        return lambda out: _fill(words, out)


class _OfOneStream(Uncopied):
    """Secret rows, which one stream alone may give out."""

    _claimed = False

    def claim(self) -> None:
        """Refuse a second stream, whose rows would be those of the first."""
        if self._claimed:
            raise NoiseExhaustedError(
                f"source: another stream gives out the rows of this {type(self).__name__}, and none meets two sums; make a "
                "source with a key of its own"
            )
        self._claimed = True


class SecureSource(_OfOneStream):
    """AES-256 in counter mode under a secret key of 32 bytes, one derived key for each row.

    Belongs to the process that made it: a fork would draw the same rows for other data.

    Args:
        key: Secret, 32 bytes; of one run and one incarnation.

    Raises:
        NoiseExhaustedError: From :meth:`segments`, in another process.

    Example:
        >>> first, second = (SecureSource(bytes(32)).row(index, dim=4) for index in (0, 1))
        >>> first.dtype, bool((first != second).all())
        (torch.float64, True)
    """

    def __init__(self, key: bytes) -> None:
        self._key = derive(key, "noise")
        self._process = os.getpid()

    segment_length = _SEGMENT
    row = _row

    def segments(self, index: int, first: int) -> Segments:
        """The segments of row ``index`` of z, made in float64 and rounded to the dtype of the tensors that are given."""
        require_own_process(self._process, f"row {index} of z", "whose rows these are")
        words = word_stream(derive(self._key, index), first * _WORDS)
        return lambda out: _fill(words, out)


class IncarnationSource(_OfOneStream):
    """Rows of z from the key of the incarnation in which each was first drawn. An incarnation is one start of a run.

    Every incarnation draws new rows from a key of its own, so that no row meets two sums even after a rollback of the record;
    earlier rows are drawn again, since later noise is correlated with them. ``incarnations``: the first row and key of each.
    """

    def __init__(self, incarnations: Sequence[tuple[int, bytes]]) -> None:
        self._incarnations = [(first_row, SecureSource(key)) for first_row, key in incarnations]

    def start(self, first_row: int, key: bytes) -> None:
        """Draw the rows from ``first_row`` on from a new key."""
        self._incarnations.append((first_row, SecureSource(key)))

    segment_length = _SEGMENT

    def segments(self, index: int, first: int) -> Segments:
        """The segments of row ``index`` of z."""
        return next(source for first_row, source in reversed(self._incarnations) if first_row <= index).segments(index, first)


def _fill(words: Callable[[int], npt.NDArray[np.uint64]], out: torch.Tensor) -> None:
    """Fill ``out`` with numbers that are made in float64."""
    in_place = out.dtype == torch.float64 and len(out) % 2 == 0
    made = out.view(2, -1) if in_place else torch.empty(2, (len(out) + 1) // 2, dtype=torch.float64, device="cpu")
    _box_muller(words, made)
    if not in_place:
        out.copy_(made.view(-1)[: len(out)])


def _box_muller(words: Callable[[int], npt.NDArray[np.uint64]], out: torch.Tensor) -> None:
    """Fill ``out``, ``(2, pairs)``, with pairs of normal numbers; the same work whatever the words are."""
    pairs = out.shape[1]
    # 53 of 64 random bits each, shifted in place; the mask makes them non-negative.
    bits = torch.from_numpy(words(_WORDS_PER_PAIR * pairs).view(np.int64)).bitwise_right_shift_(11).bitwise_and_(2**53 - 1)
    coarse, fine, turn = bits.to(torch.float64).view(3, pairs)
    # A uniform number in (0, 1) of 106 bits: where the first 53 are all 0, the second 53 still differ.
    uniform = fine.add_(0.5).mul_(2.0**-106).add_(coarse.mul_(2.0**-53))
    radius = uniform.log_().mul_(-2).sqrt_()
    angle = turn.mul_(2 * math.pi * 2.0**-53)
    torch.mul(radius, torch.cos(angle), out=out[0])
    torch.mul(radius, torch.sin(angle), out=out[1])


@cache
def sampler() -> str:
    """A fingerprint of the sampler on this machine: it differs if a processor or library computes other last bits."""
    return hashlib.sha256(SecureSource(bytes(32)).row(0, _SEGMENT + 4099).numpy().tobytes()).hexdigest()
