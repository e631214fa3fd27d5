"""Laws of the cryptosystem, of packed sums and of shares, for any numbers, any nesting and any holders.

Beside those in ``test_paillier.py``, ``test_packing.py`` and ``test_threshold.py``, each of one operation.
"""

import itertools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gmpy2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.secagg import packing, textbook, threshold
from hubbub.secagg.paillier import PrivateKey, PublicKey
from small_keys import SAFE, plain, small


@dataclass(frozen=True)
class Tree:
    """A computation: a number to encrypt, or an operation on others."""

    act: Callable[..., Any] | None
    parts: tuple[Any, ...]

    def value(self) -> int:
        """By Python's own arithmetic."""
        if self.act is None:
            return self.parts[0]
        return self.act(*(part.value() if isinstance(part, Tree) else part for part in self.parts))

    def encrypted(self, public: PublicKey) -> Any:
        if self.act is None:
            return public.encrypt(self.parts[0])
        return self.act(*(part.encrypted(public) if isinstance(part, Tree) else part for part in self.parts))


numbers = st.integers(-(2**40), 2**40)


def larger(trees: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    """One operation more, constants on either side."""
    pairs = st.tuples(trees, trees)
    mixed = st.one_of(st.tuples(trees, numbers), st.tuples(numbers, trees))
    times, by = st.integers(-(2**12), 2**12), st.sampled_from([0, 1, -1, 2, -3, 1000])
    factors = st.one_of(st.tuples(trees, times), st.tuples(by, trees))
    return st.one_of(
        st.builds(Tree, st.sampled_from((operator.add, operator.sub)), st.one_of(pairs, mixed)),
        st.builds(Tree, st.just(operator.mul), factors),
        st.builds(Tree, st.just(operator.neg), st.tuples(trees)),
    )


trees = st.recursive(st.builds(Tree, st.none(), st.tuples(numbers)), larger, max_leaves=12)


@pytest.mark.parametrize("private", [small(), plain()], ids=["short", "full"])
@settings(max_examples=60, deadline=None)
@given(tree=trees)
def test_any_nesting_of_sums_differences_and_products_comes_out(private: PrivateKey, tree: Tree) -> None:
    """Mod n, around zero: on the key of 64 bits most of it runs over, and what is left is still the residue."""
    n = private.public_key.n
    residue = tree.value() % n
    made = tree.encrypted(private.public_key)
    assert private.decrypt(made) == (residue - n if residue > n // 2 else residue)
    fresh = made.rerandomize()
    assert fresh.integers != made.integers
    assert private.decrypt(fresh) == private.decrypt(made)


@settings(max_examples=40, deadline=None)
@given(
    columns=st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=5), constant=numbers, order=st.randoms()
)
def test_arrays_are_added_entry_by_entry_in_any_order(columns: list[list[int]], constant: int, order: Any) -> None:
    private = small()
    parts = [private.public_key.encrypt(column) for column in columns]
    expected = [sum(row) + constant for row in zip(*columns, strict=True)]
    assert private.decrypt(sum(parts) + constant) == expected
    order.shuffle(parts)
    total = sum(parts[1:], parts[0]) + [constant] * 3
    assert private.decrypt(total) == expected
    # Equal plaintexts, and the very same ciphertexts: no randomness is drawn on the way.
    assert total.integers == (sum(parts) + constant).integers


def test_every_unit_is_the_ciphertext_of_one_number_with_one_randomness() -> None:
    """n = 143, all of it: plaintext and randomness, and the units mod n², are as many, and correspond one to one."""
    n = 11 * 13
    units = [r for r in range(1, n) if math.gcd(r, n) == 1]
    plaintext = {textbook.encrypt(n, m, r): m for m in range(n) for r in units}
    assert sorted(plaintext) == [c for c in range(n * n) if math.gcd(c, n) == 1]
    private = PrivateKey.from_primes(11, 13)
    signed = private.decrypt(private.public_key.ciphertext(list(plaintext)))
    assert [m % n for m in signed] == list(plaintext.values())
    assert (max(signed), min(signed)) == (71, -71)


def test_a_rerandomized_number_can_become_any_ciphertext_of_it() -> None:
    """So that it tells nothing of where it came from. Of 120 one is missed by 5,000 draws with probability below 1e-16."""
    private = PrivateKey.from_primes(11, 13)
    public = private.public_key
    assert not public.short_exponents
    c = public.ciphertext([textbook.encrypt(143, 7, 2)] * 5000)
    fresh = set(c.rerandomize().integers)
    assert fresh == {textbook.encrypt(143, 7, r) for r in range(1, 143) if math.gcd(r, 143) == 1}


@st.composite
def rounds(draw: st.DrawFn) -> tuple[packing.Packing, np.ndarray, np.ndarray, np.ndarray]:
    """A plan, clients' steps and noise at and within the limits, and the server's noise."""
    noise = draw(st.sampled_from([0, 7, 1000, 10**6]))
    bits, most = draw(st.integers(2, 32)), draw(st.integers(1, 12))
    plan = packing.Packing(bits=bits, clip=1.0, max_clients=most, key_bits=512, noise=2 * noise)
    clients = draw(st.integers(1, plan.max_clients))
    size = draw(st.integers(1, 2 * plan.slots + 1))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    limit, share = plan.fixed_point.limit, noise // plan.max_clients
    steps = generator.integers(-limit, limit, (clients, size), endpoint=True)
    noises = generator.integers(-share, share, (clients, size), endpoint=True)
    server = generator.integers(-noise, noise, size, endpoint=True)
    if draw(st.booleans()):
        sign = generator.choice([-1, 1], size)
        steps[:], noises[:], server = sign * limit, sign * share, sign * noise
    return plan, steps, noises, server


@settings(max_examples=60, deadline=None)
@given(rounds())
def test_packed_sums_are_the_sums_of_whole_numbers(given_: tuple[packing.Packing, np.ndarray, np.ndarray, np.ndarray]) -> None:
    plan, steps, noises, server = given_
    private = small()
    public = private.public_key
    clients = [public.encrypt(plan.pack_steps(row, noise)) for row, noise in zip(steps, noises, strict=True)]
    total = private.decrypt(sum(clients) + plan.pack_noise(server))
    assert plan.contributions(total) == len(clients)
    exact = steps.sum(axis=0) + noises.sum(axis=0) + server
    assert plan.unpack_steps(total, contributions=len(clients)).tolist() == exact.tolist()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_holders_in_any_order_read_the_same_of_any_computation(data: st.DataObject) -> None:
    holders = data.draw(st.integers(1, 6))
    needed = data.draw(st.integers(1, holders))
    public, shares = threshold.deal(*SAFE, holders=holders, threshold=needed)
    tree = data.draw(trees)
    sums = tree.encrypted(public.public_key)
    partials = [share.partial(sums) for share in shares]
    chosen = data.draw(st.permutations(partials))
    for group in itertools.islice(itertools.combinations(chosen, needed), 4):
        assert threshold.combine(public, group, ciphertext=sums) == tree.value()
    for group in itertools.islice(itertools.combinations(chosen, needed - 1), 4):
        with pytest.raises(ValueError, match=f"{needed - 1} are too few, any {needed} of {holders} are needed"):
            threshold.combine(public, group, ciphertext=sums)


# 47 = 2·23 + 1 and 59 = 2·29 + 1: small enough to try everything.
TINY = 47, 59
TINY_ORDER = 23 * 29
TINY_MODULUS = 47 * 59 * TINY_ORDER


def test_two_of_three_shares_fit_every_secret_that_there_is_equally_well() -> None:
    """All 1,849,591 candidates: through (0, d) and two shares goes one polynomial of degree 2, and the third share moves on.

    The third share that would go with each candidate is another one for each, so that two holders know neither.
    """
    _, shares = threshold.deal(*TINY, holders=3, threshold=3)
    modulus = TINY_MODULUS
    candidates = np.arange(modulus, dtype=np.int64)
    for given_ in itertools.combinations(shares, 2):
        (i, a), (j, b) = ((share.holder, share.secret) for share in given_)
        # f(x) = d + c₁x + c₂x² with f(i) = a and f(j) = b.
        inverse = pow(i * j * (j - i), -1, modulus)
        square = ((i * (b - candidates) - j * (a - candidates)) % modulus) * inverse % modulus
        linear = (a - candidates - square * (i * i)) % modulus * pow(i, -1, modulus) % modulus
        for x, value in ((i, a), (j, b)):
            assert np.array_equal((candidates + linear * x + square * (x * x)) % modulus, np.full(modulus, value))
        left = 6 - i - j
        third = (candidates + linear * left + square * (left * left)) % modulus
        assert np.array_equal(np.bincount(third, minlength=modulus), np.ones(modulus))


@pytest.mark.parametrize("needed", [2, 3])
def test_a_share_is_any_number_as_likely_as_any_other(needed: int) -> None:
    """Chi-square with 15 degrees of freedom: above 75 with probability below 1e-9."""
    found = np.zeros(16)
    for _ in range(320):
        _, shares = threshold.deal(*TINY, holders=3, threshold=needed)
        found[shares[1].secret * 16 // TINY_MODULUS] += 1
    assert np.sum((found - 20) ** 2 / 20) < 75


def test_combined_by_hand_two_of_three_partials_are_no_more_than_noise_and_three_are_the_number() -> None:
    """With the weights of two holders, for each of many deals of one key: what comes out is the number, encrypted again.

    Mod n every share is 1, so that the part of n is the number's, as in the ciphertext itself; what hides it is uniform.
    """
    n, n_square = TINY[0] * TINY[1], (TINY[0] * TINY[1]) ** 2
    c = textbook.encrypt(n, 1000, 2)
    seen, readable = set(), 0
    for _ in range(300):
        public, shares = threshold.deal(*TINY, holders=3, threshold=3)
        one, two = (gmpy2.powmod(c, 2 * public.delta * share.secret, n_square) for share in shares[:2])
        # Through holders 1 and 2 alone, at 0: 2·f(1) − f(2).
        product = gmpy2.powmod(one, 2 * public.delta * 2, n_square) * gmpy2.powmod(two, -2 * public.delta, n_square) % n_square
        readable += product % n == 1 and (product - 1) // n * gmpy2.invert(4 * public.delta**2, n) % n == 1000
        seen.add(int(product))
    # Uniform among 667 n-th residues: 300 draws are fewer than 200 of them, or 12 readable, with probability below 1e-10.
    assert len(seen) >= 200
    assert readable < 12
    # Of all three it is the number, so that the test would see it.
    product = gmpy2.mpz(1)
    for weight, share in zip((3, -3, 1), shares, strict=True):
        product = product * gmpy2.powmod(c, 4 * public.delta**2 * share.secret * weight, n_square) % n_square
    assert product % n == 1
    assert (product - 1) // n * gmpy2.invert(4 * public.delta**2, n) % n == 1000
