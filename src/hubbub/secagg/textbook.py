"""Textbook Paillier, by definition and with chosen randomness: for test vectors, teaching and benchmarks, never for data.

Keys may have any size. An r that is known or used twice hides nothing. For data use :mod:`hubbub.secagg.paillier`.

Source: Paillier 1999, "Public-key cryptosystems based on composite degree residuosity classes", section 4 with g = 1 + n,
https://doi.org/10.1007/3-540-48910-X_16.
"""

import gmpy2
from gmpy2 import mpz

from hubbub.secagg.integers import whole

__all__ = ["decrypt", "encrypt"]


def encrypt(n: int, m: int, r: int) -> int:
    """(1 + m·n)·rⁿ mod n².

    Args:
        n: The product of two different odd primes.
        m: The plaintext, from 0 to n − 1.
        r: The randomness, from 1 to n − 1, with no factor in common with n.

    Raises:
        TypeError: An argument is no whole number.
        ValueError: An argument is out of range.

    Example:
        >>> encrypt(126869, 10100, 74384)
        935906717
    """
    n, m, r = whole("n", n), whole("m", m), whole("r", r)
    if n < 15 or n % 2 == 0:
        raise ValueError(f"n has {n.bit_length()} bits: must be a product of two different odd primes, from 15")
    if not 0 <= m < n:
        raise ValueError("m is out of range: must be from 0 to n - 1; a negative number is encrypted as n + m")
    if not 0 < r < n:
        raise ValueError("r is out of range: must be from 1 to n - 1")
    if gmpy2.gcd(r, n) != 1:
        raise ValueError("r has a factor in common with n: must be a unit; draw another one")
    n_square = mpz(n) ** 2
    return int((1 + mpz(m) * n) * gmpy2.powmod(r, n, n_square) % n_square)


def decrypt(p: int, q: int, c: int) -> int:
    """L(c^λ mod n²)·λ⁻¹ mod n, in [0, n), with n = p·q, λ = lcm(p − 1, q − 1) and L(x) = (x − 1)/n.

    Args:
        p: A prime.
        q: Another prime, so that n = p·q and (p − 1)(q − 1) have no factor in common.
        c: The ciphertext, from 1 to n² − 1, with no factor in common with n.

    Raises:
        TypeError: An argument is no whole number.
        ValueError: An argument is out of range; no message shows p or q.

    Example:
        >>> decrypt(293, 433, 935906717)
        10100
    """
    p, q, c = whole("p", p), whole("q", q), whole("c", c)
    if p < 2 or q < 2 or p == q or not (gmpy2.is_prime(mpz(p), 40) and gmpy2.is_prime(mpz(q), 40)):
        raise ValueError("p and q must be two different primes")
    n, order = mpz(p) * q, gmpy2.lcm(p - 1, q - 1)
    if gmpy2.gcd(n, order) != 1:
        raise ValueError("p q and (p - 1)(q - 1) have a factor in common: must have none, or decryption is not unique")
    if not 0 < c < n**2:
        raise ValueError("c is out of range: must be from 1 to n^2 - 1")
    if gmpy2.gcd(c, n) != 1:
        raise ValueError("c has a factor in common with n: it is no ciphertext")
    return int((gmpy2.powmod(c, order, n**2) - 1) // n * gmpy2.invert(order, n) % n)
