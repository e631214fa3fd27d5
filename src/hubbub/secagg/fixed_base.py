"""Powers of one base, by a table: one multiplication for every ``window`` bits of the exponent, and no squaring.

Source: Brickell, Gordon, McCurley and Wilson 1992, "Fast exponentiation with precomputation",
https://doi.org/10.1007/3-540-47555-9_18.
"""

import secrets

import numpy as np
from gmpy2 import mpz

__all__ = ["Table", "best_window"]

WINDOWS = (0, 4, 6, 8, 9, 10)
# What a table may take of memory; numbers beyond it gain less than they cost in cache.
LARGEST_TABLE = 72 * 2**20
# Multiplications that one power by squaring costs, for every bit of the exponent.
_SQUARING = 1.15


def best_window(powers: int, exponent_bits: int, modulus_bits: int) -> int:
    """The window with which so many powers, the table included, take least; 0 where no table pays."""

    def multiplications(window: int) -> float:
        if window == 0:
            return powers * _SQUARING * exponent_bits
        return -(-exponent_bits // window) * (powers + 2.0**window)

    def size(window: int) -> int:
        return -(-exponent_bits // window) * 2**window * modulus_bits // 8 if window else 0

    return min((window for window in WINDOWS if size(window) <= LARGEST_TABLE), key=multiplications)


class Table:
    """The powers base^(d·2^(window·i)) for every digit d.

    Args:
        base: In the range of the modulus.
        modulus: Above 1.
        exponent_bits: Of the largest exponent.
        window: Bits of a digit, from 1 to 16.
    """

    def __init__(self, base: mpz, modulus: mpz, exponent_bits: int, window: int) -> None:
        self.window = window
        self._modulus = modulus
        self._exponent_bits = exponent_bits
        self._rows: list[list[mpz]] = []
        step = base % modulus
        for start in range(0, exponent_bits, window):
            row = [mpz(1), step]
            for _ in range(2, 1 << min(window, exponent_bits - start)):
                row.append(row[-1] * step % modulus)
            self._rows.append(row)
            step = row[-1] * step % modulus

    def power(self, exponent: int) -> mpz:
        """base^exponent for an exponent of at most ``exponent_bits`` bits."""
        if not 0 <= exponent < 1 << self._exponent_bits:
            raise ValueError(f"exponent has {exponent.bit_length()} bits: must be from 0 to 2^{self._exponent_bits} - 1")
        mask = (1 << self.window) - 1
        return self._product([exponent >> (self.window * i) & mask for i in range(len(self._rows))])

    def random_powers(self, count: int) -> list[mpz]:
        """base^a for ``count`` secret exponents, uniform below 2^exponent_bits and independent."""
        sizes = np.array([len(row) - 1 for row in self._rows], dtype=np.uint16)
        # Uniform digits of whole bits are a uniform exponent.
        drawn = np.frombuffer(secrets.token_bytes(2 * count * len(sizes)), dtype=np.uint16).reshape(count, len(sizes))
        return [self._product(digits) for digits in (drawn & sizes).tolist()]

    def _product(self, digits: list[int]) -> mpz:
        modulus = self._modulus
        result = self._rows[0][digits[0]]
        for row, digit in zip(self._rows[1:], digits[1:], strict=True):
            result = result * row[digit] % modulus
        return result
