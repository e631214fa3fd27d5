"""Paillier adds what it cannot read, reads back exactly, and refuses what is no ciphertext.

The textbook form gives the published numbers, and nothing trains on it.
"""

import copy
import math
import pickle
from typing import Any

import gmpy2
import numpy as np
import phe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import oracle
from hubbub.errors import HubbubError
from hubbub.secagg import packing, paillier, randomizers, textbook, threshold
from hubbub.secagg.paillier import PrivateKey, PublicKey
from small_keys import VECTORS, iso, number, other, plain, small

RAW, DJN = VECTORS["raw"], VECTORS["djn"]


def signed(m: int, n: int) -> int:
    return m - n if m > n // 2 else m


# Vectors.


@pytest.mark.parametrize("key", RAW, ids=lambda key: str(key["bits"]))
def test_reference_ciphertexts_are_read(key: dict[str, Any]) -> None:
    private = PrivateKey.from_primes(number(key["p"]), number(key["q"]))
    n = private.public_key.n
    assert n == number(key["n"])
    cases = [case for case in key["encrypt"] + key["ops"] if "m" in case and case["c"] != "0x0"]
    arrived = private.public_key.ciphertext([number(case["c"]) for case in cases])
    assert private.decrypt(arrived) == [signed(number(case["m"]), n) for case in cases]


@pytest.mark.parametrize("key", RAW, ids=lambda key: str(key["bits"]))
def test_reference_operations_come_out(key: dict[str, Any]) -> None:
    """Adding and multiplying make the very integers of phe, for they draw no randomness."""
    public = PublicKey(number(key["n"]))
    c = public.ciphertext([number(case["c"]) for case in key["encrypt"]])
    one = [public.ciphertext(int(x)) for x in c.integers]
    checked = 0
    for case in key["ops"]:
        if case["op"] == "add":
            made = one[case["a"]] + one[case["b"]]
        elif case["op"] == "add_const":
            made = one[case["a"]] + int(case["const"])
        elif case["op"] == "mul_const":
            made = one[case["a"]] * int(case["const"])
        elif case["op"] == "sum_all":
            made = sum(one[:-1])  # the last has r = 1
        else:
            continue
        checked += 1
        assert made.integers == (number(case["c"]),), case["op"]
    assert checked == 16


@pytest.mark.parametrize("key", DJN, ids=lambda key: str(key["bits"]))
def test_reference_short_exponents_come_out(key: dict[str, Any]) -> None:
    n = number(key["n"])
    base = randomizers.base_from(n, number(key["x"]))
    assert base == number(key["hs"])
    table = randomizers.Table(base, n, key["exponent_bits"])
    private = PrivateKey.from_primes(number(key["p"]), number(key["q"]))
    assert private.public_key.short_exponents
    for case in key["encrypt"]:
        m, c = number(case["m"]), number(case["c"])
        assert (1 + m * n) * table.power(number(case["a"])) % n**2 == c
        assert private.decrypt(private.public_key.ciphertext(c)) == signed(m, n)


def test_the_key_of_the_iso_standard_takes_the_textbook_form_and_adds() -> None:
    vector, private = oracle("paillier_iso_18033_6"), iso()
    public = private.public_key
    assert not public.short_exponents
    assert private.decrypt(public.ciphertext(number(vector["c"])) + public.encrypt(5)) == number(vector["m"]) + 5


@pytest.mark.parametrize("private", [small(), plain()], ids=["short", "full"])
def test_what_we_encrypt_is_read_by_the_definition(private: PrivateKey) -> None:
    n = private.public_key.n
    for m in (0, 1, 12345, n // 2):
        for sign in (1, -1):
            (c,) = private.public_key.encrypt(sign * m).integers
            assert textbook.decrypt(private.p, private.q, int(c)) == sign * m % n


@pytest.mark.parametrize("private", [small(), plain()], ids=["short", "full"])
@settings(max_examples=50, deadline=None)
@given(a=st.integers(-(2**58), 2**58), b=st.integers(-(2**58), 2**58))
def test_phe_itself_reads_what_we_encrypt_and_we_read_what_it_encrypts(private: PrivateKey, a: int, b: int) -> None:
    ours, n = private.public_key, private.public_key.n
    theirs = phe.PaillierPublicKey(n)
    reader = phe.PaillierPrivateKey(theirs, private.p, private.q)
    (c,) = map(int, ours.encrypt(a).integers)
    d = theirs.raw_encrypt(b % n)
    assert (reader.raw_decrypt(c), private.decrypt(ours.ciphertext(d))) == (a % n, b)
    assert private.decrypt(ours.ciphertext(c) + ours.ciphertext(d) * 3) == a + 3 * b
    assert reader.decrypt(phe.EncryptedNumber(theirs, c) + phe.EncryptedNumber(theirs, d) * 3) == a + 3 * b


# Laws.


def test_threads_decrypt_the_same_numbers_in_the_same_order() -> None:
    private, values = small(), list(range(-10, 13))
    c = private.public_key.encrypt(values)
    for threads in (1, 2, 3, 23, 64):
        assert private.decrypt(c, threads=threads) == values


def test_everything_up_to_half_of_n_comes_back_and_nothing_above_is_taken() -> None:
    private = small()
    public, most = private.public_key, private.public_key.n // 2
    assert private.decrypt(public.encrypt([most, -most])) == [most, -most]
    for value in (most + 1, -most - 1, public.n, 2**600):
        for refuse in (public.encrypt, lambda v: public.encrypt(1) + v, lambda v: public.encrypt(1) * v):
            with pytest.raises(ValueError, match="does not fit"):
                refuse(value)


def test_short_exponents_are_drawn_from_all_of_half_the_bits_of_n(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(randomizers.secrets, "randbits", lambda bits: asked.append(bits) or 3)
    public = small().public_key
    base = randomizers.base_from(public.n, randomizers.hashed_unit(public.n))
    assert (public.randomizers(2), asked) == ([pow(base, 3, public.n**2)] * 2, [256, 256])


# Refusals.


def test_keys_do_not_mix() -> None:
    ours, theirs = small().public_key, other().public_key
    c = theirs.encrypt([1, 2])
    with pytest.raises(ValueError, match=f"under the key .{theirs.key_id}., not under .{ours.key_id}"):
        ours.encrypt([1, 2]) + c
    with pytest.raises(ValueError, match="not under"):
        small().decrypt(c)
    with pytest.raises(ValueError, match=r"client 'c7': encrypted under the key .*, not under"):
        ours.ciphertext([5], key_id=theirs.key_id, name="client 'c7'")
    with pytest.raises(ValueError, match="not under"):
        ours.ciphertext(c)
    assert ours.ciphertext([5], key_id=ours.key_id).integers == (5,)
    assert ours.ciphertext(ours.encrypt([[1], [2]])).shape == (2, 1)


@pytest.mark.parametrize(
    "value", [1.0, True, "1", [1, 2.0], [1, [2, 3]], [[1, 2], [3]], [True], np.array([1.0]), np.bool_(1)], ids=repr
)
def test_pai_5_what_is_no_whole_number_is_refused(value: Any) -> None:
    public = small().public_key
    c = public.encrypt(1)
    for use in (public.encrypt, public.ciphertext, lambda v: c + v, lambda v: c - v, lambda v: c * v):
        with pytest.raises(TypeError, match=r"whole number|one shape"):
            use(value)


def test_a_value_that_is_refused_is_not_shown() -> None:
    public = small().public_key
    secret = 10**200 + 123456789
    with pytest.raises(ValueError, match=r"values\[1\] has 665 bits") as refusal:
        public.encrypt([1, secret])
    assert "123456789" not in str(refusal.value)
    with pytest.raises(TypeError) as refusal_of_type:
        public.encrypt([0.123456789])
    assert "123456789" not in str(refusal_of_type.value)


# Keys.


def test_pai_6_small_keys_are_refused_and_3072_bits_are_the_default() -> None:
    for bits in (0, 512, 1024, 2047, 2046):
        with pytest.raises(ValueError, match=f"bits = {bits}: must be at least 2048"):
            paillier.generate(bits)
        with pytest.raises(ValueError, match=f"bits = {bits}: must be at least 2048"):
            threshold.generate(bits, holders=3, threshold=2)
    with pytest.raises(ValueError, match="must be even"):
        paillier.generate(2049)
    with pytest.raises(TypeError, match=r"bits = 2048\.0"):
        paillier.generate(2048.0)  # type: ignore[arg-type]
    assert (paillier.generate.__defaults__, packing.Packing().key_bits) == ((3072,), 3072)


def test_a_generated_key_has_the_form_that_its_encryption_rests_on() -> None:
    """Exact length (LightPHE), both primes 3 mod 4 (pailliercryptolib tests p for q), gcd(p − 1, q − 1) = 2."""
    private = paillier.generate(2048)
    p, q, public = private.p, private.q, private.public_key
    assert public.n == p * q
    assert (public.n.bit_length(), p.bit_length(), q.bit_length()) == (2048, 1024, 1024)
    assert p % 4 == q % 4 == 3
    assert gmpy2.is_prime(p, 25)
    assert gmpy2.is_prime(q, 25)
    assert (math.gcd(p - 1, q - 1), math.gcd(public.n, (p - 1) * (q - 1))) == (2, 1)
    assert abs(p - q).bit_length() >= 924
    assert public.short_exponents
    assert private.decrypt(public.encrypt([3, -4]) + public.encrypt([-5, 1])) == [-2, -3]


@pytest.mark.parametrize(
    ("p", "q", "message"),
    [
        (11, 11, "the same number"),
        (11, 17, "4 and 5 bits: must be of equal length"),
        (2, 3, "factor in common"),
        (9, 11, "must both be prime"),
        (11, 15, "must both be prime"),
        (-11, 13, "must both be prime"),
        (0, 0, "the same number"),
    ],
)
def test_pai_6_numbers_that_make_no_key_are_refused(p: int, q: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrivateKey.from_primes(p, q)


def test_pai_6_primes_of_a_large_key_that_lie_close_are_refused_unseen() -> None:
    p = number(RAW[1]["p"])
    q = int(gmpy2.next_prime(p))
    with pytest.raises(ValueError, match="too close") as refusal:
        PrivateKey.from_primes(p, q)
    assert str(p)[:12] not in str(refusal.value)


@pytest.mark.parametrize("n", [0, 1, -15, 16, 13, 121, 3**5, 2**61 - 1])
def test_pai_6_a_modulus_that_cannot_be_one_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match="product of two different odd primes"):
        PublicKey(n)


def test_pai_6_a_public_key_that_arrives_is_large_and_has_no_small_factor() -> None:
    n = number(RAW[1]["n"])
    assert PublicKey.received(n).key_id == PublicKey(n).key_id
    with pytest.raises(ValueError, match="n has 512 bits"):
        PublicKey.received(number(RAW[0]["n"]))
    with pytest.raises(ValueError, match="n has the factor 65521"):
        PublicKey.received(65521 * (2**2203 - 1))
    with pytest.raises(TypeError, match="short_exponents = 'yes'"):
        PublicKey(n, "yes")  # type: ignore[arg-type]


def test_pai_15_a_secret_key_is_in_no_text_copy_or_pickle() -> None:
    private = small()
    public = private.public_key
    shown = [str(private), f"{private}", *map(repr, (private, [private], public, public.encrypt(1)))]
    for secret in (private.p, private.q):
        for text in (str(secret), hex(secret)[2:]):
            assert not any(text in line for line in shown)
    for copies in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            copies(private)


P, Q = 293, 433
PQ = P * Q


def test_the_published_encryptions_come_out_and_are_read_back() -> None:
    """Those of the reference, the regression number of phe, and the numbers of the ISO standard."""
    vectors = [key | case for key in RAW for case in key["encrypt"]]
    for vector in (*vectors, VECTORS["tiny"], oracle("paillier_iso_18033_6")):
        p, q, m, r, c = (int(str(vector[name]), 0) for name in "pqmrc")
        assert textbook.encrypt(p * q, m, r) == c
        assert textbook.decrypt(p, q, c) == textbook.decrypt(q, p, c) == m


@pytest.mark.parametrize("key", RAW, ids=lambda key: str(key["bits"]))
def test_the_reference_sums_and_products_are_read_and_the_invalid_ciphertexts_are_refused(key: dict[str, Any]) -> None:
    p, q = number(key["p"]), number(key["q"])
    for case in key["ops"]:
        if "m" in case:
            assert textbook.decrypt(p, q, number(case["c"])) == number(case["m"])
    for case in key["invalid_ciphertexts"]:
        with pytest.raises(ValueError, match="c "):
            textbook.decrypt(p, q, number(case["c"]))


@settings(max_examples=100, deadline=None)
@given(m=st.integers(0, PQ - 1), r=st.integers(1, PQ - 1).filter(lambda r: r % P and r % Q))
def test_encryption_is_its_definition_in_python_integers(m: int, r: int) -> None:
    c = textbook.encrypt(PQ, m, r)
    assert type(c) is int
    assert c == pow(1 + PQ, m, PQ * PQ) * pow(r, PQ, PQ * PQ) % (PQ * PQ)
    assert textbook.decrypt(P, Q, c) == m


def test_a_proof_computed_wrongly_does_not_leave_since_it_would_factor_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    private, right, calls = PrivateKey.from_primes(1_000_003, 1_000_039), gmpy2.powmod_sec, iter([1, 0])
    monkeypatch.setattr(gmpy2, "powmod_sec", lambda base, exponent, prime: right(base, exponent, prime) ^ next(calls))
    with pytest.raises(HubbubError, match="computed wrongly, and is not sent"):
        private.identified(b"now")
