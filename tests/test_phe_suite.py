"""phe's own tests, from its installed package, pass with our cryptosystem behind phe's names.

They run in processes of their own, so that no other test meets the exchanged names. What is left out tests nothing of ours:

- ``EncodedNumber`` is phe's, with or without our keys: it turns floats into whole numbers and back. Its tests that encrypt run.
- ``util_test`` tests phe's helper functions (powers, roots, primes, base64), which ours does without: while the others run,
  phe's powers, inverses and primes are out of order.
- The help text of phe's command is phe's. Its other commands run, keys and encrypted numbers in files included.
"""

import json
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import phe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.secagg.paillier import PrivateKey
from phe_layer import LEFT_OUT
from small_keys import plain, small

HERE = Path(__file__).parent
MODULES = ["paillier_test", "math_test", "cli_test", "util_test"]
# What phe 1.5.0 has, so that none is lost unseen.
TESTS = {
    "cli_test.TestConsoleAddition": 10,
    "cli_test.TestConsoleBasics": 4,
    "cli_test.TestConsoleEncryption": 7,
    "cli_test.TestConsoleMultiplication": 3,
    "cli_test.TestFuzz": 5,
    "math_test.ArithmeticTest": 2,
    "paillier_test.PaillierGeneric": 5,
    "paillier_test.PaillierTestEncodedNumber": 20,
    "paillier_test.PaillierTestEncodedNumberAlternativeBaseLarge": 20,
    "paillier_test.PaillierTestEncodedNumberAlternativeBaseOdd": 20,
    "paillier_test.PaillierTestEncodedNumberAlternativeBaseSmall": 20,
    "paillier_test.PaillierTestEncodedNumberDefaultBase": 23,
    "paillier_test.PaillierTestEncryptedNumber": 71,
    "paillier_test.PaillierTestRawEncryption": 7,
    "paillier_test.TestIssue62": 1,
    "paillier_test.TestKeyring": 1,
    "util_test.Base64UtilTest": 2,
    "util_test.PaillierUtilFallbacksTest": 8,
    "util_test.PaillierUtilTest": 5,
}
ENCODING = """
    testDecodeCorruptEncodedNumber testDecodeInt0 testDecodeInt1 testDecodeWithOverflowEncodedNumber testEncodeFloat0
    testEncodeFloatDecodeFloat0 testEncodeFloatDecodeFloat1 testEncodeInt0 testEncodeInt1 testEncodeIntDecodeInt2
    testEncodeIntDecodeInt3 testEncodeIntDecodeInt4 testEncodeIntDecodeInt5 testEncodeIntTooLargeNegative
    testEncodeIntTooLargePositive testEncodedDecreaseExponentTo0 testEncodedDecreaseExponentTo1
    testEncodedDecreaseInvalidExponent
""".split()
PRECISION = ["testAutomaticPrecisionAgreesWithEpsilon", "testManualPrecision0", "testManualPrecision1"]
BASES = ["", "AlternativeBaseLarge", "AlternativeBaseOdd", "AlternativeBaseSmall", "DefaultBase"]
HELPERS = ["testInvert", "testInvertNonPrime", "testIsqrt", "testPowMod", "testPrimeOverN"]
FALLBACKS = [*HELPERS, "testExtendedEuclieanAlgorithm", "testIsPrime", "testMillerRabin"]
NOT_OURS = [
    *[f"paillier_test.PaillierTestEncodedNumber{base}.{name}" for base in BASES for name in ENCODING],
    *[f"paillier_test.PaillierTestEncodedNumberDefaultBase.{name}" for name in PRECISION],
    *[f"util_test.PaillierUtilTest.{name}" for name in HELPERS],
    *[f"util_test.PaillierUtilFallbacksTest.{name}" for name in FALLBACKS],
    "util_test.Base64UtilTest.testEncodeDecodePositiveNonZeroInt",
    "util_test.Base64UtilTest.testFailToEncodeZero",
    "cli_test.TestConsoleBasics.test_cli_includes_help",
]

# Each breaks one thing that phe's users rely on.
BROKEN = """
import json
import phe_layer
from hubbub.secagg import textbook
from hubbub.secagg.paillier import Ciphertext, PrivateKey, PublicKey

# Shorter keys, as all is run six times.
phe_layer.DEFAULT_KEYSIZE, phe_layer.generate_paillier_keypair.__defaults__ = 1024, (None, 1024)
decrypt, encrypt, multiply = PrivateKey.decrypt, PublicKey.encrypt, Ciphertext.__mul__

def known(self, value):
    return self.ciphertext(textbook.encrypt(self.n, value % self.n, 1))

def mod_n(self, other):
    other = other if isinstance(other, Ciphertext) else known(self.public_key, other)
    return Ciphertext(self.public_key, (), (self.integers[0] * other.integers[0] % self.public_key.n,))

def twice(self, other):
    return multiply(self, abs(other))

breaks = {
    "decrypts one too many": (PrivateKey, "decrypt", lambda self, sums: decrypt(self, sums) + 1),
    "adds mod n": (Ciphertext, "__add__", mod_n),
    "takes a negative factor for a positive one": (Ciphertext, "__mul__", twice),
    "encrypts without randomness": (PublicKey, "encrypt", known),
    "keeps its randomness": (Ciphertext, "rerandomize", lambda self: self),
}
phe_layer.take_the_place_of_phe()
names = ["paillier_test.PaillierTestRawEncryption", "paillier_test.PaillierTestEncryptedNumber"]
failed = {}
for what, (owner, name, broken) in breaks.items():
    whole = getattr(owner, name)
    setattr(owner, name, broken)
    failed[what] = sum(outcome != "" for outcome in phe_layer.outcomes(names).values())
    setattr(owner, name, whole)
failed["whole again"] = sum(outcome != "" for outcome in phe_layer.outcomes(names).values())
print(json.dumps(failed))
"""


@cache
def outcomes() -> dict[str, str]:
    """What came of each test of phe, by name."""
    command = [sys.executable, str(HERE / "phe_layer.py"), *MODULES]
    done = subprocess.run(command, input=json.dumps(NOT_OURS), capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_no_test_of_phe_is_lost() -> None:
    """A later phe may have more; they run too."""
    found = Counter(name.rpartition(".")[0] for name in outcomes())
    assert {name: min(found[name], TESTS[name]) for name in TESTS} == TESTS


@pytest.mark.slow
def test_the_tests_that_are_left_out_exist_and_no_other_is() -> None:
    assert len(set(NOT_OURS)) == len(NOT_OURS)
    assert sorted(name for name, outcome in outcomes().items() if outcome == LEFT_OUT) == sorted(NOT_OURS)


@pytest.mark.slow
def test_all_others_pass() -> None:
    failed = {name: outcome for name, outcome in outcomes().items() if outcome not in ("", LEFT_OUT)}
    assert not failed, "\n".join(f"{name}: {outcome}" for name, outcome in failed.items())
    assert len(outcomes()) - len(NOT_OURS) >= 125


def test_they_fail_where_the_cryptosystem_is_wrong() -> None:
    command = [sys.executable, "-c", BROKEN]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True)
    failed = json.loads(done.stdout.splitlines()[-1])
    assert failed.pop("whole again") == 0
    assert min(failed.values()) > 0, failed


@pytest.mark.parametrize("private", [small(), plain()], ids=["short", "full"])
@settings(max_examples=50, deadline=None)
@given(a=st.integers(-(2**58), 2**58), b=st.integers(-(2**58), 2**58))
def test_phe_itself_reads_what_we_encrypt_and_we_read_what_it_encrypts(private: PrivateKey, a: int, b: int) -> None:
    ours, n = private.public_key, private.public_key.n
    theirs = phe.PaillierPublicKey(n)
    reader = phe.PaillierPrivateKey(theirs, private.p, private.q)
    (c,) = map(int, ours.encrypt(a).integers)
    d = theirs.raw_encrypt(b % n)
    assert reader.raw_decrypt(c) == a % n
    assert private.decrypt(ours.ciphertext(d)) == b
    assert private.decrypt(ours.ciphertext(c) + ours.ciphertext(d) * 3) == a + 3 * b
    assert reader.decrypt(phe.EncryptedNumber(theirs, c) + phe.EncryptedNumber(theirs, d) * 3) == a + 3 * b


@pytest.mark.parametrize("name", ["PaillierPublicKey", "generate_paillier_keypair"])
def test_other_tests_meet_the_names_of_phe_as_they_are(name: str) -> None:
    assert getattr(phe, name) is getattr(phe.paillier, name)
    assert getattr(phe, name).__module__ == "phe.paillier"
