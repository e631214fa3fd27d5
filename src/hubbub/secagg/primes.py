"""Secret primes from the randomness of the operating system: for Paillier keys, and safe primes for threshold keys.

Every candidate is drawn anew: the next prime after a random number favours primes that follow long gaps.

If p is a safe prime, (p − 1)/2 is prime too: of the numbers of 1,536 bits that are 11 mod 12, one in 143,000 is one. A window
of these from a random start is sieved at once, for p and for (p − 1)/2, and the rest is tested in random order, so that no
prime is favoured for the gap before it.

Source: Damgård, Jurik and Nielsen 2010, "A generalization of Paillier's public-key system with applications to electronic
voting", https://doi.org/10.1007/s10207-010-0119-9, section 4.2 (both primes 3 mod 4, gcd(p − 1, q − 1) = 2); FIPS 186-5,
appendix A.1.3 (two top bits, distance); Wiener 2003, "Safe prime generation with a combined sieve",
https://eprint.iacr.org/2003/186; the second test of a safe prime is Pocklington's, for q prime and 2^(p − 1) = 1 mod p prove p;
Brandt and Damgård 1993, https://doi.org/10.1007/3-540-48071-4_26, for how little a search from a random start discloses.
"""

import secrets
from collections.abc import Callable, Iterator
from itertools import count

import gmpy2
import numpy as np
from gmpy2 import mpz

from hubbub._util.checks import integer

# Of the probabilistic test: a composite passes with probability at most 4⁻⁴⁰.
ROUNDS = 40
# FIPS 186-5: |p − q| has at least this many bits less than p, or the square root of n leads to them.
_CLOSE = 100
# Numbers start, start + 12, … of one window, and the primes that strike them out.
_WINDOW, _BOUND = 2**20, 2**18
# Of n. Below it, a prime of the sieve could strike itself out.
_LEAST_BITS = 64


def far_apart(p: int, q: int) -> bool:
    """Whether p and q differ by at least 2^(bits − 100)."""
    return abs(p - q).bit_length() > max(p, q).bit_length() - _CLOSE


def fit_short_exponents(p: int, q: int) -> bool:
    """Whether −x² generates a large cyclic group mod p·q, as short exponents need."""
    return p % 4 == 3 and q % 4 == 3 and gmpy2.gcd(p - 1, q - 1) == 2


def prime_pair(bits: int) -> tuple[int, int]:
    """Two primes whose product has exactly ``bits`` bits (an even number) and fits short exponents."""
    if bits % 2:
        raise ValueError(f"bits = {bits}: must be even, for two primes of one length")
    while True:
        p, q = _blum_prime(bits // 2), _blum_prime(bits // 2)
        if p != q and far_apart(p, q) and fit_short_exponents(p, q):
            return p, q


def _blum_prime(bits: int) -> int:
    """A prime of exactly that many bits, 3 mod 4, its two top bits set."""
    fixed = (3 << (bits - 2)) | 3
    while True:
        candidate = mpz(secrets.randbits(bits) | fixed)
        if gmpy2.is_prime(candidate, ROUNDS):
            return int(candidate)


def safe_prime_pair(bits: int, progress: Callable[[int], None] | None = None) -> tuple[int, int]:
    """Two safe primes of one length, far apart, whose product has exactly ``bits`` bits."""
    length = integer("bits", bits, at_least=_LEAST_BITS) // 2
    tested = count(1)
    while True:
        p, q = _safe_prime(length, tested, progress), _safe_prime(length, tested, progress)
        if p != q and far_apart(p, q):
            return p, q


def _safe_prime(bits: int, tested: Iterator[int], progress: Callable[[int], None] | None) -> int:
    while True:
        for candidate in _candidates(bits):
            number = next(tested)
            if progress is not None:
                progress(number)
            if _is_safe(candidate):
                return int(candidate)


def _is_safe(p: mpz) -> bool:
    q = p >> 1
    if gmpy2.powmod(2, q - 1, q) != 1 or gmpy2.powmod(2, p - 1, p) != 1:
        return False
    return bool(gmpy2.is_prime(q, ROUNDS) and gmpy2.is_prime(p, ROUNDS))


def _candidates(bits: int) -> Iterator[mpz]:
    """Numbers of exactly that many bits, the two top ones set, 11 mod 12, p and (p − 1)/2 without small factors; at random."""
    drawn = mpz(secrets.randbits(bits) | (3 << (bits - 2)))
    start = drawn - drawn % 12 + 11
    # Whether neither start + 12·k nor half of it has a small factor.
    left = np.ones(_WINDOW, dtype=np.bool_)
    s = 5
    while s < _BOUND:
        remainder, twelfth = int(start % s), pow(12, -1, s)
        # s divides p where p = 0 mod s, and (p − 1)/2 where p = 1.
        for residue in (0, 1):
            left[(residue - remainder) * twelfth % s :: s] = False
        s = int(gmpy2.next_prime(s))
    places = np.flatnonzero(left).tolist()
    secrets.SystemRandom().shuffle(places)
    for place in places:
        candidate = start + 12 * place
        if candidate.bit_length() == bits:
            yield candidate
