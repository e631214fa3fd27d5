"""Paillier encryption: whoever has the public key adds what only the private key can read.

::

    private = paillier.generate()                      # 3072 bits
    public = private.public_key
    sums = public.encrypt([1, -2]) + public.encrypt([3, 4])
    private.decrypt(sums)                              # [4, 2]
    arrived = public.ciphertext(integers)              # integers that came from outside

A ciphertext of m is (1 + m·n)·ρ mod n² with a fresh randomiser ρ (randomizers.py). Who only sees ciphertexts learns nothing
from them; but they are malleable, and a private key that decrypts what an outsider hands in is his oracle. Decryption is done
mod p² and mod q² and joined by the Chinese remainder theorem, about four times faster than mod n². It is not constant in time:
it belongs on a machine that the owner of the key shares with nobody. Python does not erase secrets from memory.

Source: Paillier 1999, https://doi.org/10.1007/3-540-48910-X_16, sections 4 and 7; NIST SP 800-57 part 1, table 2 (2048 bits are
112 bits of security, 3072 bits 128).
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self

import gmpy2
from gmpy2 import mpz

from hubbub._util.checks import integer, shown
from hubbub.secagg.ciphertext import Ciphertext, checked, encrypted
from hubbub.secagg.integers import MOST_WORKERS, flatten, in_threads, nest, where, whole
from hubbub.secagg.primes import ROUNDS, far_apart, fit_short_exponents, prime_pair
from hubbub.secagg.randomizers import Randomizers

__all__ = ["SMALLEST_BITS", "Ciphertext", "PrivateKey", "PublicKey", "generate"]

SMALLEST_BITS = 2048
_LARGEST_BITS = 16_384
# An n from outside has no prime factor below it.
_SMALL_FACTORS = 2**16


@dataclass(frozen=True, repr=False)
class PublicKey:
    """What everybody may know: n. Two public keys of the same n are the same key.

    This constructor takes any size, for vectors and tests; a key that arrives is taken by :meth:`received`.

    Args:
        n: An odd product of two primes.
        short_exponents: Whether the owner of the primes says that both are 3 mod 4 with gcd(p − 1, q − 1) = 2. Then encryption
            is about sixteen times faster; otherwise it takes the textbook form.
    """

    n: int
    short_exponents: bool = field(default=False, compare=False)
    n_square: mpz = field(init=False, compare=False)
    key_id: str = field(init=False, compare=False)
    _source: Randomizers = field(init=False, compare=False)

    def __post_init__(self) -> None:
        n = whole("n", self.n)
        if n < 15 or n % 2 == 0 or gmpy2.is_power(mpz(n)) or gmpy2.is_prime(mpz(n), ROUNDS):
            raise ValueError(f"n = {shown(n)}: must be the product of two different odd primes")
        if not isinstance(self.short_exponents, bool):
            raise TypeError(f"short_exponents = {shown(self.short_exponents)}: must be True or False")
        message = b"hubbub paillier key " + n.to_bytes((n.bit_length() + 7) // 8, "big")
        object.__setattr__(self, "n", n)
        object.__setattr__(self, "n_square", mpz(n) ** 2)
        object.__setattr__(self, "key_id", hashlib.sha256(message).hexdigest()[:32])
        object.__setattr__(self, "_source", Randomizers(n, self.short_exponents))

    @classmethod
    def received(cls, n: int, short_exponents: bool = False) -> Self:
        """A public key that came from outside; compare its ``key_id`` with the one that its owner tells you.

        Raises:
            ValueError: n has fewer than 2048 bits, or a small factor, or is no product of two different primes for sure.
        """
        bits = whole("n", n).bit_length()
        if not SMALLEST_BITS <= bits <= _LARGEST_BITS:
            raise ValueError(f"n has {bits} bits: a public key has from {SMALLEST_BITS} to {_LARGEST_BITS}")
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
        """The size of n."""
        return self.n.bit_length()

    def encrypt(self, values: object, *, workers: int = 1) -> Ciphertext:
        """Whole numbers under fresh randomness, one ciphertext each.

        Args:
            values: A whole number, or nested lists or a NumPy array of them, each from −(n − 1)/2 to (n − 1)/2.
            workers: How many processes share the work, this one included.

        Raises:
            TypeError: A value is no whole number.
            ValueError: A value does not fit. No message shows a value.
            RuntimeError: A process ended before its work did.

        Example:
            >>> private = PrivateKey.from_primes(2**61 - 1, 2**60 + 33)  # far too small, for tests
            >>> private.decrypt(private.public_key.encrypt([1, -2]) * 3 + 4)
            [7, -2]
        """
        plain, shape = flatten("values", values)
        self.require_fit("values", plain, shape)
        share = integer("workers", workers, at_least=1, at_most=MOST_WORKERS)
        return Ciphertext(self, shape, tuple(encrypted(self, self._source, plain, share)))

    def ciphertext(self, integers: object, *, key_id: str | None = None, name: str = "integers") -> Ciphertext:
        """Integers that came from outside, after checks of their range and that each is a unit.

        Args:
            integers: One, or nested lists or an object array of them.
            key_id: Of the key that the sender names, if it does; must be this one's.
            name: Of the integers in messages, such as "client 'c7'".

        Raises:
            TypeError: An entry is no whole number.
            ValueError: Another key, or an entry that no encryption under this key gives.
        """
        if key_id is not None and key_id != self.key_id:
            raise ValueError(f"{name}: encrypted under the key {shown(key_id)}, not under {self.key_id!r}")
        if isinstance(integers, Ciphertext):
            self.require_own(name, integers)
            integers = nest(integers.integers, integers.shape)
        return checked(self, name, integers)

    def require_own(self, name: str, sums: object) -> Ciphertext:
        """A ciphertext of this key, or a refusal."""
        if not isinstance(sums, Ciphertext):
            raise TypeError(f"{name} is a {type(sums).__name__}: must be a Ciphertext; PublicKey.ciphertext checks integers")
        if sums.public_key != self:
            raise ValueError(f"{name}: encrypted under the key {sums.public_key.key_id!r}, not under {self.key_id!r}")
        return sums

    def require_fit(self, name: str, values: list[int], shape: tuple[int, ...]) -> None:
        """Refuse numbers beyond n/2; the message says where and how long, not what."""
        most = self.n // 2
        for i, value in enumerate(values):
            if not -most <= value <= most:
                raise ValueError(
                    f"{where(name, i, shape)} has {value.bit_length()} bits and does not fit: a key of {self.bits} bits takes "
                    f"whole numbers from -(n - 1)/2 to (n - 1)/2"
                )

    def randomizers(self, count: int) -> list[mpz]:
        """Fresh encryptions of zero as bare integers, each to be used once and kept secret until then."""
        return self._source.draw(count)

    def prepare(self, encryptions: int) -> None:
        """Build now the table of powers that pays for so many encryptions; otherwise it grows with use."""
        self._source.prepare(integer("encryptions", encryptions, at_least=1))

    def precompute(self, count: int) -> None:
        """Make the randomness of so many encryptions ahead of time; each then costs two multiplications.

        It is used up once, in this process alone: a forked or pickled key has none. Whoever reads this process's memory reads
        what is encrypted with it later.

        Args:
            count: Beside what is in stock; 2·``bits`` bits of memory each.
        """
        self._source.store(integer("count", count, at_least=1))

    @property
    def precomputed(self) -> int:
        """How many encryptions still have their randomness in stock."""
        return self._source.stock


@dataclass(frozen=True, repr=False, eq=False)
class PrivateKey:
    """The primes. They are in no text, message or pickle that this class makes.

    Args:
        p: Secret; the primes are kept in increasing order.
        q: Secret.
    """

    p: int
    q: int
    public_key: PublicKey = field(init=False)

    def __post_init__(self) -> None:
        p, q = sorted((whole("p", self.p), whole("q", self.q)))
        _require_primes(p, q)
        object.__setattr__(self, "p", p)
        object.__setattr__(self, "q", q)
        object.__setattr__(self, "public_key", PublicKey(p * q, fit_short_exponents(p, q)))

    @classmethod
    def from_primes(cls, p: int, q: int) -> Self:
        """The key of two known primes of any size: for vectors, tests and stored keys. Fresh keys come from :func:`generate`.

        Primes that short exponents cannot use (both 3 mod 4, gcd(p − 1, q − 1) = 2) give a key that encrypts in textbook form.

        Raises:
            ValueError: They are not distinct primes of one length with gcd(n, φ(n)) = 1, or those of a large key are so close
                that n falls apart. No message shows them.
        """
        return cls(p, q)

    def __repr__(self) -> str:
        return f"PrivateKey(bits={self.public_key.bits}, key_id={self.public_key.key_id!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a PrivateKey is not pickled or copied: a pickle of it would be the secret, unprotected")

    def decrypt(self, sums: Ciphertext, *, threads: int = 1) -> Any:
        """Exact Python integers from −(n − 1)/2 to (n − 1)/2: one, or lists of lists in the shape of the ciphertext.

        Args:
            sums: Of this key. Decrypt sums only: a single contribution is what encryption was to hide.
            threads: How many share the work, which runs outside Python's lock.

        Raises:
            TypeError: No ciphertext.
            ValueError: Another key, or an integer that no encryption gives; then nothing is decrypted.
        """
        self.public_key.require_own("sums", sums)
        share = integer("threads", threads, at_least=1, at_most=MOST_WORKERS)
        n, most = self.public_key.n, self.public_key.n // 2
        p, q, ciphertexts = mpz(self.p), mpz(self.q), list(sums.integers)
        inverse = gmpy2.invert(p, q)
        halves = zip(_half(ciphertexts, p, q, share), _half(ciphertexts, q, p, share), strict=True)
        plain = [mp + p * ((mq - mp) * inverse % q) for mp, mq in halves]
        return nest([int(m) - n if m > most else int(m) for m in plain], sums.shape)


def generate(bits: int = 3072) -> PrivateKey:
    """A new key from the randomness of the operating system; n has exactly ``bits`` bits.

    Args:
        bits: An even number from 2048; 3072 is worth 128 bits of security, 2048 is worth 112.

    Raises:
        ValueError: Fewer bits, or an odd number of them.
    """
    size = integer("bits", bits, at_least=SMALLEST_BITS, at_most=_LARGEST_BITS)
    if size % 2:
        raise ValueError(f"bits = {size}: must be even, for two primes of one length")
    return PrivateKey(*prime_pair(size))


def _require_primes(p: int, q: int) -> None:
    """Refuse p ≤ q that make no sound key."""
    lengths = f"p and q have {p.bit_length()} and {q.bit_length()} bits"
    if p.bit_length() != q.bit_length():
        raise ValueError(f"{lengths}: must be of equal length")
    if p == q:
        raise ValueError(f"{lengths} and are the same number: must be two different primes")
    if p < 2 or not (gmpy2.is_prime(mpz(p), ROUNDS) and gmpy2.is_prime(mpz(q), ROUNDS)):
        raise ValueError(f"{lengths}: must both be prime")
    if gmpy2.gcd(p * q, (p - 1) * (q - 1)) != 1:
        raise ValueError(f"{lengths}: n = p q and (p - 1)(q - 1) have a factor in common, so decryption is not unique")
    if (p * q).bit_length() >= SMALLEST_BITS - 1 and not far_apart(p, q):
        raise ValueError(f"{lengths} and are too close: the square root of n leads to them; draw new primes")


def _half(ciphertexts: list[mpz], p: mpz, other: mpz, threads: int) -> list[mpz]:
    """What is encrypted, mod one prime p of n = p·other: L(c^(p−1) mod p²)·(−other)⁻¹ mod p, with L(x) = (x − 1)/p.

    Raises:
        ValueError: An integer is no unit; nothing is decrypted.
    """
    p_square, factor = p * p, gmpy2.invert(-other, p)
    reduced = [c % p_square for c in ciphertexts]
    halves = []
    for i, x in enumerate(in_threads(lambda part: list(gmpy2.powmod_base_list(part, p - 1, p_square)), reduced, threads)):
        quotient, remainder = gmpy2.f_divmod(x - 1, p)
        if remainder:
            raise ValueError(f"sums, integer {i} in C order: has a factor in common with n, so it is no ciphertext")
        halves.append(quotient * factor % p)
    return halves
