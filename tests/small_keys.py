"""Keys that are far too small for anything but tests, each made once."""

from functools import cache

import gmpy2

from conftest import oracle
from hubbub.secagg.paillier import PrivateKey

VECTORS = oracle("paillier")
# Two safe primes of 256 bits, two of 1024, and two of 32.
SAFE, LONG_SAFE = (tuple(int(VECTORS["threshold_dj"][case][name], 16) for name in "pq") for case in (0, 2))
SMALL_SAFE = (4294967087, 4294965887)


def number(text: str) -> int:
    return int(text, 16)


@cache
def small(position: int = 0) -> PrivateKey:
    """A key of 512 bits that short exponents fit."""
    keys = [(VECTORS["raw"][0]["p"], VECTORS["raw"][0]["q"])]
    keys += [(case["p"], case["q"]) for case in VECTORS["threshold_dj"] if case["bits"] == 512]
    return PrivateKey.from_primes(*(number(x) for x in keys[position]))


def other() -> PrivateKey:
    return small(1)


@cache
def iso() -> PrivateKey:
    """The key of ISO/IEC 18033-6, of which gcd(p − 1, q − 1) = 6."""
    key = oracle("paillier_iso_18033_6")
    return PrivateKey.from_primes(number(key["p"]), number(key["q"]))


@cache
def plain() -> PrivateKey:
    """A key that short exponents do not fit: both primes are 1 mod 4."""
    found = [p for p in range(2**31 + 1, 2**31 + 400, 4) if gmpy2.is_prime(p)]
    return PrivateKey.from_primes(found[0], found[1])
