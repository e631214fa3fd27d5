"""Paillier encryption: ciphertexts can be added with the public key, and read only with the private key.

::

    private = paillier.generate()                      # 3072 bits
    public = private.public_key
    sums = public.encrypt([1, -2]) + public.encrypt([3, 4])
    private.decrypt(sums)                              # [4, 2]
    arrived = public.ciphertext(integers)              # integers that came from outside

A ciphertext of m is (1 + m·n)·ρ mod n² with a fresh randomizer ρ (randomizers.py). Ciphertexts reveal nothing, but they are
malleable: never decrypt ciphertexts of an outsider, for whom the private key would be an oracle. Decryption is computed mod p²
and mod q² and joined by the Chinese remainder theorem, about four times faster than mod n². Its time depends on the secret: use
a machine that only the owner of the key uses. Python does not erase secrets from memory.

Source: Paillier 1999, https://doi.org/10.1007/3-540-48910-X_16, sections 4 and 7; NIST SP 800-57 part 1, table 2 (2048 bits are
112 bits of security, 3072 bits 128).
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import gmpy2
from gmpy2 import mpz

from hubbub._util.checks import integer
from hubbub._util.prf import Uncopied
from hubbub.errors import HubbubError
from hubbub.secagg.ciphertext import LARGEST_BITS, SMALLEST_BITS, Ciphertext, PublicKey
from hubbub.secagg.integers import MOST_WORKERS, in_threads, nest, whole
from hubbub.secagg.primes import ROUNDS, far_apart, fit_short_exponents, prime_pair

__all__ = ["SMALLEST_BITS", "Ciphertext", "PrivateKey", "PublicKey", "generate"]


@dataclass(frozen=True, repr=False, eq=False)
class PrivateKey(Uncopied):
    """A private key, p and q. Its repr, errors and pickles never show them.

    Args:
        p: Secret; the primes are kept in increasing order.
        q: Secret.

    Raises:
        ValueError: As of :meth:`from_primes`.

    Example:
        >>> private = PrivateKey.from_primes(1_000_003, 1_000_039)  # far too small, for tests; see generate
        >>> private.decrypt(private.public_key.encrypt([1, -2]) * 3)
        [3, -6]
    """

    p: int
    q: int
    public_key: PublicKey = field(init=False)

    # As of a share: the number of the only holder.
    holder: ClassVar[int] = 1

    def __post_init__(self) -> None:
        p, q = sorted((whole("p", self.p), whole("q", self.q)))
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
        object.__setattr__(self, "p", p)
        object.__setattr__(self, "q", q)
        object.__setattr__(self, "public_key", PublicKey(p * q, fit_short_exponents(p, q)))

    @classmethod
    def from_primes(cls, p: int, q: int) -> Self:
        """The key of two known primes of any size, for test vectors and stored keys; :func:`generate` makes fresh ones.

        If the primes do not allow short exponents (both 3 mod 4, gcd(p − 1, q − 1) = 2), the key encrypts in textbook form.

        Raises:
            ValueError: They are not distinct primes of one length with gcd(n, φ(n)) = 1, or are so close that n can be
                factored. No message shows them.
        """
        return cls(p, q)

    @property
    def public(self) -> PublicKey:
        """The public key."""
        return self.public_key

    def __repr__(self) -> str:
        return f"PrivateKey(bits={self.public_key.bits}, key_id={self.public_key.key_id!r})"

    def decrypt(self, sums: Ciphertext, *, threads: int = 1) -> Any:
        """Exact Python integers from −(n − 1)/2 to (n − 1)/2: one, or lists of lists in the shape of the ciphertext.

        Args:
            sums: Of this key; never a single client's contribution.
            threads: The number of threads, which run outside Python's lock.

        Raises:
            TypeError: ``sums`` is no ciphertext.
            ValueError: It is of another key, or an integer is no ciphertext; then nothing is decrypted.
        """
        self.public_key.require_own("sums", sums)
        share = integer("threads", threads, at_least=1, at_most=MOST_WORKERS)
        n, most = self.public_key.n, self.public_key.n // 2
        p, q, ciphertexts = mpz(self.p), mpz(self.q), list(sums.integers)
        inverse = gmpy2.invert(p, q)
        halves = zip(_half(ciphertexts, p, q, share), _half(ciphertexts, q, p, share), strict=True)
        plain = [mp + p * ((mq - mp) * inverse % q) for mp, mq in halves]
        return nest([int(m) - n if m > most else int(m) for m in plain], sums.shape)

    def identified(self, challenge: bytes) -> int:
        """A proof that whoever answers to this challenge has the key, of use for no other: the n-th root of its hash mod n."""
        n, wanted = self.public_key.n, _hashed(self.public_key, challenge)
        p, q = mpz(self.p), mpz(self.q)
        root_p, root_q = (gmpy2.powmod_sec(wanted % prime, gmpy2.invert(n, prime - 1), prime) for prime in (p, q))
        root = int(root_p + p * ((root_q - root_p) * gmpy2.invert(p, q) % q))
        # A half that was computed wrongly would let everybody who reads the answer factor n.
        if not identifies(self.public_key, challenge, root):
            raise HubbubError("the proof was computed wrongly, and is not sent; check this machine's memory")
        return root


def identifies(key: PublicKey, challenge: bytes, root: int) -> bool:
    """Whether a number, from anybody, shows that its sender has the whole key.

    Example:
        >>> private = PrivateKey.from_primes(1_000_003, 1_000_039)  # far too small, for tests; see generate
        >>> root = private.identified(b"now")
        >>> identifies(private.public_key, b"now", root), identifies(private.public_key, b"then", root)
        (True, False)

    Source: Bellare and Rogaway 1996, https://doi.org/10.1007/3-540-68339-9_34 (full-domain hash).
    """
    return 0 < root < key.n and int(gmpy2.powmod(root, key.n, key.n)) == _hashed(key, challenge)


def _hashed(key: PublicKey, challenge: bytes) -> int:
    """A challenge as a number mod n that nobody chooses."""
    drawn = hashlib.shake_256(b"hubbub owner of the key 1\0" + key.key_id.encode() + challenge).digest(key.bits // 8 + 32)
    return int.from_bytes(drawn, "big") % key.n


def generate(bits: int = 3072) -> PrivateKey:
    """A new key from the randomness of the operating system; n has exactly ``bits`` bits.

    Args:
        bits: An even number from 2048; 3072 bits give 128 bits of security, 2048 give 112.

    Raises:
        ValueError: Fewer bits, or an odd number of them.

    Example:
        >>> private = generate(2048)
        >>> private.decrypt(private.public_key.encrypt([1, -2]) + private.public_key.encrypt([3, 4]))
        [4, 2]
    """
    return PrivateKey(*prime_pair(integer("bits", bits, at_least=SMALLEST_BITS, at_most=LARGEST_BITS)))


def _half(ciphertexts: list[mpz], p: mpz, other: mpz, threads: int) -> list[mpz]:
    """The plaintexts mod one prime p of n = p·other: L(c^(p−1) mod p²)·(−other)⁻¹ mod p, with L(x) = (x − 1)/p.

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
