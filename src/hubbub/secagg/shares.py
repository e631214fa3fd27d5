"""Shares of a secret key: what the holder of one does, and what everybody knows of all.

Source: Damgård & Jurik 2001, https://doi.org/10.1007/3-540-44586-2_9, section 4.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import gmpy2
from gmpy2 import mpz

from hubbub._checks import integer, shown
from hubbub.secagg.ciphertext import Ciphertext
from hubbub.secagg.integers import whole
from hubbub.secagg.paillier import PublicKey
from hubbub.secagg.proofs import Proof, Statement, holds, prove
from hubbub.secagg.workers import in_threads

__all__ = ["MOST_HOLDERS", "KeyShare", "Partial", "ThresholdKey", "proved"]

MOST_HOLDERS = 100
_MOST_WORKERS = 1024


@dataclass(frozen=True)
class ThresholdKey:
    """What everybody may know, the holders too: the public key, how many must agree, and how their work is checked.

    Args:
        n: The product of two safe primes.
        holders: How many shares there are, from 1 to 100.
        threshold: How many of them decrypt, from 1 (each alone: no protection against a holder) to ``holders``.
        base: A square mod n², v.
        verification: ``(holders,)``, v^(Δ·sᵢ).
        min_contributions: The fewest contributions of a sum that holders decrypt. From 2 on they decrypt only contributions
            that they multiplied themselves.
    """

    n: int
    holders: int
    threshold: int
    base: int = field(repr=False)
    verification: tuple[int, ...] = field(repr=False)
    min_contributions: int = 1
    public_key: PublicKey = field(init=False, compare=False)
    key_id: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        # Safe primes are 3 mod 4, and (p − 1)/2 and (q − 1)/2 have no factor in common.
        public_key = PublicKey(self.n, short_exponents=True)
        holders = integer("holders", self.holders, at_least=1, at_most=MOST_HOLDERS)
        threshold = integer("threshold", self.threshold, at_least=1, at_most=holders)
        least = integer("min_contributions", self.min_contributions, at_least=1)
        keys = tuple(int(unit) for unit in self.verification)
        if len(keys) != holders:
            raise ValueError(f"verification has {len(keys)} numbers: must be one for each of holders = {holders}")
        for unit in (self.base, *keys):
            if not 1 < unit < public_key.n_square or gmpy2.gcd(unit, self.n) != 1:
                raise ValueError("base or verification: a number is no unit mod n^2 other than 1")
        text = ",".join(str(hex(k)) for k in (public_key.n, holders, threshold, least, self.base, *keys))
        for name, value in (
            ("n", public_key.n),
            ("base", int(self.base)),
            ("verification", keys),
            ("public_key", public_key),
            ("key_id", hashlib.sha256(f"hubbub threshold key 1,{text}".encode()).hexdigest()[:32]),
        ):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"ThresholdKey(bits={self.public_key.bits}, {self.threshold} of {self.holders}, key_id={self.key_id!r})"

    @property
    def delta(self) -> int:
        """Δ, the factorial of the number of holders: it makes the Lagrange coefficients whole."""
        return math.factorial(self.holders)

    def encrypt(self, values: object, *, workers: int = 1) -> Ciphertext:
        """As :meth:`hubbub.secagg.paillier.PublicKey.encrypt`."""
        return self.public_key.encrypt(values, workers=workers)

    def ciphertext(self, integers: object, *, key_id: str | None = None, name: str = "integers") -> Ciphertext:
        """As :meth:`hubbub.secagg.paillier.PublicKey.ciphertext`."""
        return self.public_key.ciphertext(integers, key_id=key_id, name=name)


@dataclass(frozen=True)
class Partial:
    """One holder's part of a decryption, and the proof of it. It may be public, as long as what it decrypts may.

    Args:
        key_id: Of the :class:`ThresholdKey`.
        holder: From 1.
        shape: Of the ciphertexts.
        ciphertexts: What was decrypted in part, in C order.
        integers: As many, c^(2·Δ·sᵢ) mod n².
        proof: For all of them together.
    """

    key_id: str
    holder: int
    shape: tuple[int, ...]
    ciphertexts: tuple[int, ...] = field(repr=False)
    integers: tuple[int, ...] = field(repr=False)
    proof: Proof = field(repr=False)


@dataclass(frozen=True, repr=False, eq=False)
class KeyShare:
    """One holder's secret. It is in no text, message or pickle that this class makes.

    Args:
        public: The key.
        holder: From 1.
        secret: sᵢ; checked against the key.
    """

    public: ThresholdKey
    holder: int
    secret: int

    def __post_init__(self) -> None:
        key = self.public
        integer("holder", self.holder, at_least=1, at_most=key.holders)
        secret = whole("secret", self.secret)
        if not 0 < secret < key.n * key.n:
            raise ValueError(f"secret of holder {self.holder} is out of range: it is no share of the key {key.key_id!r}")
        if gmpy2.powmod_sec(key.base, key.delta * secret, key.public_key.n_square) != key.verification[self.holder - 1]:
            raise ValueError(f"secret of holder {self.holder} is no share of the key {key.key_id!r}")

    def __repr__(self) -> str:
        return f"KeyShare(holder={self.holder}, key_id={self.public.key_id!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a KeyShare is not pickled or copied: a pickle of it would be the secret, unprotected")

    def partial(self, sums: object, *, contributions: int = 1, workers: int = 1) -> Partial:
        """This holder's part of the decryption of a sum, of which it must be known that it is one.

        Args:
            sums: A ciphertext, or integers that are checked as one.
            contributions: Of how many contributions the caller has formed the sum itself.
            workers: How many threads share the work, which runs outside Python's lock.

        Raises:
            ValueError: It is no ciphertext of this key, or of fewer contributions than the key demands.
        """
        if integer("contributions", contributions, at_least=1) < self.public.min_contributions:
            raise ValueError(
                f"the key {self.public.key_id!r} decrypts sums of at least {self.public.min_contributions} contributions: hand "
                f"them to partial_of"
            )
        return self._partial(self.public.ciphertext(sums, name="sums"), workers)

    def partial_of(
        self, contributions: Mapping[str, object] | Sequence[object], at_least: int = 1, *, workers: int = 1
    ) -> Partial:
        """This holder's part of the decryption of a sum that it formed itself.

        Args:
            contributions: Ciphertexts of one shape, or integers: by the client's name, or in any order.
            at_least: How many there must be, if more than the key's ``min_contributions``.
            workers: As for :meth:`partial`.

        Raises:
            ValueError: Too few, one twice, one that is no ciphertext of this key, or one without randomness; the client is
                named.
        """
        needed = max(integer("at_least", at_least, at_least=1), self.public.min_contributions)
        if isinstance(contributions, Mapping):
            named = {f"client {shown(name)}": given for name, given in contributions.items()}
        else:
            named = {f"contributions[{i}]": given for i, given in enumerate(contributions)}
        if len(named) < needed:
            raise ValueError(f"contributions has {len(named)}: holders decrypt sums of at least {needed}")
        checked = {name: self.public.ciphertext(given, name=name) for name, given in named.items()}
        _require_distinct(checked, self.public.n)
        first, *others = checked.values()
        total = first
        for other in others:
            total = total + other
        return self._partial(total, workers)

    def _partial(self, sums: Ciphertext, workers: int) -> Partial:
        threads = integer("workers", workers, at_least=1, at_most=_MOST_WORKERS)
        if not sums.integers:
            raise ValueError(f"sums has shape {sums.shape}: must not be empty")
        key = self.public
        exponent = key.delta * self.secret
        raised = in_threads(lambda part: _powers(part, 2 * exponent, mpz(key.n)), list(sums.integers), threads)
        parts = tuple(int(x) for x in raised)
        ciphertexts = tuple(int(c) for c in sums.integers)
        proof = prove(_statement(key, self.holder, ciphertexts, parts), exponent)
        return Partial(key.key_id, self.holder, sums.shape, ciphertexts, parts, proof)


def proved(public: ThresholdKey, part: Partial) -> bool:
    """Whether a partial decryption was made with its holder's share."""
    if len(part.integers) != len(part.ciphertexts):
        return False
    return holds(_statement(public, part.holder, part.ciphertexts, part.integers), part.proof)


def _powers(units: list[mpz], exponent: int, n: mpz) -> list[mpz]:
    """Units mod n² to a secret power.

    With exponent = n·high + low this is c^low·(c^high)^n, and an n-th power mod n² depends on its base mod n alone: the first
    step to it is half as long, and its last exponent no secret.
    """
    n_square = n * n
    high, low = divmod(exponent, n)
    roots = _secret_powers([c % n for c in units], high, n)
    powers = gmpy2.powmod_base_list(roots, n, n_square)
    return [a * b % n_square for a, b in zip(_secret_powers(units, low, n_square), powers, strict=True)]


def _secret_powers(units: list[mpz], exponent: mpz, modulus: mpz) -> list[mpz]:
    """Powers in constant time; GMP's function takes no exponent of 0."""
    return [gmpy2.powmod_sec(unit, exponent, modulus) if exponent else mpz(1) for unit in units]


def _statement(key: ThresholdKey, holder: int, ciphertexts: tuple[int, ...], results: tuple[int, ...]) -> Statement:
    secret_bits = 2 * key.n.bit_length() + key.delta.bit_length()
    context = f"{key.key_id}/{holder}"
    return Statement(context, key.n, key.base, key.verification[holder - 1], ciphertexts, results, secret_bits)


def _require_distinct(contributions: dict[str, Ciphertext], n: int) -> None:
    """Refuse a contribution that is there twice, or that hides nothing; both only make a sum look larger."""
    seen: dict[tuple[mpz, ...], str] = {}
    shape = next(iter(contributions.values())).shape
    for name, given in contributions.items():
        if given.shape != shape:
            raise ValueError(f"{name} has shape {given.shape}: must be {shape}, as the first one has")
        if any(c % n == 1 for c in given.integers):
            raise ValueError(f"{name} was encrypted without randomness: it is no contribution")
        if given.integers in seen:
            raise ValueError(f"{name} is the same ciphertext as {seen[given.integers]}: a contribution counts once")
        seen[given.integers] = name
