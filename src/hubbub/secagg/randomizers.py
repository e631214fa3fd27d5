"""Randomizers of Paillier ciphertexts: random n-th powers mod n², each used once, and the table that computes them.

*Full*: rⁿ for a uniform unit r, the textbook form, for every key. *Short*: h_s^a with h_s = hⁿ, h = −x² mod n and a uniform a
of half the bits of n, many times faster by a table. It rests on one more assumption (h^a for a short a looks like a random
power of h), and on both primes being 3 mod 4 with gcd(p − 1, q − 1) = 2, which only the owner of the primes knows.

They do not depend on the plaintext and can be computed ahead. The stock is in the memory of one process: each is used once,
none is written to disk, and a forked process starts with none.

x is a hash of n. So everybody computes the same base h, and no attacker can substitute a base of small order, under which
ciphertexts would hide nothing.

The table takes one multiplication for every ``window`` bits of the exponent, and a few squarings. The bits of the exponent are
written into ``window`` rows of equal length, one below the other, and read column by column: a column is a digit. Neighbouring
columns form a block, ``passes`` wide, which has a table: for every digit, the power that it stands for in the block's first
column. Squaring once moves all blocks on by one column. A unit mod n² is u·(1 + n·t), with u its residue mod n: in a product
the second factors only add their t, and what is multiplied is half as long as the modulus.

Source: Paillier 1999, https://doi.org/10.1007/3-540-48910-X_16; Damgård, Jurik and Nielsen 2010, section 4.2 (primes.py). The
table: Lim & Lee 1994, "More flexible exponentiation with precomputation", https://doi.org/10.1007/3-540-48658-5_11; with one
pass, Brickell, Gordon, McCurley & Wilson 1992, https://doi.org/10.1007/3-540-47555-9_18.
"""

import hashlib
import os
import secrets
import threading
import weakref
from itertools import zip_longest
from typing import NoReturn

import gmpy2
import numpy as np
from gmpy2 import mpz

__all__ = ["LARGEST_TABLE", "Randomizers", "Table", "base_from", "best_passes", "best_window", "hashed_unit"]

WINDOWS = (0, 4, 5, 6, 7, 8, 9, 10)
PASSES = (2, 4, 8, 16, 32)
# Bytes of all powers of a window. A table has two passes or more, and so at most half of them: a larger one costs more in cache
# than it gains.
LARGEST_TABLE = 128 * 2**20
# In multiplications by a number of a table, as measured for moduli of 4,096 and 6,144 bits: a squaring, a number of the table
# when it is built, and a bit of the exponent where there is no table.
_SQUARING, _BUILDING, _BARE = 1.4, 2.2, 1.6


def best_window(powers: int, exponent_bits: int, modulus_bits: int) -> int:
    """The fastest window for that many powers, including the table; 0 if no table pays."""
    fitting = [w for w in WINDOWS if w == 0 or -(-exponent_bits // w) * 2**w * modulus_bits // 8 <= LARGEST_TABLE]
    return min(fitting, key=lambda w: _cost(powers, exponent_bits, w, best_passes(powers, exponent_bits, w)))


def best_passes(powers: int, exponent_bits: int, window: int) -> int:
    """The fastest number of passes for that many powers with this window."""
    return min(PASSES, key=lambda passes: _cost(powers, exponent_bits, window, passes))


def _cost(powers: int, exponent_bits: int, window: int, passes: int) -> float:
    """The time of that many powers, including the table, in multiplications."""
    if window == 0:
        return powers * _BARE * exponent_bits
    columns = -(-exponent_bits // window)
    building = _SQUARING * exponent_bits + _BUILDING * -(-columns // passes) * 2.0**window
    return building + powers * (columns + _SQUARING * (passes - 1))


class Table:
    """A table of powers of a base, for fast exponentiation.

    Args:
        base: A unit.
        modulus: Above 1; a square makes the table fast.
        exponent_bits: Of the largest exponent.
        window: Bits of a digit, from 1 to 16.
        passes: The columns of a block.
    """

    def __init__(self, base: mpz, modulus: mpz, exponent_bits: int, window: int, passes: int = 1) -> None:
        self.window = window
        self.passes = passes
        self._modulus = modulus
        self._root = gmpy2.isqrt(modulus) if gmpy2.is_square(modulus) else modulus
        self._exponent_bits = exponent_bits
        columns = -(-exponent_bits // window)
        squares = [base % modulus]
        while len(squares) < exponent_bits:
            squares.append(squares[-1] * squares[-1] % modulus)
        # By block, the residues mod the root and the t of each digit.
        self._residues: list[list[mpz]] = []
        self._slopes: list[list[mpz]] = []
        for start in range(0, columns, passes):
            residues, slopes = _products(squares[start::columns], self._root)
            self._residues.append(residues)
            self._slopes.append(slopes)
        # The bit positions of each digit, pass by pass from the last columns of the blocks to the first.
        self._digits = [
            [range(column, exponent_bits, columns) for column in range(first, columns, passes)]
            for first in reversed(range(min(passes, columns)))
        ]

    def __len__(self) -> int:
        """The number of stored powers."""
        return sum(map(len, self._residues))

    def power(self, exponent: int) -> mpz:
        """base^exponent for an exponent of at most ``exponent_bits`` bits."""
        if not 0 <= exponent < 1 << self._exponent_bits:
            raise ValueError(f"exponent has {exponent.bit_length()} bits: must be from 0 to 2^{self._exponent_bits} - 1")
        digits = (sum((exponent >> place & 1) << row for row, place in enumerate(d)) for part in self._digits for d in part)
        return self._product(list(digits))

    def random_powers(self, count: int) -> list[mpz]:
        """base^a for ``count`` secret exponents, uniform below 2^exponent_bits and independent."""
        largest = np.array([(1 << len(digit)) - 1 for part in self._digits for digit in part], dtype=np.uint16)
        # Uniform digits of whole bits are a uniform exponent.
        drawn = np.frombuffer(secrets.token_bytes(2 * count * len(largest)), dtype=np.uint16).reshape(count, len(largest))
        return [self._product(row) for row in (drawn & largest).tolist()]

    def _product(self, digits: list[int]) -> mpz:
        modulus = self._modulus
        result, slope, start = mpz(1), mpz(0), 0
        for part in self._digits:
            taken = digits[start : start + len(part)]
            start += len(part)
            result, slope = result * result % modulus, 2 * slope
            slope += sum([row[digit] for row, digit in zip(self._slopes, taken, strict=False)])
            chosen = [row[digit] for row, digit in zip(self._residues, taken, strict=False)]
            # Two residues mod n have a product below n²: what is to be reduced is the product of four.
            for a, b, c, d in zip_longest(chosen[::4], chosen[1::4], chosen[2::4], chosen[3::4], fillvalue=1):
                result = result * (a * b * (c * d) % modulus) % modulus
        return result * (1 + self._root * (slope % self._root)) % modulus


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


class Randomizers:
    """Fresh randomizers for one modulus; the table grows with use. Thread-safe.

    Args:
        n: The modulus.
        short: Whether to use the short form.
    """

    def __init__(self, n: int, short: bool) -> None:
        self._n = mpz(n)
        self._n_square = self._n**2
        self._short = short
        self._bits = -(-n.bit_length() // 2)
        self._drawn = 0
        self._base: mpz | None = None
        self._table: Table | None = None
        self._stock: list[mpz] = []
        self._lock = threading.Lock()
        self._watched = False

    def __reduce__(self) -> NoReturn:
        raise TypeError("Randomizers are not pickled or copied: a copy would give out the same ones")

    @property
    def stock(self) -> int:
        """The number of precomputed randomizers."""
        return len(self._stock)

    def draw(self, count: int) -> list[mpz]:
        """``count`` unused randomizers, from the stock first."""
        taken = self.take(count)
        missing = count - len(taken)
        self.prepare(missing)
        return taken + self.make(missing)

    def take(self, count: int) -> list[mpz]:
        """At most ``count`` from the stock."""
        with self._lock:
            rest = max(len(self._stock) - count, 0)
            taken = self._stock[rest:]
            del self._stock[rest:]
        return taken

    def store(self, count: int) -> None:
        """Precompute ``count`` randomizers."""
        self.prepare(count)
        made = self.make(count)
        with self._lock:
            if not self._watched:
                self._empty_when_forked()
            self._stock += made

    def make(self, count: int) -> list[mpz]:
        """``count`` fresh randomizers, by the present table."""
        if count == 0:
            return []
        if not self._short:
            return list(gmpy2.powmod_base_list(self._units(count), self._n, self._n_square))
        # A new process has no base yet.
        base, table = self.prepare(count) if self._base is None else (self._base, self._table)
        if table is not None:
            return table.random_powers(count)
        exponents = [mpz(secrets.randbits(self._bits)) for _ in range(count)]
        return list(gmpy2.powmod_exp_list(base, exponents, self._n_square))

    def prepare(self, count: int) -> tuple[mpz | None, Table | None]:
        """The base of the short form, and the table for ``count`` more randomizers than were drawn so far."""
        with self._lock:
            if count == 0 or not self._short:
                return self._base, self._table
            if self._base is None:
                self._base = base_from(int(self._n), hashed_unit(int(self._n)))
            self._drawn += count
            window = best_window(self._drawn, self._bits, self._n_square.bit_length())
            passes = best_passes(self._drawn, self._bits, window)
            if window > 0 and (self._table is None or (window, passes) != (self._table.window, self._table.passes)):
                self._table = Table(self._base, self._n_square, self._bits, window, passes)
            return self._base, self._table

    def _empty_when_forked(self) -> None:
        """Drop the copied stock in a forked child, and the lock, which a thread of the parent may have held."""
        this = weakref.ref(self)

        def begin_anew() -> None:
            source = this()
            if source is not None:
                source._stock, source._lock = [], threading.Lock()

        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=begin_anew)
        self._watched = True

    def _units(self, count: int) -> list[mpz]:
        """Uniform units mod n."""
        units: list[mpz] = []
        while len(units) < count:
            r = mpz(secrets.randbelow(int(self._n)))
            if gmpy2.gcd(r, self._n) == 1:
                units.append(r)
        return units
