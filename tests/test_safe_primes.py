"""Safe primes, and the keys that are shared among holders: what they are, and that nothing about them can be foretold."""

import itertools

import gmpy2
import pytest

from hubbub.secagg import primes, threshold
from small_keys import SAFE


@pytest.mark.parametrize("bits", [64, 66, 256, 512])
def test_safe_primes_are_safe_and_their_product_has_the_bits_asked_for(bits: int) -> None:
    p, q = primes.safe_prime_pair(bits)
    assert p != q
    assert (p * q).bit_length() == bits == 2 * p.bit_length() == 2 * q.bit_length()
    for prime in (p, q):
        assert prime % 12 == 11
        assert gmpy2.is_prime(prime)
        assert gmpy2.is_prime((prime - 1) // 2)
    assert gmpy2.gcd(p * q, (p - 1) * (q - 1)) == 1
    assert gmpy2.gcd(p - 1, q - 1) == 2
    if bits >= 256:
        assert abs(p - q).bit_length() > bits // 2 - 100


def test_candidates_come_from_all_over_the_window_in_no_order() -> None:
    found = list(itertools.islice(primes._candidates(256), 200))
    assert all(p.bit_length() == 256 and p >> 254 == 3 and p % 12 == 11 for p in found)
    assert found != sorted(found)
    # 200 draws below a window of 2^20: the least is above a fifth of it once in 10^19 times.
    assert max(found) - min(found) > 12 * primes._WINDOW // 2


def test_a_composite_with_a_prime_half_is_no_safe_prime() -> None:
    """Each of the two numbers fails alone."""
    prime = gmpy2.is_prime
    half_only = next(p for p in range(10**6 + 1, 2 * 10**6, 2) if prime(p // 2) and not prime(p))
    whole_only = next(p for p in range(10**6 + 1, 2 * 10**6, 2) if prime(p) and not prime(p // 2))
    assert [primes._is_safe(gmpy2.mpz(p)) for p in (half_only, whole_only, SAFE[0])] == [False, False, True]
    # 2^340 = 1 mod 341 = 11·31: a test to the base 2 alone is passed.
    assert not primes._is_safe(gmpy2.mpz(683))


def test_a_shared_key_is_made_without_showing_its_primes() -> None:
    seen: list[int] = []
    public, shares = threshold.generate(2048, holders=3, threshold=2, min_contributions=2, progress=seen.append)
    assert (public.n.bit_length(), public.holders, public.threshold, public.min_contributions) == (2048, 3, 2, 2)
    assert seen
    given = [public.encrypt([5, -7]), public.encrypt([1, 1])]
    assert threshold.combine(public, [shares[i].partial_of(given) for i in (2, 0)]) == [6, -6]
