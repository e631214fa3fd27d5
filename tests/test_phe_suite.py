"""phe's own tests of encryption and arithmetic, from its installed package, pass with our cryptosystem behind phe's names.

They run in a process of their own, so that no other test meets the exchanged names. phe's powers, inverses and primes
are out of order there.
"""

import json
import subprocess
import sys
from pathlib import Path

import phe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.secagg.paillier import PrivateKey
from small_keys import plain, small

HERE = Path(__file__).parent
# Each breaks one thing that phe's users rely on.
BROKEN = """
import json
import phe_layer
from hubbub.secagg import textbook
from hubbub.secagg.paillier import Ciphertext, PrivateKey, PublicKey

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
    failed[what] = len(phe_layer.failures(names)[1])
    setattr(owner, name, whole)
print(json.dumps([failed, *phe_layer.failures(names)]))
"""


def test_phes_tests_pass_and_fail_where_the_cryptosystem_is_wrong() -> None:
    command = [sys.executable, "-c", BROKEN]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True)
    broken, count, failed = json.loads(done.stdout.splitlines()[-1])
    assert not failed, "\n".join(failed)
    # What phe 1.5.0 has.
    assert count >= 78
    assert min(broken.values()) > 0, broken


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
