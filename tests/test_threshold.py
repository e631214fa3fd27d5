"""Any t of n holders decrypt, t − 1 never, and one who lies is named; safe primes, and that nothing about them can be foretold.

Expected values: the reference values of the oracle file, what was encrypted, and the textbook exponent. Of each kind of lie a
thousand are told: the holder is named, nothing is decrypted, and no share is told.
"""

import copy
import itertools
import pickle
import random
import traceback
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import gmpy2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refusals
from conftest import oracle
from hubbub.secagg import primes, threshold
from hubbub.secagg.proofs import Proof, _digest, prove
from hubbub.secagg.threshold import Partial, _lagrange, _shared_out, _statement
from small_keys import SMALL_SAFE

ORACLE = oracle("paillier")["threshold_dj"]
P, Q = int(ORACLE[0]["p"], 16), int(ORACLE[0]["q"], 16)
PUBLIC, SHARES = threshold.deal(P, Q, holders=5, threshold=3)
OTHER, OTHER_SHARES = threshold.deal(P, Q, holders=5, threshold=3)


def number(case, name):
    return int(case[name], 16)


@pytest.mark.parametrize("case", ORACLE, ids=lambda case: str(case["bits"]))
def test_shares_partials_and_combinations_are_those_of_the_reference(case):
    n, c = number(case, "n"), number(case, "c")
    coefficients = [int(a, 16) for a in case["coefficients"]]
    public, shares = _shared_out(n, number(case, "m_secret"), coefficients, number(case, "v"), case["l"])
    assert [share.secret for share in shares] == [int(case["shares"][str(share.holder)], 16) for share in shares]
    assert list(public.verification) == [int(case["vk"][str(share.holder)], 16) for share in shares]
    partials = {share.holder: share.partial(c) for share in shares}
    assert {i: part.integers[0] for i, part in partials.items()} == {int(i): int(x, 16) for i, x in case["partials"].items()}
    for combination in case["combine"]:
        subset = combination["subset"]
        assert _lagrange(public.delta, subset) == [combination["lagrange"][str(i)] for i in subset]
        m = threshold.combine(public, [partials[i] for i in subset])
        assert m % n == int(combination["m"], 16)
        assert -n // 2 <= m <= n // 2


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_pai_11_any_t_of_n_decrypt_and_one_fewer_is_refused(data):
    holders = data.draw(st.integers(1, 7))
    needed = data.draw(st.integers(1, holders))
    public, shares = threshold.deal(P, Q, holders=holders, threshold=needed)
    sums = public.encrypt(-7)
    chosen = data.draw(st.permutations(shares))[:needed]
    partials = [share.partial(sums) for share in chosen]
    assert threshold.combine(public, partials) == -7
    with pytest.raises(ValueError, match=f"{needed - 1} are too few, any {needed} of {holders} are needed"):
        threshold.combine(public, partials[1:])


def test_two_shares_of_three_do_not_open_a_ciphertext_even_without_the_refusal():
    """A lower threshold in a forged key lets them try: what comes out is no encryption without randomness, or not the value."""
    forged = threshold.ThresholdKey(PUBLIC.n, 5, 2, PUBLIC.base, PUBLIC.verification)
    sums = PUBLIC.encrypt(5)
    for pair in itertools.combinations(SHARES, 2):
        own = [threshold.KeyShare(forged, share.holder, share.secret) for share in pair]
        with pytest.raises(ValueError, match="do not fit together"):
            threshold.combine(forged, [share.partial(sums) for share in own])


# Lying holders.


SUMS = PUBLIC.encrypt([4, -2])
HONEST = [share.partial(SUMS) for share in SHARES]


def test_all_who_lie_are_named():
    bad = [replace(part, integers=tuple(x * x % PUBLIC.n**2 for x in part.integers)) for part in HONEST]
    with pytest.raises(threshold.LyingHolderError, match="holder 4, holder 1") as caught:
        threshold.combine(PUBLIC, [bad[3], HONEST[1], bad[0], HONEST[2]])
    assert caught.value.holders == (4, 1)


def test_errors_that_cancel_in_a_product_of_the_batch_are_seen():
    """Even where the liar makes a proof for them: it cannot know the weights before it has fixed the errors."""
    two, inverse = HONEST[1].integers, int(gmpy2.invert(3, PUBLIC.n**2))
    swapped = (two[0] * 3 % PUBLIC.n**2, two[1] * inverse % PUBLIC.n**2)
    proof = prove(_statement(PUBLIC, 2, HONEST[1].ciphertexts, swapped), PUBLIC.delta * SHARES[1].secret)
    with pytest.raises(threshold.LyingHolderError, match="holder 2"):
        threshold.combine(PUBLIC, [HONEST[0], replace(HONEST[1], integers=swapped, proof=proof), HONEST[2]])


def test_a_proof_is_bound_to_everything_that_it_speaks_of():
    one = _statement(PUBLIC, 2, (5, 7), (11, 13))
    others = [
        _statement(PUBLIC, 3, (5, 7), (11, 13)),
        _statement(OTHER, 2, (5, 7), (11, 13)),
        _statement(replace(PUBLIC, min_contributions=2), 2, (5, 7), (11, 13)),
        _statement(PUBLIC, 2, (5, 8), (11, 13)),
        _statement(PUBLIC, 2, (5, 7), (11, 14)),
        _statement(PUBLIC, 2, (5,), (7, 11, 13)),
        replace(one, context="another"),
        replace(one, base=3),
        replace(one, verification=3),
        replace(one, n=15),
    ]
    assert len({_digest(statement) for statement in (one, *others)}) == 11


def test_a_response_does_not_tell_the_share():
    """The tcpaillier mistake: a mask shorter than challenge times share, so that response // challenge is the share."""
    lengths = set()
    # To a share of a single bit the response must be as long as to any other.
    small, _ = _shared_out(PUBLIC.n, (P - 1) // 2 * ((Q - 1) // 2), [1], PUBLIC.base, 2)
    for share in (SHARES[0], threshold.KeyShare(small, 1, 1)):
        secret = share.public.delta * share.secret
        for _ in range(20):
            proof = share.partial(5).proof
            lengths.add(proof.response.bit_length())
            assert proof.response // proof.challenge != secret
            assert (proof.response // proof.challenge) >> 64 != secret >> 64
            # 128 bits more than challenge and share together.
            assert proof.response.bit_length() > 256 + 2 * PUBLIC.n.bit_length() + 128 - 64
    # Whatever the share, a uniform mask of 3·512 + 640 bits is seen, less a few leading zeros (2^-40 that one is shorter).
    assert min(lengths) > 2176 - 46
    assert max(lengths) <= 2177


# What is refused.


def test_pai_12_shares_that_count_twice_are_refused():
    with pytest.raises(ValueError, match="holder 2 more than once; each holder counts once"):
        threshold.combine(PUBLIC, [HONEST[0], HONEST[1], HONEST[1]])


def test_pai_12_partials_of_other_ciphertexts_are_refused():
    other = SHARES[2].partial(PUBLIC.encrypt([4, -2]))
    with pytest.raises(ValueError, match=r"partials of holders \[3\] are of other ciphertexts than that of holder 1"):
        threshold.combine(PUBLIC, [HONEST[0], HONEST[1], other])
    with pytest.raises(ValueError, match=r"partials of holders \[1, 2\] are of other ciphertexts than the one asked for"):
        threshold.combine(PUBLIC, [HONEST[0], HONEST[1], other], ciphertext=list(other.ciphertexts))
    for shape in ((3,), (2, 1, 7), None):
        with pytest.raises(ValueError, match="the partial of holder 1 has a shape that does not hold its 2 ciphertexts"):
            threshold.combine(PUBLIC, [replace(HONEST[0], shape=shape), *HONEST[1:3]])


def test_pai_12_partials_of_another_key_or_of_nobody_are_refused():
    with pytest.raises(ValueError, match=r"partials\[1\] is of the key"):
        threshold.combine(PUBLIC, [HONEST[0], OTHER_SHARES[1].partial(SUMS), HONEST[2]])
    with pytest.raises(ValueError, match=r"partials\[0\].holder = 6: must be at most 5"):
        threshold.combine(PUBLIC, [replace(HONEST[0], holder=6), HONEST[1], HONEST[2]])
    with pytest.raises(TypeError, match=r"partials\[0\] is a int: must be a Partial"):
        threshold.combine(PUBLIC, [3])
    with pytest.raises(ValueError, match="0 are too few, any 3 of 5"):
        threshold.combine(PUBLIC, [])


def test_a_share_that_is_not_of_the_key_is_refused():
    for secret in (SHARES[1].secret, SHARES[0].secret + 1, 0, -5, PUBLIC.n**2):
        with pytest.raises(ValueError, match="secret of holder 1 is") as caught:
            threshold.KeyShare(PUBLIC, 1, secret)
        assert secret in (0, -5) or str(secret) not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p": P - 2}, "is no safe prime"),
        ({"q": int(oracle("paillier")["raw"][0]["q"], 16)}, "q, a number of 256 bits, is no safe prime"),
        ({"q": P}, "p and q are equal"),
        ({"q": 23}, "of different lengths"),
        ({"holders": 101}, "holders = 101: must be at most 100"),
        ({"threshold": 6}, "threshold = 6: must be at most 5"),
        ({"min_contributions": 0}, "min_contributions = 0: must be at least 1"),
    ],
)
def test_what_cannot_be_dealt_is_refused(change, message):
    arguments = {"p": P, "q": Q, "holders": 5, "threshold": 3} | change
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        threshold.deal(**arguments)
    assert str(arguments["p"]) not in str(caught.value)


def test_a_key_with_damaged_numbers_is_refused():
    keys = PUBLIC.verification
    with pytest.raises(ValueError, match="verification has 4 numbers: must be one for each of holders = 5"):
        replace(PUBLIC, verification=keys[:4])
    for bad in (0, 1, PUBLIC.n, PUBLIC.n**2, -3):
        for change in ({"base": bad}, {"verification": (bad, *keys[1:])}):
            with pytest.raises(ValueError, match="no unit"):
                replace(PUBLIC, **change)


def contributions(count):
    return {f"client-{i}": PUBLIC.encrypt([i, 10]) for i in range(count)}


def test_pai_13_fewer_contributions_than_agreed_are_not_decrypted():
    with pytest.raises(ValueError, match="contributions has 3: holders decrypt sums of at least 4"):
        SHARES[0].partial_of(contributions(3), at_least=4)
    with pytest.raises(ValueError, match="contributions has 0"):
        SHARES[0].partial_of({})
    _, shares = threshold.deal(P, Q, holders=2, threshold=2, min_contributions=3)
    with pytest.raises(ValueError, match="decrypts sums of at least 3 contributions: hand them to partial_of"):
        shares[0].partial(SUMS)
    with pytest.raises(ValueError, match="contributions has 2: holders decrypt sums of at least 3"):
        shares[0].partial_of(contributions(2), at_least=1)
    assert shares[0].partial_of(contributions(3)).holder == 1


def test_pai_13_contributions_that_only_make_a_sum_look_larger_are_refused_by_name():
    alone = contributions(1)
    half = [contributions(2)["client-1"].integers[0], alone["client-0"].integers[1]]
    for again in (alone["client-0"], half):
        with pytest.raises(ValueError, match="client 'again' is the same ciphertext as client 'client-0'"):
            SHARES[0].partial_of(alone | {"again": again}, at_least=2)
    with pytest.raises(ValueError, match="client 'empty' was encrypted without randomness"):
        SHARES[0].partial_of(alone | {"empty": [1, 1 + 5 * PUBLIC.n]}, at_least=2)
    with pytest.raises(ValueError, match=r"client 'short' has shape \(1,\): must be \(2,\)"):
        SHARES[0].partial_of(alone | {"short": PUBLIC.encrypt([1])}, at_least=2)
    with pytest.raises(ValueError, match=r"client 'zero'.* is 0"):
        SHARES[0].partial_of(alone | {"zero": [0, 5]}, at_least=2)
    with pytest.raises(ValueError, match=r"contributions\[1\].*factor in common"):
        SHARES[0].partial_of([[2, 3], [4, P]], at_least=2)


def test_nothing_public_tells_the_factors():
    """The cryptovoting mistake: p'q' in the public key."""
    n, phi = PUBLIC.n, (P - 1) * (Q - 1)
    assert {field.name for field in fields(PUBLIC)} == {
        "n", "holders", "threshold", "base", "verification", "min_contributions", "public_key", "key_id",
    }  # fmt: skip
    numbers = [PUBLIC.base, *PUBLIC.verification, *HONEST[0].integers, HONEST[0].proof.challenge, HONEST[0].proof.response]
    for value in numbers:
        assert gmpy2.gcd(value, n) == 1
        assert value % (phi // 4) != 0
        assert gmpy2.gcd(value - 1, n) == 1


def test_pai_15_a_share_is_in_no_text_and_no_pickle():
    secret = SHARES[0].secret
    for text in (repr(SHARES[0]), str(SHARES[0]), repr(SHARES), repr(HONEST[0]), repr(PUBLIC)):
        assert str(secret) not in text
        assert hex(secret)[2:] not in text
    for make in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="a KeyShare cannot be copied or pickled"):
            make(SHARES[0])
    with pytest.raises(ValueError, match="is 0") as caught:
        SHARES[0].partial(0)
    assert str(secret) not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("bits", [64, 66, 256, 512])
def test_safe_primes_are_safe_and_their_product_has_the_bits_asked_for(bits: int) -> None:
    p, q = primes.safe_prime_pair(bits)
    assert p != q
    assert (p * q).bit_length() == bits == 2 * p.bit_length() == 2 * q.bit_length()
    for prime in (p, q):
        assert prime % 12 == 11
        assert gmpy2.is_prime(prime)
        assert gmpy2.is_prime((prime - 1) // 2)
    assert (gmpy2.gcd(p * q, (p - 1) * (q - 1)), gmpy2.gcd(p - 1, q - 1)) == (1, 2)
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
    assert [primes._is_safe(gmpy2.mpz(p)) for p in (half_only, whole_only, P)] == [False, False, True]
    # 2^340 = 1 mod 341 = 11·31: a test to the base 2 alone is passed.
    assert not primes._is_safe(gmpy2.mpz(683))


def test_a_shared_key_is_made_without_showing_its_primes() -> None:
    seen: list[int] = []
    public, shares = threshold.generate(2048, holders=3, threshold=2, min_contributions=2, progress=seen.append)
    assert (public.n.bit_length(), public.holders, public.threshold, public.min_contributions) == (2048, 3, 2, 2)
    assert seen
    given = [public.encrypt([5, -7]), public.encrypt([1, 1])]
    assert threshold.combine(public, [shares[i].partial_of(given) for i in (2, 0)]) == [6, -6]


Draw = random.Random
# Short numbers, and one proof at a time, so that a thousand take little time. Holder 2 lies.
SHORT, SHORT_SHARES = threshold.deal(*SMALL_SAFE, holders=4, threshold=1)
TOLD = refusals.forms([*SMALL_SAFE, *(share.secret for share in SHORT_SHARES)])


LIED = SHORT.encrypt([4, -2])
TRUE = SHORT_SHARES[1].partial(LIED)
CHALLENGE, RESPONSE = TRUE.proof.challenge, TRUE.proof.response
N_SMALL, SQUARE = SHORT.n, SHORT.n**2


def self_proved(integers: tuple[int, ...], exponent: int) -> Partial:
    """False results with the best proof that a liar can make for them."""
    return replace(TRUE, integers=integers, proof=prove(_statement(SHORT, 2, TRUE.ciphertexts, integers), exponent))


def moved(draw: Draw) -> tuple[int, ...]:
    """One result, multiplied by any unit but 1 and −1: a sign changes nothing."""
    results = list(TRUE.integers)
    place = draw.randrange(2)
    results[place] = results[place] * draw.randrange(2, SQUARE - 1) % SQUARE
    return tuple(results)


def replaced(draw: Draw, value: Any) -> Partial:
    results: list[Any] = list(TRUE.integers)
    results[draw.randrange(2)] = value
    return replace(TRUE, integers=tuple(results))


def other_secret(draw: Draw) -> Partial:
    secret = draw.randrange(1, SQUARE)
    results = tuple(int(gmpy2.powmod(c, 2 * SHORT.delta * secret, SQUARE)) for c in TRUE.ciphertexts)
    return self_proved(results, SHORT.delta * secret)


# Honest partial decryptions of other ciphertexts by holder 2, and of these by others.
ELSEWHERE = [SHORT_SHARES[1].partial(SHORT.encrypt([i, -i])) for i in range(100)]
BY_OTHERS = [SHORT_SHARES[i].partial(LIED) for i in (0, 2, 3) for _ in range(30)]


LIES: dict[str, Callable[[Draw], Partial]] = {
    "another holder's part": lambda draw: replace(draw.choice(BY_OTHERS), holder=2),
    "another share": other_secret,
    "another result": lambda draw: replace(TRUE, integers=moved(draw)),
    "another result, proved anew": lambda draw: self_proved(moved(draw), SHORT.delta * SHORT_SHARES[1].secret),
    "a result of other ciphertexts": lambda draw: replace(draw.choice(ELSEWHERE), ciphertexts=TRUE.ciphertexts),
    "a proof about other ciphertexts": lambda draw: replace(TRUE, proof=draw.choice(ELSEWHERE).proof),
    "zero, one, or no unit": lambda draw: replaced(
        draw, draw.choice([0, 1, N_SMALL, SMALL_SAFE[0] * draw.randrange(1, N_SMALL)])
    ),
    "out of range": lambda draw: replaced(draw, draw.choice([-1, 1]) * draw.randrange(SQUARE, SQUARE**2)),
    "no number": lambda draw: replaced(draw, draw.choice([None, 1.0, "1", b"1", True, [1]])),
    "too few or too many": lambda draw: replace(TRUE, integers=draw.choice([(), TRUE.integers[:1], TRUE.integers * 2])),
    "a response out of range": lambda draw: replace(
        TRUE, proof=Proof(CHALLENGE, draw.choice([-RESPONSE, RESPONSE + (1 << draw.randrange(840, 5000))]))
    ),
    "another response": lambda draw: replace(TRUE, proof=Proof(CHALLENGE, RESPONSE ^ (1 << draw.randrange(800)))),
    "another challenge": lambda draw: replace(TRUE, proof=Proof(CHALLENGE ^ (1 << draw.randrange(300)), RESPONSE)),
    "no proof": lambda draw: replace(
        TRUE, proof=draw.choice([None, 7, Proof(0, 0), Proof(1.0, 2.0), Proof("1", "2"), Proof(True, True)])
    ),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_pai_12_a_holder_who_lies_is_named_and_nothing_is_decrypted(lie: Callable[[Draw], Partial]) -> None:
    draw = random.Random(8)  # noqa: S311
    for _ in range(1000):
        said = refusals.refusal(lambda: threshold.combine(SHORT, [lie(draw)], LIED), TOLD, threshold.LyingHolderError)
        assert said == "holder 2: not the partial decryption of these ciphertexts with the holder's share; combine without it"
    assert threshold.combine(SHORT, [TRUE], LIED) == [4, -2]


def test_the_sign_of_a_result_is_no_lie_as_nothing_depends_on_it() -> None:
    """Only squares are proved, and only squares are combined."""
    for signs in ((1, -1), (-1, 1), (-1, -1)):
        results = tuple(s * c % SQUARE for s, c in zip(signs, TRUE.integers, strict=True))
        turned = self_proved(results, SHORT.delta * SHORT_SHARES[1].secret)
        assert threshold.combine(SHORT, [turned], LIED) == [4, -2]
