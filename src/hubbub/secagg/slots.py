"""Signed whole numbers in slots of equal width within long integers, by moving bits: many at a time.

Source: two's complement with one bias for all slots, so that a sum of such integers is the integer of the sums.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["bias_of", "joined", "taken_apart"]

_WORD = 64
# Integers at a time, so that their numbers stay in the processor's cache.
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
    bias, half = bias_of(width, count), 1 << (width - 1)
    whole: list[int] = []
    for start in range(0, numbers.size, _CHUNK * count):
        part = numbers[start : start + _CHUNK * count]
        lifted = np.full(-(-part.size // count) * count, half, dtype=np.uint64)
        lifted[: part.size] = part + half
        rows = np.ascontiguousarray(lifted.reshape(-1, count).T)
        words = np.zeros((_words(width, count), rows.shape[1]), dtype="<u8")
        for slot, row in enumerate(rows):
            word, shift = divmod(slot * width, _WORD)
            words[word] |= row << np.uint64(shift)
            if shift + width > _WORD:
                words[word + 1] |= row >> np.uint64(_WORD - shift)
        whole.extend(int.from_bytes(integer.tobytes(), "little") - bias for integer in words.T)
    return whole


def taken_apart(lifted: list[int], width: int, count: int) -> npt.NDArray[np.int64]:
    """``(len(lifted) · count,)``: the numbers in integers to which the bias was added, each below 2^(width·count)."""
    numbers = np.empty((len(lifted), count), dtype=np.int64)
    length = _words(width, count)
    mask = np.uint64((1 << width) - 1)
    for start in range(0, len(lifted), _CHUNK):
        part = b"".join(integer.to_bytes(length * _WORD // 8, "little") for integer in lifted[start : start + _CHUNK])
        words = np.ascontiguousarray(np.frombuffer(part, dtype="<u8").reshape(-1, length).T)
        for slot in range(count):
            word, shift = divmod(slot * width, _WORD)
            row = words[word] >> np.uint64(shift)
            if shift + width > _WORD:
                row |= words[word + 1] << np.uint64(_WORD - shift)
            numbers[start : start + _CHUNK, slot] = row & mask
    numbers -= 1 << (width - 1)
    return numbers.ravel()


def _words(width: int, count: int) -> int:
    """The words that hold all slots of an integer."""
    return -(-width * count // _WORD)
