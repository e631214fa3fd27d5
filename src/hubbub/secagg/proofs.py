"""Zero-knowledge proofs that a partial decryption was made with the holder's share.

A holder i raised every ciphertext c to 2·Δ·sᵢ, and v^(Δ·sᵢ) is public. Random weights join all ciphertexts of a batch to one C
and all results to one P, so that a batch costs one proof; then it shows that P² to the base C⁴ and v^(Δ·sᵢ) to the base v have
the same logarithm. The challenge is SHA-256 over everything: key, holder, ciphertexts, results, commitments. The response is
masked by 128 bits more than the share and the challenge have together: neither its size nor its highest bits reveal the share.

Source: Chaum & Pedersen 1992; Shoup 2000, "Practical threshold signatures", section 2.2 (unknown order, mask); Damgård, Jurik &
Nielsen 2010, https://doi.org/10.1007/s10207-010-0119-9, section 4.1; Bellare, Garay & Rabin 1998 (random weights, 128 bits).
"""

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import gmpy2
from gmpy2 import mpz

_CHALLENGE_BITS = 256
_WEIGHT_BYTES = 16
# The distance of a response from one that does not depend on the share is at most 2⁻¹²⁸.
_HIDING_BITS = 128


@dataclass(frozen=True)
class Proof:
    """A challenge and the response to it, both public."""

    challenge: int
    response: int


@dataclass(frozen=True)
class Statement:
    """The claim that ``results`` are the ``ciphertexts`` to twice the logarithm of ``verification`` to the base ``base``.

    ``context`` names key and holder. Everything else is a unit mod n²: ``base`` a random square, ``verification`` its power to
    the holder's secret exponent, which has at most ``secret_bits`` bits; there is at least one ciphertext.
    """

    context: str
    n: int
    base: int
    verification: int
    ciphertexts: tuple[int, ...]
    results: tuple[int, ...]
    secret_bits: int

    @property
    def mask_bits(self) -> int:
        """The length of the mask that hides the secret in a response."""
        least = self.secret_bits + _CHALLENGE_BITS + _HIDING_BITS
        return max(least, 3 * self.n.bit_length() + 2 * _CHALLENGE_BITS + _HIDING_BITS)


def prove(statement: Statement, secret: int) -> Proof:
    """A proof by the owner of the secret exponent, with fresh randomness from the operating system."""
    n_square = mpz(statement.n) ** 2
    digest = _digest(statement)
    source = gmpy2.powmod(_joined(statement.ciphertexts, digest, n_square), 4, n_square)
    mask = secrets.randbits(statement.mask_bits)
    commitments = [gmpy2.powmod_sec(base, mask, n_square) for base in (source, mpz(statement.base))]
    challenge = _challenge(digest, commitments)
    return Proof(challenge, mask + challenge * secret)


def holds(statement: Statement, proof: Proof) -> bool:
    """Whether a proof proves its statement; malformed proofs do not."""
    if not isinstance(proof, Proof) or type(proof.challenge) is not int or type(proof.response) is not int:
        return False
    if not (0 <= proof.challenge < 2**_CHALLENGE_BITS and 0 <= proof.response < 2 ** (statement.mask_bits + 1)):
        return False
    n_square = mpz(statement.n) ** 2
    product = mpz(1)
    for result in statement.results:
        if type(result) is not int or not 0 < result < n_square:
            return False
        product = product * result % statement.n
    # One gcd for all: a product is a unit exactly when each factor is.
    if gmpy2.gcd(product, statement.n) != 1:
        return False
    digest = _digest(statement)
    # Squares, in which no element of small order is left.
    source = gmpy2.powmod(_joined(statement.ciphertexts, digest, n_square), 4, n_square)
    result = gmpy2.powmod(_joined(statement.results, digest, n_square), 2, n_square)
    commitments = [
        gmpy2.powmod(base, proof.response, n_square) * gmpy2.powmod(power, -proof.challenge, n_square) % n_square
        for base, power in ((source, result), (mpz(statement.base), mpz(statement.verification)))
    ]
    return _challenge(digest, commitments) == proof.challenge


def _joined(units: Sequence[int], digest: bytes, modulus: mpz) -> mpz:
    """The product of all units to the powers of weights that are hashed from the statement.

    All units are raised at once: the product so far is squared between one bit of the weights and the next.
    """
    drawn = hashlib.shake_256(b"weights" + digest).digest(_WEIGHT_BYTES * len(units))
    weights = [int.from_bytes(drawn[i : i + _WEIGHT_BYTES], "big") for i in range(0, len(drawn), _WEIGHT_BYTES)]
    weighed = list(zip(map(mpz, units), weights, strict=True))
    joined = mpz(1)
    for bit in reversed(range(8 * _WEIGHT_BYTES)):
        joined = joined * joined % modulus
        for unit, weight in weighed:
            if weight >> bit & 1:
                joined = joined * unit % modulus
    return joined


def _digest(statement: Statement) -> bytes:
    """An unambiguous SHA-256 of a statement."""
    context = statement.context.encode()
    hashed = hashlib.sha256(b"hubbub partial decryption 1\0" + len(context).to_bytes(8, "big") + context)
    _take(hashed, (statement.n, statement.base, statement.verification, len(statement.ciphertexts)))
    _take(hashed, statement.ciphertexts)
    _take(hashed, statement.results)
    return hashed.digest()


def _challenge(digest: bytes, commitments: Iterable[int]) -> int:
    hashed = hashlib.sha256(b"hubbub challenge 1\0" + digest)
    _take(hashed, commitments)
    return int.from_bytes(hashed.digest(), "big")


def _take(hashed: "hashlib._Hash", numbers: Iterable[int]) -> None:
    """Hash each number, prefixed by its length."""
    for number in numbers:
        size = (int(number).bit_length() + 7) // 8
        hashed.update(size.to_bytes(8, "big") + int(number).to_bytes(size, "big"))
