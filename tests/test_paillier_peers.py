"""What went wrong in other libraries of Paillier encryption does not go wrong here.

Read in their sources, as they stood in 2026:

- NVFlare, ``cuda_plugin/src/paillier.h``: one randomiser for all values of a run; 1024 bits from a 64-bit seed of ``mt19937``.
- cryptovoting/damgard-jurik: φ(n)/4 in the public key (``test_threshold.py`` too, nothing public tells the factors).
- niclabs/tcpaillier: a proof whose mask is too short for the share (``test_threshold.py``, a response does not tell the share).
- LightPHE: r and primes from the Mersenne Twister, and an n of any length; TNO, ``paillier``: primes from ``sympy.randprime``.
- intel/pailliercryptolib, ``getDJNBN``: 3 mod 4 is tested at p twice, and never at q (``test_paillier.py``, a generated key).
- TNO, ``distributed_keygen``: asks whether a greatest common divisor is 0, which it never is.
- phe, FATE: the next prime after a random number, and a public exponent that tells how large a value is.
- FATE: keys of 1024 bits by default (``test_paillier.py``, small keys are refused), and ``pack_floats``, where a negative
  number borrows from its neighbour (``test_packing.py``).
- ipcl-python: keys as pickles (``test_paillier.py``, a secret key is in no text, copy or pickle).
"""

import ast
import collections
import itertools
import math
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import gmpy2
import numpy as np
import phe
import pytest
import sympy
import torch

import hubbub.secagg
from hubbub.secagg import packing, paillier, primes, randomizers, textbook, threshold
from hubbub.secagg.paillier import PrivateKey
from small_keys import SMALL_SAFE, other, plain, small

PUBLIC, SHARES = threshold.deal(*SMALL_SAFE, holders=3, threshold=2)


@pytest.mark.parametrize("private", [small(), plain()], ids=["short", "full"])
def test_pai_7_a_thousand_encryptions_of_zero_share_no_randomness(private: PrivateKey) -> None:
    """NVFlare multiplies all plaintexts of a run by one randomiser: a quotient of two ciphertexts then shows m − m'."""
    public = private.public_key
    batch = public.encrypt([0] * 500).integers + tuple(public.encrypt(0).integers[0] for _ in range(500))
    assert len(set(batch)) == 1000
    # c/c' = (1 + n)^(m − m') is what one randomiser would leave; here the quotients are 1 mod n nowhere.
    assert len({c % public.n for c in batch}) == 1000
    assert 1 not in batch


def reachable(thing: object) -> Iterator[int]:
    """Every whole number that an object holds, or that what it holds does."""
    if isinstance(thing, int | type(gmpy2.mpz())) and not isinstance(thing, bool):
        yield int(thing)
    elif isinstance(thing, dict):
        yield from itertools.chain.from_iterable(reachable(part) for part in thing.values())
    elif isinstance(thing, list | tuple | set | collections.deque):
        yield from itertools.chain.from_iterable(map(reachable, thing))
    elif type(thing).__module__.startswith("hubbub"):
        yield from reachable(vars(thing))


def test_nothing_public_leads_to_the_primes() -> None:
    """cryptovoting/damgard-jurik keeps φ(n)/4 in its public key."""
    private = small()
    public, n = private.public_key, private.public_key.n
    c = public.encrypt([1] * 3)
    held = set(reachable([public, c, c + c, c * 3, c.rerandomize(), randomizers._table(n)]))
    assert {n, n * n, *map(int, c.integers)} <= held
    phi = (private.p - 1) * (private.q - 1)
    for x in held:
        assert math.gcd(x, n) in (1, n)
        # A multiple of the order would open everything.
        assert x == 0 or gmpy2.powmod(2, x * n, n * n) != 1
        assert x < 2**16 or (phi % x and math.gcd(x, phi).bit_length() < 64)
    assert pickle.loads(pickle.dumps(public)).__reduce__()[1] == (n, True)  # noqa: S301


def test_the_base_of_short_exponents_follows_from_n_alone() -> None:
    """A messenger cannot slip in a base of small order, under which ciphertexts would hide nothing."""
    n = small().public_key.n
    x = randomizers.hashed_unit(n)
    assert 1 < x < n - 1
    assert math.gcd(x, n) == 1
    assert x == randomizers.hashed_unit(n) != randomizers.hashed_unit(other().public_key.n)
    assert randomizers.base_from(n, x) == pow(n - x * x % n, n, n * n)


DRAWS: dict[str, Callable[[], set[int]]] = {
    "primes": lambda: set(primes.prime_pair(128)),
    "short randomisers": lambda: {int(c) for c in small().public_key.encrypt([1, 1]).integers},
    "full randomisers": lambda: {int(c) for c in plain().public_key.encrypt([1, 1]).integers},
    "rerandomised": lambda: {int(small().public_key.ciphertext(2).rerandomize().integers[0])},
    "safe primes": lambda: set(primes.safe_prime_pair(128)),
    "shares": lambda: {share.secret for share in threshold.deal(*SMALL_SAFE, holders=3, threshold=2)[1]},
    "base of the proofs": lambda: {threshold.deal(*SMALL_SAFE, holders=1, threshold=1)[0].base},
    "mask of a proof": lambda: {SHARES[0].partial(7).proof.response},
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_seeded_generators_repeat_nothing(draw: Callable[[], set[int]]) -> None:
    drawn = []
    for _ in range(2):
        for seed in (random.seed, np.random.seed, torch.manual_seed, sympy.core.random.seed):
            seed(0)
        drawn.append(draw())
    assert not drawn[0] & drawn[1]


def test_no_module_knows_a_generator_that_can_be_seeded() -> None:
    seedable = {"random", "mpz_random", "mpz_urandomb", "mpz_rrandomb", "random_state", "default_rng", "RandomState"}
    for file in Path(hubbub.secagg.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = {alias.name for alias in node.names} if isinstance(node, ast.Import | ast.ImportFrom) else set()
            names |= {node.module} if isinstance(node, ast.ImportFrom) else set()
            names |= {node.attr} if isinstance(node, ast.Attribute) else set()
            assert not names & seedable, f"{file.name}: {names & seedable}"


def test_every_pair_of_primes_is_as_likely_as_any_other() -> None:
    """The next prime after a random number favours 223, twelve behind its neighbour, three times over 227.

    Chi-square with 19 degrees of freedom: above 82 with probability below 1e-9.
    """
    fit = [p for p in range(192, 256) if p % 4 == 3 and gmpy2.is_prime(p)]
    pairs = [pair for pair in itertools.permutations(fit, 2) if math.gcd(pair[0] - 1, pair[1] - 1) == 2]
    assert len(pairs) == 20
    found = collections.Counter(primes.prime_pair(16) for _ in range(2000))
    assert set(found) <= set(pairs)
    assert sum((found[pair] - 100) ** 2 / 100 for pair in pairs) < 82


PLACES: dict[str, Callable[[int], object]] = {
    "a ciphertext that arrives": PUBLIC.ciphertext,
    "a sum to decrypt": SHARES[0].partial,
    "a contribution": lambda c: SHARES[0].partial_of([[3], [c]]),
    "the randomness of textbook form": lambda r: textbook.encrypt(PUBLIC.n, 5, r),
    "a ciphertext in textbook form": lambda c: textbook.decrypt(*SMALL_SAFE, c),
    "the base of proofs": lambda v: replace(PUBLIC, base=v),
    "a verification key": lambda v: replace(PUBLIC, verification=(v, *PUBLIC.verification[1:])),
}


@pytest.mark.parametrize("use", PLACES.values(), ids=PLACES.keys())
def test_pai_1_pai_7_what_has_a_factor_in_common_with_n_is_refused_wherever_it_arrives(use: Callable[[int], object]) -> None:
    """By both primes: one that is tested twice leaves the other out."""
    p, q = SMALL_SAFE
    for bad in (p, q, 3 * p, 5 * q):
        with pytest.raises(ValueError, match=r"factor in common|no unit"):
            use(bad)
    for good in (2, 5, p + 2, 3 * q + 1):
        use(good)


def test_pai_10_what_is_sent_with_a_value_does_not_depend_on_it() -> None:
    """phe sends an exponent of each value: how large or how precise it is."""
    theirs = phe.PaillierPublicKey(small().public_key.n)
    assert theirs.encrypt(1e-9).exponent != theirs.encrypt(1e9).exponent

    plan = packing.Packing(bits=16, clip=1e9, max_clients=4, key_bits=512)
    sent = [small().public_key.encrypt(plan.pack([x] * 30)) for x in (0.0, 1e-9, 1e9, -1e9)]
    assert {field.name for field in fields(paillier.Ciphertext)} == {"public_key", "shape", "integers"}
    assert {c.shape for c in sent} == {(plan.plaintexts(30),)}
    assert {repr(c) for c in sent} == {repr(sent[0])}
