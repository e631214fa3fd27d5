"""Randomizers of Paillier ciphertexts: random n-th powers mod n², each used once, and the table that computes them.

*Full*: rⁿ for a uniform unit r, the textbook form, for every key. *Short*: h_s^a with h_s = hⁿ, h = −x² mod n and a uniform a
of half the bits of n, about sixteen times faster by a table. It rests on one more assumption (h^a for a short a looks like a
random power of h), and on both primes being 3 mod 4 with gcd(p − 1, q − 1) = 2, which only the owner of the primes knows.

x is a hash of n. So everybody computes the same base h_s, and no attacker can substitute a base of small order, under which
ciphertexts would hide nothing.

The table: the bits of an exponent are written into 8 rows of equal length, one below the other, and read column by column: a
column is a digit of 8 bits. Eight neighbouring columns form a block, which has a table: for every digit, the power that it
stands for in the block's first column. Squaring moves all blocks on by one column: 7 squarings reach all columns. A unit mod n²
is u·(1 + n·t), with u its residue mod n: in a product the second factors only add their t, and what is multiplied is half as
long as the modulus.

Source: Paillier 1999, https://doi.org/10.1007/3-540-48910-X_16; Damgård, Jurik and Nielsen 2010, section 4.2 (primes.py). The
table: Lim & Lee 1994, "More flexible exponentiation with precomputation", https://doi.org/10.1007/3-540-48658-5_11.
"""

import hashlib
import secrets
from functools import lru_cache
from itertools import zip_longest

import gmpy2
import numpy as np
from gmpy2 import mpz

# Rows of an exponent, and columns of a block; 8 rows make digits of one byte.
_ROWS, _COLUMNS = 8, 8


def full_randomizers(n: int, count: int) -> list[mpz]:
    """``count`` fresh n-th powers of uniform units mod n²."""
    units: list[mpz] = []
    while len(units) < count:
        r = mpz(secrets.randbelow(n))
        if gmpy2.gcd(r, n) == 1:
            units.append(r)
    return list(gmpy2.powmod_base_list(units, n, mpz(n) ** 2))


def short_randomizers(n: int, count: int) -> list[mpz]:
    """``count`` fresh powers of the base of n, by a table that is kept for the next call."""
    table, bits = _table(n), -(-n.bit_length() // 2)
    return [table.power(secrets.randbits(bits)) for _ in range(count)]


@lru_cache(maxsize=4)
def _table(n: int) -> "Table":
    """The table of the base of n; 5 MB and a twentieth of a second for 3072 bits."""
    return Table(base_from(n, hashed_unit(n)), n, -(-n.bit_length() // 2))


class Table:
    """A table of powers of a base mod n²."""

    def __init__(self, base: mpz, n: int, exponent_bits: int) -> None:
        self._n, self._n_square = mpz(n), mpz(n) ** 2
        blocks = -(-exponent_bits // (_ROWS * _COLUMNS))
        self._columns = blocks * _COLUMNS
        squares = [base % self._n_square]
        while len(squares) < _ROWS * self._columns:
            squares.append(squares[-1] * squares[-1] % self._n_square)
        # By block, the residues mod n and the t of each digit.
        self._blocks = [_products(squares[first :: self._columns], self._n) for first in range(0, self._columns, _COLUMNS)]

    def power(self, exponent: int) -> mpz:
        """base^exponent mod n²."""
        n, n_square = self._n, self._n_square
        written = np.frombuffer(exponent.to_bytes(_ROWS * self._columns // 8, "little"), dtype=np.uint8)
        rows = np.unpackbits(written, bitorder="little").reshape(_ROWS, self._columns)
        digits = np.packbits(rows, axis=0, bitorder="little")[0].reshape(-1, _COLUMNS)
        result, slope = mpz(1), mpz(0)
        for column in reversed(digits.T.tolist()):
            result, slope = result * result % n_square, 2 * slope
            slope += sum([slopes[digit] for (_, slopes), digit in zip(self._blocks, column, strict=True)])
            chosen = [residues[digit] for (residues, _), digit in zip(self._blocks, column, strict=True)]
            # Two residues mod n have a product below n²: what is to be reduced is the product of four.
            for a, b, c, d in zip_longest(chosen[::4], chosen[1::4], chosen[2::4], chosen[3::4], fillvalue=1):
                result = result * (a * b * (c * d) % n_square) % n_square
        return result * (1 + n * (slope % n)) % n_square


def _products(factors: list[mpz], n: mpz) -> tuple[list[mpz], list[mpz]]:
    """The products of all subsets, each as u and t of u·(1 + n·t); bit j of an index says whether factor j is included."""
    residues, inverses, slopes = [mpz(1)], [mpz(1)], [mpz(0)]
    for factor in factors:
        excess, u = gmpy2.f_divmod(factor, n)
        inverse = gmpy2.invert(u, n)
        slope = excess * inverse % n
        for j in range(len(residues)):
            # u·u' = r + n·e, which is r·(1 + n·e/r).
            excess, residue = gmpy2.f_divmod(residues[j] * u, n)
            undo = inverses[j] * inverse % n
            residues.append(residue)
            inverses.append(undo)
            slopes.append((slopes[j] + slope + excess * undo) % n)
    return residues, slopes


def hashed_unit(n: int) -> int:
    """x in Z_n*, from n alone: SHAKE-256 with 128 bits to spare."""
    size = (n.bit_length() + 7) // 8
    for counter in range(256):
        message = b"hubbub paillier base " + bytes([counter]) + n.to_bytes(size, "big")
        x = int.from_bytes(hashlib.shake_256(message).digest(size + 16), "big") % n
        if gmpy2.gcd(x, n) == 1:
            return x
    raise ValueError(f"n has {n.bit_length()} bits: no unit was found, so n is no Paillier modulus")


def base_from(n: int, x: int) -> mpz:
    """h_s = (−x²)ⁿ mod n²."""
    return gmpy2.powmod(-mpz(x) * x % n, n, mpz(n) ** 2)
