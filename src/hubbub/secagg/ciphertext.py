"""Encrypted whole numbers that can be added and multiplied by constants, as values with a shape; and how they are made.

Nothing here authenticates: whoever holds a ciphertext can make related ones. Messages are signed or sent over an authenticated
channel, and only sums are decrypted.

Source: Paillier 1999, "Public-key cryptosystems based on composite degree residuosity classes", section 8,
https://doi.org/10.1007/3-540-48910-X_16.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import get_context, parent_process
from typing import TYPE_CHECKING

import gmpy2
from gmpy2 import mpz

from hubbub.secagg.integers import flatten, where

if TYPE_CHECKING:
    from hubbub.secagg.paillier import PublicKey
    from hubbub.secagg.randomizers import Randomizers

__all__ = ["Ciphertext", "checked", "encrypted", "width"]

# Numbers that a process encrypts at a time: for so many an interrupted call waits.
_TASK = 64


@dataclass(frozen=True, repr=False)
class Ciphertext:
    """Ciphertexts of one key, in an array's shape.

    ``+`` and ``-`` take ciphertexts of the same key, or whole numbers in the clear; ``*`` takes whole numbers. Shapes are
    equal, or one is that of a single number. A result beyond n/2 wraps around mod n, and nobody can see it: plan sums that
    cannot get there (:mod:`hubbub.secagg.packing` does).

    A sum or product keeps the randomness of its parts: times 0 it is the bare number 1. Where that could tell something, send
    ``rerandomize()``.

    Args:
        public_key: Under which they were made.
        shape: ``()`` for a single one.
        integers: In C order, from 1 to n² − 1, units. What comes from outside is checked by ``PublicKey.ciphertext``.
    """

    public_key: PublicKey
    shape: tuple[int, ...]
    integers: tuple[mpz, ...]

    # NumPy leaves `array + ciphertext` to us.
    __array_ufunc__ = None

    def __post_init__(self) -> None:
        if math.prod(self.shape) != len(self.integers):
            raise ValueError(f"shape = {self.shape}: does not hold {len(self.integers)} integers")

    def __repr__(self) -> str:
        return f"Ciphertext(shape={self.shape}, key_id={self.public_key.key_id!r})"

    def __add__(self, other: object) -> Ciphertext:
        """The sums, of ciphertexts or with whole numbers in the clear."""
        if isinstance(other, Ciphertext):
            if other.public_key != self.public_key:
                raise ValueError(
                    f"the ciphertexts have the keys {self.public_key.key_id} and {other.public_key.key_id}: only those of one "
                    f"key can be added"
                )
            return self._times(list(other.integers), other.shape)
        constants, shape = self._constants("the constant that is added", other)
        if shape == () and constants == [0]:
            return self
        n = mpz(self.public_key.n)
        return self._times([1 + n * (constant % n) for constant in constants], shape)

    # `sum` begins with 0.
    __radd__ = __add__

    def __neg__(self) -> Ciphertext:
        """The negative numbers."""
        n_square = self.public_key.n_square
        return Ciphertext(self.public_key, self.shape, tuple([gmpy2.invert(c, n_square) for c in self.integers]))

    def __sub__(self, other: object) -> Ciphertext:
        """The differences."""
        if isinstance(other, Ciphertext):
            return self + -other
        constants, shape = self._constants("the constant that is subtracted", other)
        return self._times([1 + mpz(self.public_key.n) * (-constant % self.public_key.n) for constant in constants], shape)

    def __rsub__(self, other: object) -> Ciphertext:
        """Whole numbers in the clear less these."""
        return -self + other

    def __mul__(self, factor: object) -> Ciphertext:
        """The products with whole numbers in the clear; what it takes grows with the bits of the factor."""
        if isinstance(factor, Ciphertext):
            raise TypeError("two ciphertexts were multiplied: Paillier multiplies by whole numbers in the clear")
        constants, shape = self._constants("the factor", factor)
        pairs, shape = self._pairs([mpz(constant) for constant in constants], shape)
        n_square = self.public_key.n_square
        return Ciphertext(self.public_key, shape, tuple([_power(c, k, n_square) for c, k in pairs]))

    __rmul__ = __mul__

    def rerandomize(self) -> Ciphertext:
        """The same numbers under fresh randomness: nobody can tell from which ciphertexts they come."""
        return self._times(self.public_key.randomizers(len(self.integers)), self.shape)

    def _constants(self, name: str, values: object) -> tuple[list[int], tuple[int, ...]]:
        """Whole numbers of at most n/2 in size, and their shape."""
        constants, shape = flatten(name, values)
        self.public_key.require_fit(name, constants, shape)
        return constants, shape

    def _times(self, factors: list[mpz], shape: tuple[int, ...]) -> Ciphertext:
        """Products mod n², which are sums of what is encrypted."""
        n_square = self.public_key.n_square
        pairs, shape = self._pairs(factors, shape)
        return Ciphertext(self.public_key, shape, tuple([a * b % n_square for a, b in pairs]))

    def _pairs(self, others: list[mpz], shape: tuple[int, ...]) -> tuple[list[tuple[mpz, mpz]], tuple[int, ...]]:
        """Each integer with its counterpart, and the shape of the result."""
        if shape == self.shape:
            return list(zip(self.integers, others, strict=True)), shape
        if shape == ():
            return [(c, others[0]) for c in self.integers], self.shape
        if self.shape == ():
            return [(self.integers[0], other) for other in others], shape
        raise ValueError(f"the shapes {self.shape} and {shape} do not fit: must be equal, or one a single number")


def checked(public_key: PublicKey, name: str, values: object) -> Ciphertext:
    """Integers from outside as a ciphertext: each from 1 to n² − 1 and a unit mod n."""
    flat, shape = flatten(name, values)
    integers = [mpz(c) for c in flat]
    n, n_square = mpz(public_key.n), public_key.n_square
    product = mpz(1)
    for i, c in enumerate(integers):
        if not 0 < c < n_square:
            raise ValueError(f"{where(name, i, shape)} {_misplaced(c, n_square)}: must be from 1 to n^2 - 1")
        product = product * (c % n) % n
    # One gcd for all: a product is a unit exactly when each factor is.
    if gmpy2.gcd(product, n) != 1:
        first = next(i for i, c in enumerate(integers) if gmpy2.gcd(c, n) != 1)
        raise ValueError(f"{where(name, first, shape)} has a factor in common with n: it is no ciphertext")
    return Ciphertext(public_key, shape, tuple(integers))


def _misplaced(c: mpz, n_square: mpz) -> str:
    """How an integer is out of range."""
    if c <= 0:
        return "is 0" if c == 0 else "is negative"
    return "is n^2" if c == n_square else "is above n^2"


def _power(c: mpz, k: mpz, n_square: mpz) -> mpz:
    """c^k, for a negative k by inversion: its residue mod n would be as long as n."""
    return gmpy2.powmod(c, k, n_square) if k >= 0 else gmpy2.powmod(gmpy2.invert(c, n_square), -k, n_square)


def width(key_bits: int) -> int:
    """The bytes of one ciphertext under a key of so many bits."""
    return -(-2 * key_bits // 8)


def encrypted(public: PublicKey, source: Randomizers, plain: list[int], workers: int) -> list[mpz]:
    """The ciphertexts of secret numbers that fit: each with a randomiser of its own, from the stock or made afresh.

    Args:
        public: The key.
        source: Its randomisers; what is in stock is used up first.
        plain: From −(n − 1)/2 to (n − 1)/2.
        workers: How many processes make what the stock does not give; with 1 this one does. They get the public key and the
            numbers through pipes, and draw their own randomness.

    Raises:
        RuntimeError: A process ended before its work did.
    """
    stock = source.take(len(plain))
    done, left = _hidden(public, plain[: len(stock)], stock), plain[len(stock) :]
    share = -(-len(left) // workers)
    if len(left) <= share:
        source.prepare(len(left))
        return done + _hidden(public, left, source.make(len(left)))
    size = min(share, _TASK)
    tasks = [left[i : i + size] for i in range(0, len(left), size)]
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_follow_parent)
    try:
        made = b"".join(pool.map(partial(_task, public, share), tasks))
    except BrokenProcessPool:
        raise RuntimeError(
            "a process that encrypted a part of the numbers ended before its work did; do it in one, with workers = 1 "
            "(a script that uses more must start under `if __name__ == '__main__'`)"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
    step = width(public.bits)
    return done + [mpz(int.from_bytes(made[i : i + step], "little")) for i in range(0, len(made), step)]


def _follow_parent() -> None:
    """Leave an interrupt to the process that waits, and end when that is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def end_with_it() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_it, daemon=True).start()


def _task(public: PublicKey, share: int, plain: list[int]) -> bytes:
    """Ciphertexts one after another, in a process that draws its own randomness."""
    key = _prepared(public, share)
    made = _hidden(key, plain, key._source.make(len(plain)))
    return b"".join([int(c).to_bytes(width(key.bits), "little") for c in made])


@lru_cache(maxsize=1)
def _prepared(public: PublicKey, encryptions: int) -> PublicKey:
    """The key with its table of powers, built once in a process."""
    public.prepare(encryptions)
    return public


def _hidden(public: PublicKey, plain: list[int], randomizers: list[mpz]) -> list[mpz]:
    n, n_square = mpz(public.n), public.n_square
    return [(1 + n * (m % n)) * rho % n_square for m, rho in zip(plain, randomizers, strict=True)]
