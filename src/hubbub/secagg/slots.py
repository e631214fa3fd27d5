"""Signed whole numbers in slots of equal width within long integers, by moving bits: many at a time.

Source: two's complement with one bias for all slots, so that a sum of such integers is the integer of the sums.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["bias_of", "joined", "taken_apart"]

_WORD = 64
# Integers at a time: 64 bytes for a number while its bits are moved.
_CHUNK = 512


def bias_of(width: int, count: int) -> int:
    """2^(width−1) in each of ``count`` slots: what makes their numbers non-negative."""
    ones = ((1 << (count * width)) - 1) // ((1 << width) - 1)
    return ones << (width - 1)


def joined(numbers: npt.NDArray[np.int64], width: int, count: int) -> list[int]:
    """Σ numbers[j]·2^(width·j) of ``count`` numbers after another, the last one filled with zeros; negative where the last are.

    Args:
        numbers: ``(size,)``, each from −2^(width−1) to 2^(width−1) − 1.
        width: Of a slot in bits, up to 63.
        count: The slots of one integer.
    """
    bias = bias_of(width, count)
    whole: list[int] = []
    for start in range(0, numbers.size, _CHUNK * count):
        part = numbers[start : start + _CHUNK * count]
        lifted = np.full(-(-part.size // count) * count, 1 << (width - 1), dtype="<u8")
        lifted[: part.size] = part + (1 << (width - 1))
        bits = np.unpackbits(lifted.view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")[:, :width]
        packed = np.packbits(bits.reshape(-1, count * width), axis=1, bitorder="little")
        whole.extend(int.from_bytes(row.tobytes(), "little") - bias for row in packed)
    return whole


def taken_apart(lifted: list[int], width: int, count: int) -> npt.NDArray[np.int64]:
    """``(len(lifted) · count,)``: the numbers in integers to which the bias was added, each below 2^(width·count)."""
    numbers = np.empty(len(lifted) * count, dtype=np.int64)
    length = -(-count * width // 8)
    for start in range(0, len(lifted), _CHUNK):
        part = b"".join(integer.to_bytes(length, "little") for integer in lifted[start : start + _CHUNK])
        bits = np.unpackbits(
            np.frombuffer(part, dtype=np.uint8).reshape(-1, length), axis=1, bitorder="little", count=count * width
        )
        rows = bits.reshape(-1, width)
        wide = np.zeros((rows.shape[0], _WORD), dtype=np.uint8)
        wide[:, :width] = rows
        words = np.packbits(wide, axis=1, bitorder="little").view("<u8").ravel()
        numbers[start * count : start * count + words.size] = words.astype(np.int64) - (1 << (width - 1))
    return numbers
