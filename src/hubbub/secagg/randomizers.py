"""What hides a Paillier plaintext: random n-th powers mod n², each used once.

*Full*: rⁿ for a uniform unit r, the textbook form, for every key. *Short*: h_s^a with h_s = hⁿ, h = −x² mod n and a uniform a
of half the bits of n, many times faster by a table. It rests on one more assumption (h^a for a short a looks like a random
power of h), and on both primes being 3 mod 4 with gcd(p − 1, q − 1) = 2, which only the owner of the primes knows.

They depend on no plaintext, and can be made ahead of time. Such a stock is in the memory of one process alone: each is taken
out once, nothing writes it to disk, and a forked process starts with none.

x is a hash of n. So nobody chooses h: whoever knows n computes the same base, and no messenger can slip in a base of small
order, under which ciphertexts would hide nothing.

Source: Paillier 1999, https://doi.org/10.1007/3-540-48910-X_16; Damgård, Jurik and Nielsen 2010, section 4.2 (primes.py).
"""

import hashlib
import os
import secrets
import threading
import weakref
from typing import NoReturn

import gmpy2
from gmpy2 import mpz

from hubbub.secagg.fixed_base import Table, best_passes, best_window

__all__ = ["Randomizers", "base_from", "hashed_unit"]


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
    """A source of fresh randomisers for one modulus; its table grows with use. Threads may share it.

    Args:
        n: The modulus.
        short: Whether the short form is used.
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
        """How many were made ahead and not given out yet."""
        return len(self._stock)

    def draw(self, count: int) -> list[mpz]:
        """``count`` randomisers that were never given out, from the stock first."""
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
        """Make ``count`` ahead of their use."""
        self.prepare(count)
        made = self.make(count)
        with self._lock:
            if not self._watched:
                self._empty_when_forked()
            self._stock += made

    def make(self, count: int) -> list[mpz]:
        """``count`` fresh ones, by the table that is there."""
        if count == 0:
            return []
        if not self._short:
            return list(gmpy2.powmod_base_list(self._units(count), self._n, self._n_square))
        # A process that was started anew has prepared nothing.
        base, table = self.prepare(count) if self._base is None else (self._base, self._table)
        if table is not None:
            return table.random_powers(count)
        exponents = [mpz(secrets.randbits(self._bits)) for _ in range(count)]
        return list(gmpy2.powmod_exp_list(base, exponents, self._n_square))

    def prepare(self, count: int) -> tuple[mpz | None, Table | None]:
        """Of the short form the base, and the table that pays for ``count`` more randomisers beside those already drawn."""
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
        """A child throws the copied stock away, and a lock that a thread of the parent may have held."""
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
