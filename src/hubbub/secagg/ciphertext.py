"""Public keys, and arrays of encrypted whole numbers that can be added and multiplied by constants.

Ciphertexts are not authenticated: anybody can make related ones. Sign messages or send them over an authenticated channel, and
decrypt sums only.

Source: Paillier 1999, "Public-key cryptosystems based on composite degree residuosity classes", section 8,
https://doi.org/10.1007/3-540-48910-X_16.
"""

from __future__ import annotations

import hashlib
import math
import os
import signal
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, ClassVar, Self

import gmpy2
from gmpy2 import mpz

from hubbub._util.checks import boolean, integer, shown
from hubbub._util.processes import end_with
from hubbub.secagg.integers import MOST_WORKERS, flatten, where, whole
from hubbub.secagg.primes import ROUNDS
from hubbub.secagg.randomizers import full_randomizers, short_randomizers

SMALLEST_BITS, LARGEST_BITS = 2048, 16_384
# An n from outside has no prime factor below it.
_SMALL_FACTORS = 2**16


@dataclass(frozen=True, repr=False)
class PublicKey:
    """A public key, n. Two public keys of the same n are equal.

    The constructor takes any size, for test vectors; use :meth:`received` for keys from outside.

    Args:
        n: An odd product of two primes.
        short_exponents: Whether both primes are 3 mod 4 with gcd(p − 1, q − 1) = 2, by their owner's word. Then encryption is
            about sixteen times faster; otherwise it takes the textbook form.
    """

    n: int
    short_exponents: bool = field(default=False, compare=False)
    n_square: mpz = field(init=False, compare=False)
    key_id: str = field(init=False, compare=False)

    # As of a threshold key: one owner opens what there is.
    holders: ClassVar[int] = 1
    threshold: ClassVar[int] = 1
    min_contributions: ClassVar[int] = 1

    def __post_init__(self) -> None:
        n = whole("n", self.n)
        if n < 15 or n % 2 == 0 or gmpy2.is_power(mpz(n)) or gmpy2.is_prime(mpz(n), ROUNDS):
            raise ValueError(f"n = {shown(n)}: must be the product of two different odd primes")
        boolean("short_exponents", self.short_exponents)
        message = b"hubbub paillier key " + n.to_bytes((n.bit_length() + 7) // 8, "big")
        object.__setattr__(self, "n", n)
        object.__setattr__(self, "n_square", mpz(n) ** 2)
        object.__setattr__(self, "key_id", hashlib.sha256(message).hexdigest()[:32])

    @classmethod
    def received(cls, n: int, short_exponents: bool = False) -> Self:
        """A public key from outside; compare its ``key_id`` with the one that its owner gives you.

        Raises:
            ValueError: n has fewer than 2048 bits, has a small factor, or cannot be a product of two different primes.
        """
        bits = whole("n", n).bit_length()
        if not SMALLEST_BITS <= bits <= LARGEST_BITS:
            raise ValueError(f"n has {bits} bits: a public key has from {SMALLEST_BITS} to {LARGEST_BITS}")
        key = cls(n, short_exponents)
        factor = int(gmpy2.gcd(key.n, gmpy2.primorial(_SMALL_FACTORS)))
        if factor != 1:
            raise ValueError(f"n has the factor {factor}: the product of two large primes has no small one")
        return key

    def __repr__(self) -> str:
        return f"PublicKey(bits={self.bits}, key_id={self.key_id!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.n, self.short_exponents)

    @property
    def bits(self) -> int:
        """The length of n in bits."""
        return self.n.bit_length()

    @property
    def public_key(self) -> PublicKey:
        """The key itself."""
        return self

    def encrypt(self, values: object, *, workers: int = 1) -> Ciphertext:
        """Whole numbers under fresh randomness, one ciphertext each.

        Args:
            values: A whole number, or nested lists or a NumPy array of them, each from −(n − 1)/2 to (n − 1)/2.
            workers: The number of processes.

        Raises:
            TypeError: A value is no whole number.
            ValueError: A value does not fit; messages do not show values.
            RuntimeError: A worker process ended early.

        Example:
            >>> from hubbub.secagg.paillier import PrivateKey
            >>> private = PrivateKey.from_primes(2**61 - 1, 2**60 + 33)  # far too small, for tests
            >>> private.decrypt(private.public_key.encrypt([1, -2]) * 3 + 4)
            [7, -2]
        """
        plain, shape = flatten("values", values)
        self.require_fit("values", plain, shape)
        workers = integer("workers", workers, at_least=1, at_most=MOST_WORKERS)
        share = -(-len(plain) // workers)
        if len(plain) <= share:
            return Ciphertext(self, shape, tuple(_hidden(self, plain)))
        # They get the public key and the numbers through pipes, and draw their own randomness.
        context, started = get_context("spawn"), list[tuple[SpawnProcess, Connection]]()
        try:
            for _ in range(0, len(plain), share):
                ours, theirs = context.Pipe()
                process = context.Process(target=_encrypt_share, args=(theirs,), daemon=True)
                process.start()
                theirs.close()
                started.append((process, ours))
            for i, (_, pipe) in enumerate(started):
                pipe.send((os.getpid(), self, plain[i * share : (i + 1) * share]))
            return Ciphertext(self, shape, tuple(c for _, pipe in started for c in pipe.recv()))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise RuntimeError(
                "a process that encrypted a part of the numbers ended before its work did; do it in one, with workers = 1 "
                "(a script that uses more must start under `if __name__ == '__main__'`)"
            ) from None
        finally:
            for process, pipe in started:
                process.kill()
                process.join()
                pipe.close()

    def ciphertext(self, integers: object, *, key_id: str | None = None, name: str = "integers") -> Ciphertext:
        """Ciphertexts from outside, checked to be units in range.

        Args:
            integers: One, or nested lists or an object array of them.
            key_id: Of the key that the sender names, if any; must be this key's.
            name: Of the integers in error messages, such as "client 'c7'".

        Raises:
            TypeError: An entry is no whole number.
            ValueError: Another key, or an entry that is no ciphertext of this key.
        """
        if key_id is not None and key_id != self.key_id:
            raise ValueError(f"{name}: encrypted under the key {shown(key_id)}, not under {self.key_id!r}")
        if isinstance(integers, Ciphertext):
            flat, shape = list[int](self.require_own(name, integers).integers), integers.shape
        else:
            flat, shape = flatten(name, integers)
        integers = [mpz(c) for c in flat]
        n, n_square = mpz(self.n), self.n_square
        product = mpz(1)
        for i, c in enumerate(integers):
            if not 0 < c < n_square:
                how = ("0" if c == 0 else "negative") if c <= 0 else ("n^2" if c == n_square else "above n^2")
                raise ValueError(f"{where(name, i, shape)} is {how}: must be from 1 to n^2 - 1")
            product = product * (c % n) % n
        # One gcd for all: a product is a unit exactly when each factor is.
        if gmpy2.gcd(product, n) != 1:
            first = next(i for i, c in enumerate(integers) if gmpy2.gcd(c, n) != 1)
            raise ValueError(f"{where(name, first, shape)} has a factor in common with n: it is no ciphertext")
        return Ciphertext(self, shape, tuple(integers))

    def require_own(self, name: str, sums: object) -> Ciphertext:
        """The argument, if it is a ciphertext of this key.

        Raises:
            TypeError, ValueError: It is not.
        """
        if not isinstance(sums, Ciphertext):
            raise TypeError(f"{name} is a {type(sums).__name__}: must be a Ciphertext; PublicKey.ciphertext checks integers")
        if sums.public_key != self:
            raise ValueError(f"{name}: encrypted under the key {sums.public_key.key_id!r}, not under {self.key_id!r}")
        return sums

    def require_fit(self, name: str, values: list[int], shape: tuple[int, ...]) -> None:
        """Refuse numbers beyond n/2; the message has their place and length, not their value."""
        most = self.n // 2
        for i, value in enumerate(values):
            if not -most <= value <= most:
                raise ValueError(
                    f"{where(name, i, shape)} has {value.bit_length()} bits and does not fit: a key of {self.bits} bits takes "
                    f"whole numbers from -(n - 1)/2 to (n - 1)/2"
                )

    def randomizers(self, count: int) -> list[mpz]:
        """Fresh encryptions of zero as integers, each to be used once and secret until then."""
        return short_randomizers(self.n, count) if self.short_exponents else full_randomizers(self.n, count)


@dataclass(frozen=True, repr=False)
class Ciphertext:
    """An array of ciphertexts of one key.

    ``+`` and ``-`` take ciphertexts of the same key or plain whole numbers; ``*`` takes plain whole numbers. Shapes are equal,
    or one is that of a single number. A result beyond n/2 wraps around mod n unnoticed: plan sums that stay below
    (:mod:`hubbub.secagg.packing` does).

    A sum or product keeps the randomness of its parts: a product with 0 is the integer 1. If that could reveal something, send
    ``rerandomize()``.

    Args:
        public_key: Of the encryption.
        shape: ``()`` for a single number.
        integers: In C order, units from 1 to n² − 1. Use ``PublicKey.ciphertext`` for integers from outside.

    Example:
        >>> from hubbub.secagg import paillier
        >>> private = paillier.generate(2048)
        >>> sums = private.public_key.encrypt([1, -2]) + private.public_key.encrypt([3, 4]) * 10 - 1
        >>> sums.shape, private.decrypt(sums)
        ((2,), [30, 37])
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
        """The sums, with ciphertexts or plain whole numbers."""
        if isinstance(other, Ciphertext):
            added = self.public_key.require_own("the ciphertext that is added", other)
            return self._times(list(added.integers), added.shape)
        return self._plus("the constant that is added", other, 1)

    # `sum` begins with 0.
    __radd__ = __add__

    def __neg__(self) -> Ciphertext:
        """The negative numbers."""
        n_square = self.public_key.n_square
        return Ciphertext(self.public_key, self.shape, tuple([gmpy2.invert(c, n_square) for c in self.integers]))

    def __sub__(self, other: object) -> Ciphertext:
        """The differences."""
        return self + -other if isinstance(other, Ciphertext) else self._plus("the constant that is subtracted", other, -1)

    def __rsub__(self, other: object) -> Ciphertext:
        """Plain whole numbers minus these."""
        return -self + other

    def __mul__(self, factor: object) -> Ciphertext:
        """The products with plain whole numbers; the time grows with the bits of the factor."""
        if isinstance(factor, Ciphertext):
            raise TypeError("two ciphertexts were multiplied: Paillier multiplies by whole numbers in the clear")
        constants, shape = self._constants("the factor", factor)
        pairs, shape = self._pairs([mpz(constant) for constant in constants], shape)
        n_square = self.public_key.n_square
        # A negative power by inversion: its residue mod n would be as long as n.
        return Ciphertext(self.public_key, shape, tuple([gmpy2.powmod(c, k, n_square) for c, k in pairs]))

    __rmul__ = __mul__

    def rerandomize(self) -> Ciphertext:
        """The same numbers under fresh randomness, unlinkable to these ciphertexts."""
        return self._times(self.public_key.randomizers(len(self.integers)), self.shape)

    def _constants(self, name: str, values: object) -> tuple[list[int], tuple[int, ...]]:
        """Whole numbers of at most n/2 in size, and their shape."""
        constants, shape = flatten(name, values)
        self.public_key.require_fit(name, constants, shape)
        return constants, shape

    def _plus(self, name: str, values: object, sign: int) -> Ciphertext:
        constants, shape = self._constants(name, values)
        n = mpz(self.public_key.n)
        return self if (constants, shape) == ([0], ()) else self._times([1 + n * (sign * m % n) for m in constants], shape)

    def _times(self, factors: list[mpz], shape: tuple[int, ...]) -> Ciphertext:
        """Products mod n²: sums of the plaintexts."""
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


def width(key_bits: int) -> int:
    """The bytes of one ciphertext under a key of that many bits."""
    return -(-2 * key_bits // 8)


def _encrypt_share(pipe: Connection) -> None:
    """A process of its own: the ciphertexts of what comes through the pipe; it ends with the process that waits for them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent, public, plain = pipe.recv()
    end_with(parent)
    pipe.send(_hidden(public, plain))


def _hidden(public: PublicKey, plain: list[int]) -> list[mpz]:
    """The ciphertexts of secret numbers, each with a fresh randomizer."""
    n, n_square = mpz(public.n), public.n_square
    randomizers = public.randomizers(len(plain))
    return [(1 + n * (m % n)) * rho % n_square for m, rho in zip(plain, randomizers, strict=True)]
