"""Secret primes for Paillier keys, from the randomness of the operating system.

Every candidate is drawn anew: the next prime after a random number favours primes that follow long gaps.

Source: Damgård, Jurik and Nielsen 2010, "A generalization of Paillier's public-key system with applications to electronic
voting", https://doi.org/10.1007/s10207-010-0119-9, section 4.2 (both primes 3 mod 4, gcd(p − 1, q − 1) = 2); FIPS 186-5,
appendix A.1.3 (two top bits, distance).
"""

import secrets

import gmpy2
from gmpy2 import mpz

__all__ = ["ROUNDS", "far_apart", "fit_short_exponents", "prime_pair"]

# Of the probabilistic test: a composite passes with probability at most 4⁻⁴⁰.
ROUNDS = 40
# FIPS 186-5: |p − q| has at least this many bits less than p, or the square root of n leads to them.
_CLOSE = 100


def far_apart(p: int, q: int) -> bool:
    """Whether p and q differ by at least 2^(bits − 100)."""
    return abs(p - q).bit_length() > max(p, q).bit_length() - _CLOSE


def fit_short_exponents(p: int, q: int) -> bool:
    """Whether −x² generates a large cyclic group mod p·q, as short exponents need."""
    return p % 4 == 3 and q % 4 == 3 and gmpy2.gcd(p - 1, q - 1) == 2


def prime_pair(bits: int) -> tuple[int, int]:
    """Two primes whose product has exactly ``bits`` bits (an even number) and fits short exponents."""
    while True:
        p, q = _blum_prime(bits // 2), _blum_prime(bits // 2)
        if p != q and far_apart(p, q) and fit_short_exponents(p, q):
            return p, q


def _blum_prime(bits: int) -> int:
    """A prime of exactly so many bits, 3 mod 4, its two top bits set."""
    fixed = (3 << (bits - 2)) | 3
    while True:
        candidate = mpz(secrets.randbits(bits) | fixed)
        if gmpy2.is_prime(candidate, ROUNDS):
            return int(candidate)
