"""Decryption mod p² and mod q², joined by the Chinese remainder theorem: about four times faster than mod n².

Source: Paillier 1999, https://doi.org/10.1007/3-540-48910-X_16, section 7.
"""

import gmpy2
from gmpy2 import mpz

from hubbub.secagg.workers import in_threads

__all__ = ["residues"]


def residues(integers: list[mpz], p: mpz, q: mpz, threads: int) -> list[mpz]:
    """What each ciphertext holds, from 0 to p·q − 1.

    Raises:
        ValueError: An integer is no unit; nothing is decrypted.
    """
    inverse = gmpy2.invert(p, q)
    halves = zip(_half(integers, p, q, threads), _half(integers, q, p, threads), strict=True)
    return [mp + p * ((mq - mp) * inverse % q) for mp, mq in halves]


def _half(integers: list[mpz], p: mpz, other: mpz, threads: int) -> list[mpz]:
    """What is encrypted, mod one prime p of n = p·other: L(c^(p−1) mod p²)·(−other)⁻¹ mod p, with L(x) = (x − 1)/p."""
    factor = gmpy2.invert(-other, p)
    halves = []
    for i, x in enumerate(_powers(integers, p, threads)):
        quotient, remainder = gmpy2.f_divmod(x - 1, p)
        if remainder:
            raise ValueError(f"sums, integer {i} in C order: has a factor in common with n, so it is no ciphertext")
        halves.append(quotient * factor % p)
    return halves


def _powers(integers: list[mpz], p: mpz, threads: int) -> list[mpz]:
    """c^(p−1) mod p²."""
    p_square = p * p
    reduced = [c % p_square for c in integers]
    return in_threads(lambda part: list(gmpy2.powmod_base_list(part, p - 1, p_square)), reduced, threads)
