"""Ciphertexts of whole numbers: each with a randomiser of its own, from the stock, made here, or made by other processes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gmpy2 import mpz

from hubbub.secagg.workers import in_processes

if TYPE_CHECKING:
    from hubbub.secagg.paillier import PublicKey
    from hubbub.secagg.randomizers import Randomizers

__all__ = ["encrypted"]


def encrypted(public: PublicKey, source: Randomizers, plain: list[int], workers: int) -> list[mpz]:
    """The ciphertexts of secret numbers that fit.

    Args:
        public: The key.
        source: Its randomisers; what is in stock is used up first.
        plain: From −(n − 1)/2 to (n − 1)/2.
        workers: How many processes make the others, this one included.

    Raises:
        RuntimeError: A process ended before its work did.
    """
    stock = source.take(len(plain))
    done, left = _hidden(public, plain[: len(stock)], stock), plain[len(stock) :]
    source.prepare(len(left))
    if workers == 1:
        return done + _hidden(public, left, source.make(len(left)))
    size = _width(public)
    made = in_processes(partial(_part, public), left, workers)
    return done + [mpz(int.from_bytes(made[i : i + size], "little")) for i in range(0, len(made), size)]


def _part(public: PublicKey, plain: list[int]) -> bytes:
    """Ciphertexts one after another, by a process that draws its own randomness."""
    made = _hidden(public, plain, public._source.make(len(plain)))
    return b"".join([int(c).to_bytes(_width(public), "little") for c in made])


def _hidden(public: PublicKey, plain: list[int], randomizers: list[mpz]) -> list[mpz]:
    n, n_square = mpz(public.n), public.n_square
    return [(1 + n * (m % n)) * rho % n_square for m, rho in zip(plain, randomizers, strict=True)]


def _width(public: PublicKey) -> int:
    """The bytes of a ciphertext."""
    return -(-2 * public.bits // 8)
