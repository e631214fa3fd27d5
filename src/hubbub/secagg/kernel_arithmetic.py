"""Powers and products of long numbers by the compiled kernel (ifma.c): its arguments, made from numbers and read back.

Numbers go in and come out as words of 64 bits, the lowest first. What comes out is from 0 to the modulus less 1, so it is what
GMP answers.
"""

import ctypes
from dataclasses import dataclass
from functools import lru_cache

import gmpy2
import numpy as np
import numpy.typing as npt
from gmpy2 import mpz

__all__ = ["LONGEST", "MOST_DIGITS", "MOST_PARTS", "Comb", "powers"]

# Bits of a modulus; longer ones GMP multiplies in fewer steps.
LONGEST = 16_384
# Of a product: parts, and digits of a part.
MOST_PARTS, MOST_DIGITS = 32, 2048
_WORD_BITS, _LIMB_BITS, _ROWS, _LANES, _WINDOW = 64, 52, 4, 8, 5


@dataclass(frozen=True)
class _Ring:
    """An odd modulus m as the kernel takes it.

    Args:
        words: Of a number below m.
        limbs: L, of 52 bits, a multiple of four with R = 2^(52·L) above 4·m.
        modulus: In words.
        square: R² mod m, in words.
        undo: −1/m mod 2^52.
    """

    words: int
    limbs: int
    modulus: bytes
    square: bytes
    undo: int


# Of both primes' squares, n and n² of the keys at work.
@lru_cache(maxsize=16)
def _ring(m: mpz) -> _Ring:
    bits = m.bit_length()
    if m < 3 or m % 2 == 0 or bits > LONGEST:
        raise ValueError(f"modulus has {bits} bits: must be odd, from 3, with at most {LONGEST} bits")
    words, limbs = -(-bits // _WORD_BITS), _limbs(bits + 2)
    square = gmpy2.powmod(2, 2 * _LIMB_BITS * limbs, m)
    undo = int(-gmpy2.invert(m, 2**_LIMB_BITS) % 2**_LIMB_BITS)
    return _Ring(words, limbs, _written([m], words), _written([square], words), undo)


def powers(library: ctypes.CDLL, units: list[mpz], exponent: int, modulus: mpz) -> list[mpz]:
    """Each number to one power mod an odd number. Time and places in memory depend on sizes alone.

    Args:
        library: The kernel.
        units: From 0 to m − 1.
        exponent: From 0.
        modulus: m, from 3, of at most ``LONGEST`` bits.
    """
    ring = _ring(modulus)
    if exponent < 0 or not all(0 <= unit < modulus for unit in units):
        raise ValueError("exponent or a number is out of range: must be from 0, and from 0 to the modulus less 1")
    power, last = int(exponent), int(exponent).bit_length() - 1
    digits = bytes([power >> place & 2**_WINDOW - 1 for place in range(last - last % _WINDOW, -1, -_WINDOW)])
    numbers = _written(units, ring.words)
    made = ctypes.create_string_buffer(len(numbers))
    failed = library.hubbub_powers(
        ring.modulus, ring.square, ring.undo, ring.words, ring.limbs, digits, len(digits), numbers, made, len(units)
    )
    _require_done(failed)
    return _read(made.raw, ring.words)


class Comb:
    """A table of numbers u·(1 + n·t) mod n², of which rows are multiplied: the u by the kernel, the t added.

    Args:
        library: The kernel.
        residues: By block and digit, u from 0 to n − 1. Of digit 0 it is 1.
        slopes: Likewise, t; of digit 0 it is 0.
        root: n, odd, from 3, of at most half of ``LONGEST`` bits.
        parts: How many digits each part of a product has, those of the first blocks: at most ``MOST_PARTS`` parts of at most
            ``MOST_DIGITS`` digits.
    """

    def __init__(
        self, library: ctypes.CDLL, residues: list[list[mpz]], slopes: list[list[mpz]], root: mpz, parts: list[int]
    ) -> None:
        self._library, self._root, self._square = library, root, root * root
        self._ring = _ring(self._square)
        bits = root.bit_length()
        # So many that the product of two residues has room in twice as many.
        self._limbs = _limbs(bits + 1)
        self._sizes = np.array([len(block) for block in residues])
        self._parts = parts
        self._quads = np.array([-(-part // 4) for part in parts], dtype=np.int64)
        power_of_r = gmpy2.powmod(2, _LIMB_BITS * self._ring.limbs * _lost(self._quads.tolist()), self._square)
        self._correction = _written([power_of_r], self._ring.words)
        blocks = zip(residues, slopes, strict=True)
        numbers = [number for block in blocks for row in zip(*block, strict=True) for number in row]
        words = -(-bits // _WORD_BITS)
        self._table = np.empty((len(numbers), self._limbs), dtype=np.uint64)
        library.hubbub_split(_written(numbers, words), words, len(numbers), self._table.ctypes.data, self._limbs)

    def products(self, digits: npt.NDArray[np.uint16]) -> list[mpz]:
        """``(count, digits)`` to as many products of the numbers that digits stand for, squared from part to part."""
        indices = self._indices(digits)
        ring, words = self._ring, -(-_LIMB_BITS * (self._limbs + 1) // _WORD_BITS)
        products = ctypes.create_string_buffer(8 * ring.words * len(indices))
        slopes = ctypes.create_string_buffer(8 * words * len(indices))
        modulus = (ring.modulus, self._correction, ring.undo, ring.words, ring.limbs)
        chosen = (self._table.ctypes.data, self._limbs, indices.ctypes.data, self._quads.ctypes.data, len(self._quads))
        _require_done(self._library.hubbub_combine(*modulus, *chosen, products, slopes, words, len(indices)))
        both = zip(_read(products.raw, ring.words), _read(slopes.raw, words), strict=True)
        return [u * (1 + self._root * (t % self._root)) % self._square for u, t in both][: len(digits)]

    def _indices(self, digits: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint32]:
        """Rows of the table, in quads, for as many products as the kernel makes at a time; row 0 holds 1."""
        starts = np.cumsum(self._sizes) - self._sizes
        columns, first = [], 0
        for part in self._parts:
            taken = digits[:, first : first + part]
            first += part
            if (taken >= self._sizes[:part]).any():
                raise ValueError("a digit has no row in its block of the table")
            columns.append(np.pad(starts[:part] + taken, ((0, -len(digits) % _LANES), (0, -part % 4))))
        return np.ascontiguousarray(np.hstack(columns), dtype=np.uint32)


def _lost(quads: list[int]) -> int:
    """By how many powers of R the result is too small before the last multiplication, which takes one more."""
    lost = 0
    for part, count in enumerate(quads):
        lost = 2 * lost + 1 if part else -1
        lost += 2 * count
    return lost + 1


def _limbs(bits: int) -> int:
    return _ROWS * -(-bits // (_ROWS * _LIMB_BITS))


def _written(numbers: list[mpz], words: int) -> bytes:
    return b"".join([int(number).to_bytes(8 * words, "little") for number in numbers])


def _read(content: bytes, words: int) -> list[mpz]:
    return [mpz(int.from_bytes(content[i : i + 8 * words], "little")) for i in range(0, len(content), 8 * words)]


def _require_done(failed: int) -> None:
    if failed:
        raise MemoryError("the kernel has no memory for this, or its sizes are beyond its bounds")
