"""hubbub's Paillier under the names of ``phe.paillier``, so that phe's own tests can be run against it.

Ours: primes and keys, encryption, both kinds of randomizer, sums, products, inversion, decryption. phe's own stays
``EncodedNumber``, which turns a float into a whole number and a public exponent. phe's whole numbers are residues mod n from 0,
and ours lie around zero: that is all that is translated here, beside names and exponents.
"""

import random
import sys
import unittest
from typing import Any, NoReturn

import phe
from phe import EncodedNumber

from hubbub.secagg import paillier, primes, textbook

# Short, as the tests run six times.
DEFAULT_KEYSIZE = 1024


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


def generate_paillier_keypair(n_length: int = DEFAULT_KEYSIZE) -> tuple[PaillierPublicKey, PaillierPrivateKey]:
    ours = paillier.PrivateKey.from_primes(*primes.prime_pair(n_length))
    public_key = PaillierPublicKey(ours.public_key.n, ours.public_key)
    return public_key, PaillierPrivateKey(public_key, ours.p, ours.q)


def _forbidden(*arguments: object) -> NoReturn:
    raise AssertionError("phe's own arithmetic was used, not ours")


def take_the_place_of_phe() -> None:
    """In this process, ``phe`` has our cryptosystem from here on."""
    sys.modules["phe.paillier"] = phe.paillier = sys.modules[__name__]
    for name in (
        "EncryptedNumber",
        "PaillierPrivateKey",
        "PaillierPublicKey",
        "generate_paillier_keypair",
    ):
        setattr(phe, name, globals()[name])
    for name in ("powmod", "mulmod", "invert", "getprimeover", "isqrt"):
        setattr(phe.util, name, _forbidden)


def failures(names: list[str]) -> tuple[int, list[str]]:
    """The number of tests below these names of phe's, and why some failed."""
    # Some of them draw numbers at random; which ones is not to change from run to run.
    random.seed(0)
    suite = unittest.defaultTestLoader.loadTestsFromNames([f"phe.tests.{name}" for name in names])
    results = unittest.TestResult()
    suite.run(results)
    return results.testsRun, [why for _, why in (*results.errors, *results.failures)]
