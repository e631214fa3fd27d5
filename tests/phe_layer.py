"""hubbub's Paillier under the names of ``phe.paillier``, so that phe's own tests can be run against it.

Ours: primes and keys, encryption, both kinds of randomiser, sums, products, inversion, decryption. phe's own stays
``EncodedNumber``, which turns a float into a whole number and a public exponent, and its command line. phe's whole numbers are
residues from 0 to n − 1 and ours lie around zero: that is all that is translated here, beside names and exponents.

As a program it reads the names of tests to leave out and prints, for each test of ``phe.tests`` in the modules named, nothing
or why it failed or was left out::

    echo '[]' | python phe_layer.py paillier_test math_test
"""

import json
import math
import random
import sys
import unittest
from collections import Counter, UserDict
from collections.abc import Collection, Iterator
from typing import Any, NoReturn

import phe
from phe import EncodedNumber

from hubbub.secagg import paillier, primes, textbook

DEFAULT_KEYSIZE = paillier.generate.__defaults__[0]
# Two keys of one length are enough where a test does not ask for new ones, and long primes take long to find.
_LONG, _TWO = 1024, 2
LEFT_OUT = "left out"


class PaillierPublicKey:
    def __init__(self, n: int, ours: paillier.PublicKey | None = None) -> None:
        self.ours = ours or paillier.PublicKey(n)
        self.n = self.ours.n
        self.g = self.n + 1
        self.nsquare = int(self.ours.n_square)
        # The plaintexts between are phe's sign of an overflow.
        self.max_int = self.n // 3 - 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PaillierPublicKey) and self.ours == other.ours

    def __hash__(self) -> int:
        return hash(self.ours)

    def __repr__(self) -> str:
        return f"<PaillierPublicKey {self.ours.key_id}>"

    def signed(self, residue: int) -> int:
        return residue - self.n if residue > self.n // 2 else residue

    def raw_encrypt(self, plaintext: int, r_value: int | None = None) -> int:
        if not isinstance(plaintext, int):
            raise TypeError(f"plaintext is a {type(plaintext).__name__}")
        if r_value is not None:
            return textbook.encrypt(self.n, plaintext % self.n, r_value)
        return int(self.ours.encrypt(self.signed(plaintext % self.n)).integers[0])

    def encrypt(self, value: Any, precision: float | None = None, r_value: int | None = None) -> "EncryptedNumber":
        encoded = value if isinstance(value, EncodedNumber) else EncodedNumber.encode(self, value, precision)
        made = EncryptedNumber(self, self.raw_encrypt(encoded.encoding, r_value), encoded.exponent)
        made._EncryptedNumber__is_obfuscated = r_value is None
        return made


class PaillierPrivateKey:
    def __init__(self, public_key: PaillierPublicKey, p: int, q: int) -> None:
        self.ours = paillier.PrivateKey.from_primes(p, q)
        if self.ours.public_key != public_key.ours:
            raise ValueError("p q is not the n of the public key")
        self.public_key, self.p, self.q = public_key, self.ours.p, self.ours.q

    @staticmethod
    def from_totient(public_key: PaillierPublicKey, totient: int) -> "PaillierPrivateKey":
        half = (public_key.n + 1 - totient) // 2
        distance = math.isqrt(half * half - public_key.n)
        return PaillierPrivateKey(public_key, half - distance, half + distance)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PaillierPrivateKey) and (self.p, self.q) == (other.p, other.q)

    def __hash__(self) -> int:
        return hash((self.p, self.q))

    def __repr__(self) -> str:
        return f"<PaillierPrivateKey {self.ours.public_key.key_id}>"

    def raw_decrypt(self, ciphertext: int) -> int:
        return int(self.ours.decrypt(self.ours.public_key.ciphertext(ciphertext))) % self.public_key.n

    def decrypt_encoded(self, number: "EncryptedNumber", encoding: type[EncodedNumber] | None = None) -> EncodedNumber:
        if not isinstance(number, EncryptedNumber):
            raise TypeError(f"number is a {type(number).__name__}")
        residue = int(self.ours.decrypt(number.ours)) % self.public_key.n
        return (encoding or EncodedNumber)(self.public_key, residue, number.exponent)

    def decrypt(self, number: "EncryptedNumber") -> Any:
        return self.decrypt_encoded(number).decode()


class PaillierPrivateKeyring(UserDict[PaillierPublicKey, PaillierPrivateKey]):
    def __init__(self, private_keys: list[PaillierPrivateKey] | None = None) -> None:
        super().__init__({key.public_key: key for key in private_keys or []})

    def add(self, private_key: PaillierPrivateKey) -> None:
        if not isinstance(private_key, PaillierPrivateKey):
            raise TypeError(f"private_key is a {type(private_key).__name__}")
        self[private_key.public_key] = private_key

    def decrypt(self, number: "EncryptedNumber") -> Any:
        return self[number.public_key].decrypt(number)


class EncryptedNumber:
    def __init__(self, public_key: PaillierPublicKey, ciphertext: int, exponent: int = 0) -> None:
        self.public_key, self.exponent = public_key, exponent
        self.__ciphertext = int(ciphertext)
        self.__is_obfuscated = False

    @property
    def ours(self) -> paillier.Ciphertext:
        """Checked anew each time, as what arrives from outside."""
        return self.public_key.ours.ciphertext(self.__ciphertext)

    def ciphertext(self, be_secure: bool = True) -> int:
        if be_secure and not self.__is_obfuscated:
            self.obfuscate()
        return self.__ciphertext

    def obfuscate(self) -> None:
        self.__ciphertext = int(self.ours.rerandomize().integers[0])
        self.__is_obfuscated = True

    def decrease_exponent_to(self, exponent: int) -> "EncryptedNumber":
        if exponent > self.exponent:
            raise ValueError("an exponent cannot be increased without decryption")
        return self._of(self.ours * EncodedNumber.BASE ** (self.exponent - exponent), exponent)

    def _of(self, made: paillier.Ciphertext, exponent: int) -> "EncryptedNumber":
        return EncryptedNumber(self.public_key, int(made.integers[0]), exponent)

    def __add__(self, other: Any) -> "EncryptedNumber":
        if not isinstance(other, EncryptedNumber | EncodedNumber):
            other = EncodedNumber.encode(self.public_key, other, max_exponent=self.exponent)
        exponent = min(self.exponent, other.exponent)
        mine, theirs = self.decrease_exponent_to(exponent), other.decrease_exponent_to(exponent)
        if isinstance(theirs, EncryptedNumber):
            return self._of(mine.ours + theirs.ours, exponent)
        if theirs.public_key != self.public_key:
            raise ValueError("encoded for another key")
        return self._of(mine.ours + self.public_key.signed(theirs.encoding), exponent)

    __radd__ = __add__

    def __mul__(self, other: Any) -> "EncryptedNumber":
        factor = other if isinstance(other, EncodedNumber) else EncodedNumber.encode(self.public_key, other)
        return self._of(self.ours * self.public_key.signed(factor.encoding), self.exponent + factor.exponent)

    __rmul__ = __mul__

    def __neg__(self) -> "EncryptedNumber":
        return self._of(-self.ours, self.exponent)

    def __sub__(self, other: Any) -> "EncryptedNumber":
        if isinstance(other, EncryptedNumber) and other.exponent == self.exponent:
            return self._of(self.ours - other.ours, self.exponent)
        return self + other * -1

    def __rsub__(self, other: Any) -> "EncryptedNumber":
        return -self + other

    def __truediv__(self, divisor: float) -> "EncryptedNumber":
        return self * (1 / divisor)


def generate_paillier_keypair(
    private_keyring: PaillierPrivateKeyring | None = None, n_length: int = DEFAULT_KEYSIZE
) -> tuple[PaillierPublicKey, PaillierPrivateKey]:
    public_key, private_key = _pair(n_length)
    if private_keyring is not None:
        private_keyring.add(private_key)
    return public_key, private_key


_made: Counter[int] = Counter()
_kept: dict[tuple[int, int], tuple[PaillierPublicKey, PaillierPrivateKey]] = {}


def _pair(bits: int) -> tuple[PaillierPublicKey, PaillierPrivateKey]:
    place = (bits, _made[bits] % _TWO if bits >= _LONG else _made[bits])
    _made[bits] += 1
    if place not in _kept:
        # The shortest primes that fit short exponents and have their two top bits set have 8 bits.
        ours = paillier.PrivateKey.from_primes(*((11, 13) if bits < 16 else primes.prime_pair(bits)))
        public_key = PaillierPublicKey(ours.public_key.n, ours.public_key)
        _kept[place] = public_key, PaillierPrivateKey(public_key, ours.p, ours.q)
    return _kept[place]


def _forbidden(*arguments: object) -> NoReturn:
    raise AssertionError("phe's own arithmetic was used, not ours")


class _Results(unittest.TestResult):
    """What came of each test, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        self.found[test.id()] = ""

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        self.found[test.id()] = self._exc_info_to_string(err, test)

    addFailure = addError  # noqa: N815

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self.found[test.id()] = f"skipped: {reason}"


def take_the_place_of_phe() -> None:
    """In this process, ``phe`` has our cryptosystem from here on."""
    sys.modules["phe.paillier"] = phe.paillier = sys.modules[__name__]
    for name in (
        "EncryptedNumber",
        "PaillierPrivateKey",
        "PaillierPrivateKeyring",
        "PaillierPublicKey",
        "generate_paillier_keypair",
    ):
        setattr(phe, name, globals()[name])
    for name in ("powmod", "mulmod", "invert", "getprimeover", "isqrt"):
        setattr(phe.util, name, _forbidden)


def outcomes(names: list[str], left_out: Collection[str] = ()) -> dict[str, str]:
    """Nothing or why it failed, for every test below these names, those whose class could not be set up included."""
    # Some tests of phe draw numbers at random; which ones is not to change from run to run.
    random.seed(0)
    found = list(_tests(unittest.defaultTestLoader.loadTestsFromNames([f"phe.tests.{name}" for name in names])))
    results = _Results()
    unittest.TestSuite(test for test in found if short(test.id()) not in left_out).run(results)
    ours = {short(name): outcome for name, outcome in results.found.items()}
    return {short(test.id()): LEFT_OUT for test in found} | ours


def short(name: str) -> str:
    return name.removeprefix("phe.tests.")


def _tests(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _tests(test)
        else:
            yield test


if __name__ == "__main__":
    take_the_place_of_phe()
    print(json.dumps(outcomes(sys.argv[1:], json.load(sys.stdin))))  # noqa: T201
