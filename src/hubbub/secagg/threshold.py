"""Threshold decryption by any t of n holders of shares; fewer decrypt nothing, and false answers are attributed.

::

    public, shares = threshold.generate(holders=5, threshold=3)      # 3072 bits
    sums = public.encrypt([1, -2]) + public.encrypt([3, 4])
    partials = [share.partial(sums) for share in shares[1:4]]
    threshold.combine(public, partials)                # [4, 2]

The dealer knows the primes and must destroy them. With m = (p−1)/2·(q−1)/2 the exponent d, 0 mod m and 1 mod n, would decrypt;
holder i has the value sᵢ = f(i) mod n·m of a polynomial of degree t − 1 with f(0) = d, random mod m and constant mod n. A
partial decryption is c^(2·Δ·sᵢ), with Δ the factorial of the number of holders. It is verified (proofs.py) before it is
combined with others.

A holder that decrypts any ciphertext would reveal single contributions. If the key demands ``min_contributions``, a holder gets
the contributions (:meth:`KeyShare.partial_of`), multiplies them and decrypts only the product. It does not check who made a
contribution: clients must be authenticated elsewhere, or the server can add contributions of its own and isolate one client's.

Source: Damgård & Jurik 2001, https://doi.org/10.1007/3-540-44586-2_9, section 4; Fouque, Poupard & Stern 2000; Shoup 2000.
"""

import hashlib
import math
import operator
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import gmpy2
from gmpy2 import mpz

from hubbub._util.checks import integer, plain_numbers, shown
from hubbub._util.prf import Uncopied
from hubbub.errors import HubbubError
from hubbub.secagg.ciphertext import Ciphertext
from hubbub.secagg.integers import MOST_WORKERS, in_threads, nest, whole
from hubbub.secagg.paillier import SMALLEST_BITS, PublicKey
from hubbub.secagg.primes import ROUNDS, safe_prime_pair
from hubbub.secagg.proofs import Proof, Statement, holds, prove

__all__ = ["KeyShare", "LyingHolderError", "Partial", "ThresholdKey", "combine", "deal", "generate", "proved"]

MOST_HOLDERS = 100
# Safe primes of a longer n take minutes to find, and longer still with every bit.
_LARGEST_BITS = 8192


@dataclass(frozen=True)
class ThresholdKey:
    """A public threshold key: the public key, the threshold, and the keys that verify partial decryptions.

    Args:
        n: The product of two safe primes.
        holders: The number of shares, from 1 to 100.
        threshold: How many of them decrypt together, from 1 (no protection against a holder) to ``holders``.
        base: A square mod n², v.
        verification: ``(holders,)``, v^(Δ·sᵢ).
        min_contributions: The fewest contributions in a sum that holders decrypt. From 2 on they decrypt only sums that they
            formed themselves.

    Raises:
        ValueError: A number out of range, more or fewer verification keys than holders, or one that is no unit mod n².

    Example:
        >>> public, shares = deal(2**40 - 437, 2**40 - 4637, holders=3, threshold=2)  # far too small, for tests
        >>> public.threshold, public.holders, public.public_key.bits
        (2, 3, 80)
        >>> combine(public, [share.partial(public.encrypt([5, -7])) for share in shares[:1]])
        Traceback (most recent call last):
            ...
        ValueError: partials of holders [1]: 1 are too few, any 2 of 3 are needed
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
        plain_numbers(self)
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
        text = ",".join(map(hex, (public_key.n, holders, threshold, least, self.base, *keys)))
        object.__setattr__(self, "verification", keys)
        object.__setattr__(self, "public_key", public_key)
        object.__setattr__(self, "key_id", hashlib.sha256(f"hubbub threshold key 1,{text}".encode()).hexdigest()[:32])

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
    """One holder's partial decryption with its proof; as public as the plaintext.

    Args:
        key_id: Of the :class:`ThresholdKey`.
        holder: From 1.
        shape: Of the ciphertexts.
        ciphertexts: The decrypted ones, in C order.
        integers: As many, c^(2·Δ·sᵢ) mod n².
        proof: For all of them together.

    Example:
        >>> public, shares = deal(2**40 - 437, 2**40 - 4637, holders=3, threshold=2)  # far too small, for tests
        >>> part = shares[0].partial(public.encrypt([5, -7]))
        >>> part.holder, part.shape, len(part.integers)
        (1, (2,), 2)
    """

    key_id: str
    holder: int
    shape: tuple[int, ...]
    ciphertexts: tuple[int, ...] = field(repr=False)
    integers: tuple[int, ...] = field(repr=False)
    proof: Proof = field(repr=False)


@dataclass(frozen=True, repr=False, eq=False)
class KeyShare(Uncopied):
    """One holder's secret share. Its repr, errors and pickles never show it.

    Args:
        public: The key.
        holder: From 1.
        secret: sᵢ; checked against the key.

    Raises:
        ValueError: It is no share of the key. No message shows it.

    Example:
        >>> public, shares = deal(2**40 - 437, 2**40 - 4637, holders=3, threshold=2, min_contributions=2)  # far too small
        >>> clients = {"anna": public.encrypt([1, -2]), "ben": public.encrypt([3, 4])}
        >>> combine(public, [share.partial_of(clients) for share in shares[1:]])
        [4, 2]
        >>> shares[0].partial(clients["anna"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ValueError: the key '...' decrypts sums of at least 2 contributions: hand them to partial_of
    """

    public: ThresholdKey
    holder: int
    secret: int

    def __post_init__(self) -> None:
        plain_numbers(self)
        key = self.public
        integer("holder", self.holder, at_least=1, at_most=key.holders)
        secret, n_square = whole("secret", self.secret), key.public_key.n_square
        verification = key.verification[self.holder - 1]
        if not 0 < secret < n_square or gmpy2.powmod_sec(key.base, key.delta * secret, n_square) != verification:
            raise ValueError(f"secret of holder {self.holder} is no share of the key {key.key_id!r}")

    def __repr__(self) -> str:
        return f"KeyShare(holder={self.holder}, key_id={self.public.key_id!r})"

    def partial(self, sums: object, *, contributions: int = 1, workers: int = 1) -> Partial:
        """This holder's partial decryption of a sum; the caller must know that it is a sum.

        Args:
            sums: A ciphertext, or integers that are checked as one.
            contributions: The number of contributions from which the caller has formed the sum itself.
            workers: The number of threads, which run outside Python's lock.

        Raises:
            ValueError: It is no ciphertext of this key, or has fewer contributions than the key demands.
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
        """This holder's partial decryption of a sum that it forms itself.

        Args:
            contributions: Ciphertexts of one shape, or integers: by the client's name, or in any order.
            at_least: The fewest contributions, if more than the key's ``min_contributions``.
            workers: As for :meth:`partial`.

        Raises:
            ValueError: There are too few, a repeated one, one that is no ciphertext of this key, or one without randomness;
                the client is named.
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
        return self._partial(reduce(operator.add, checked.values()), workers)

    def identified(self, challenge: bytes) -> Proof:
        """A proof that whoever answers to this challenge has the share, of use for no other challenge."""
        return prove(_identity(self.public, self.holder, challenge), self.public.delta * self.secret)

    def _partial(self, sums: Ciphertext, workers: int) -> Partial:
        threads = integer("workers", workers, at_least=1, at_most=MOST_WORKERS)
        if not sums.integers:
            raise ValueError(f"sums has shape {sums.shape}: must not be empty")
        key = self.public
        exponent = key.delta * self.secret
        raised = in_threads(lambda part: _powers(part, 2 * exponent, mpz(key.n)), list(sums.integers), threads)
        parts, ciphertexts = tuple(map(int, raised)), tuple(map(int, sums.integers))
        proof = prove(_statement(key, self.holder, ciphertexts, parts), exponent)
        return Partial(key.key_id, self.holder, sums.shape, ciphertexts, parts, proof)


class LyingHolderError(HubbubError):
    """Raised for partial decryptions that were not made with their holder's share.

    Args:
        liars: The numbers of the holders. Combine again without them.

    Example:
        >>> public, shares = deal(2**40 - 437, 2**40 - 4637, holders=3, threshold=2)  # far too small, for tests
        >>> sums = public.encrypt([5, -7])
        >>> one, two = (share.partial(sums) for share in shares[:2])
        >>> try:
        ...     combine(public, [one, Partial(two.key_id, 3, two.shape, two.ciphertexts, two.integers, two.proof)])
        ... except LyingHolderError as error:
        ...     error.holders
        (3,)
    """

    def __init__(self, liars: Sequence[int]) -> None:
        self.holders = tuple(liars)
        names = ", ".join(f"holder {i}" for i in self.holders)
        super().__init__(
            f"{names}: not the partial decryption of these ciphertexts with the holder's share; combine without it"
        )


def generate(
    bits: int = 3072, *, holders: int, threshold: int, min_contributions: int = 1, progress: Callable[[int], None] | None = None
) -> tuple[ThresholdKey, tuple[KeyShare, ...]]:
    """A new threshold key from the randomness of the operating system; n has exactly ``bits`` bits.

    The caller is the dealer: the primes were in the memory of this machine, and Python does not erase them. Send each share to
    its holder, then destroy it here.

    Args:
        bits: An even number from 2048 to 8192; 3072 bits give 128 bits of security, 2048 give 112.
        holders: From 1 to 100.
        threshold: How many decrypt together; more than half keep two groups from decrypting apart.
        min_contributions: The fewest contributions of a sum that holders decrypt.
        progress: Called with the number of candidates for primes tested so far.

    Returns:
        The public key, and one share for each holder, to be sent in secret.

    Raises:
        ValueError: A number out of range.

    Example:
        >>> public, shares = generate(2048, holders=3, threshold=2)  # seconds; 3072 bits take longer
        >>> sums = public.encrypt(20) + public.encrypt(22)
        >>> combine(public, [share.partial(sums) for share in shares[:2]])
        42
    """
    size = integer("bits", bits, at_least=SMALLEST_BITS, at_most=_LARGEST_BITS)
    if size % 2:
        raise ValueError(f"bits = {size}: must be even, for two primes of one length")
    # Before the search, which takes a while.
    integer("threshold", threshold, at_least=1, at_most=integer("holders", holders, at_least=1, at_most=MOST_HOLDERS))
    least = integer("min_contributions", min_contributions, at_least=1)
    return deal(*safe_prime_pair(size, progress), holders=holders, threshold=threshold, min_contributions=least)


def deal(
    p: int, q: int, *, holders: int, threshold: int, min_contributions: int = 1
) -> tuple[ThresholdKey, tuple[KeyShare, ...]]:
    """A threshold key of known safe primes, which must be destroyed afterwards.

    Args:
        p: A safe prime: (p − 1)/2 is prime too. Secret. Of any size, for vectors and tests; a real one has from 1024 bits.
        q: Another of the same length.
        holders: From 1 to 100.
        threshold: How many decrypt together; more than half keep two groups from decrypting apart.
        min_contributions: The fewest contributions of a sum that holders decrypt.

    Returns:
        The public key, and one share for each holder, to be sent in secret.

    Raises:
        ValueError: They are not two safe primes of one length, or a number is out of range. No message shows the primes.

    Example:
        >>> public, shares = deal(2**40 - 437, 2**40 - 4637, holders=3, threshold=2)  # far too small, for tests
        >>> public.min_contributions, [share.holder for share in shares]
        (1, [1, 2, 3])
    """
    half_p, half_q = _safe("p", p), _safe("q", q)
    if p == q or p.bit_length() != q.bit_length():
        raise ValueError("p and q are equal, or of different lengths: must be two safe primes of one length")
    count = integer("holders", holders, at_least=1, at_most=MOST_HOLDERS)
    needed = integer("threshold", threshold, at_least=1, at_most=count)
    if min(half_p, half_q) <= count:
        raise ValueError(f"holders = {count}: must be fewer than the primes' halves")
    n = int(p) * int(q)
    order = half_p * half_q
    d = order * int(gmpy2.invert(order, n))
    # Mod n the secret is 1, as everybody knows; so is every share there, which halves a holder's work. Mod m, where the secret
    # is, the coefficients are uniform.
    coefficients = [d, *(n * secrets.randbelow(order) for _ in range(needed - 1))]
    # v, a random square that no share makes 1, since all shares are 1 mod n; with primes of a few bits one in thousands would.
    root = base = 0
    while gmpy2.gcd(root, n) != 1 or gmpy2.powmod_sec(base, order, n * n) == 1:
        root = secrets.randbelow(n * n)
        base = root * root % (n * n)
    return _shared_out(n, order, coefficients, base, count, min_contributions)


def combine(public: ThresholdKey, partials: Iterable[Partial], ciphertext: object = None) -> Any:
    """The plaintexts of a sum, from the partial decryptions of ``threshold`` holders or more.

    Args:
        public: The key.
        partials: Of the same ciphertexts; each is verified.
        ciphertext: The ciphertext to be decrypted; without it, the partials must only agree.

    Returns:
        Exact integers from −(n − 1)/2 to (n − 1)/2: one, or lists of lists in the shape of the ciphertext.

    Raises:
        LyingHolderError: A proof fails; the holders are named.
        ValueError: Too few partials, two of one holder, or of different keys or ciphertexts.

    Example:
        >>> public, shares = deal(2**40 - 437, 2**40 - 4637, holders=3, threshold=2)  # far too small, for tests
        >>> sums = public.encrypt([1, -2]) + public.encrypt([3, 4])
        >>> combine(public, [share.partial(sums) for share in shares[1:]])
        [4, 2]
    """
    given = list(partials)
    _require_together(public, given)
    shape, ciphertexts, whose = given[0].shape, given[0].ciphertexts, f"that of holder {given[0].holder}"
    if ciphertext is not None:
        asked = public.ciphertext(ciphertext, name="ciphertext")
        shape, ciphertexts, whose = asked.shape, tuple(int(c) for c in asked.integers), "the one asked for"
    strays = [part.holder for part in given if part.ciphertexts != ciphertexts or part.shape != shape]
    if strays:
        raise ValueError(f"partials of holders {strays} are of other ciphertexts than {whose}")
    # A proof is sound for units only.
    public.ciphertext(list(ciphertexts), name=f"the ciphertexts of holder {given[0].holder}")
    liars = [part.holder for part in given if not proved(public, part)]
    if liars:
        raise LyingHolderError(liars)
    chosen = given[: public.threshold]
    lagrange = _lagrange(public.delta, [part.holder for part in chosen])
    n, n_square = mpz(public.n), public.public_key.n_square
    undo = gmpy2.invert(4 * public.delta**2, n)
    plain = []
    for column in zip(*(part.integers for part in chosen), strict=True):
        product = mpz(1)
        for number, weight in zip(column, lagrange, strict=True):
            product = product * gmpy2.powmod(number, 2 * weight, n_square) % n_square
        quotient, rest = divmod(product - 1, n)
        if rest:
            raise ValueError("the partials do not fit together: the dealer's shares are not of one key")
        plain.append(int(quotient * undo % n))
    return nest([m - public.n if m > public.n // 2 else m for m in plain], shape)


def _shared_out(
    n: int, order: int, coefficients: list[int], base: int, holders: int, min_contributions: int = 1
) -> tuple[ThresholdKey, tuple[KeyShare, ...]]:
    """The values of a polynomial, coefficient of degree 0 first, mod n·order."""
    values = [sum(a * i**k for k, a in enumerate(coefficients)) % (n * order) for i in range(1, holders + 1)]
    delta, n_square = math.factorial(holders), mpz(n) ** 2
    verification = tuple(int(gmpy2.powmod_sec(base, delta * value, n_square)) for value in values)
    public = ThresholdKey(n, holders, len(coefficients), base, verification, min_contributions)
    return public, tuple(KeyShare(public, i, value) for i, value in enumerate(values, start=1))


def _safe(name: str, prime: int) -> int:
    """(p − 1)/2 of a safe prime."""
    number = whole(name, prime)
    half = (number - 1) // 2
    if number < 7 or not (gmpy2.is_prime(mpz(number), ROUNDS) and gmpy2.is_prime(mpz(half), ROUNDS)):
        raise ValueError(
            f"{name}, a number of {number.bit_length()} bits, is no safe prime: it and ({name} - 1)/2 must be prime"
        )
    return half


def _require_together(public: ThresholdKey, partials: list[Partial]) -> None:
    """Refuse too few partials, those of another key, and two of one holder."""
    for i, part in enumerate(partials):
        if not isinstance(part, Partial):
            raise TypeError(f"partials[{i}] is a {type(part).__name__}: must be a Partial")
        if part.key_id != public.key_id:
            raise ValueError(f"partials[{i}] is of the key {shown(part.key_id)}, not of {public.key_id!r}")
        integer(f"partials[{i}].holder", part.holder, at_least=1, at_most=public.holders)
        if not isinstance(part.shape, tuple) or math.prod(part.shape) != len(part.ciphertexts):
            raise ValueError(
                f"the partial of holder {part.holder} has a shape that does not hold its {len(part.ciphertexts)} ciphertexts"
            )
    numbers = [part.holder for part in partials]
    twice = sorted({i for i in numbers if numbers.count(i) > 1})
    if twice:
        raise ValueError(f"partials: {', '.join(f'holder {i}' for i in twice)} more than once; each holder counts once")
    if len(partials) < public.threshold:
        raise ValueError(
            f"partials of holders {numbers}: {len(partials)} are too few, any {public.threshold} of {public.holders} are needed"
        )


def _lagrange(delta: int, holders: list[int]) -> list[int]:
    """Δ·Π (−j)/(i − j) over the other holders j: whole numbers, some negative."""
    others = {i: [j for j in holders if j != i] for i in holders}
    return [delta * math.prod(-j for j in js) // math.prod(i - j for j in js) for i, js in others.items()]


def proved(public: ThresholdKey, part: Partial) -> bool:
    """Whether a partial decryption was made with its holder's share; :func:`combine` asks it of each.

    Args:
        public: The key.
        part: It may come from anybody: a holder that does not exist, or integers that do not match, are not proved.

    Example:
        >>> public, shares = deal(2**40 - 437, 2**40 - 4637, holders=3, threshold=2)  # far too small, for tests
        >>> part = shares[0].partial(public.encrypt([5, -7]))
        >>> other = Partial(part.key_id, 2, part.shape, part.ciphertexts, part.integers, part.proof)
        >>> proved(public, part), proved(public, other)
        (True, False)
    """
    if not 1 <= part.holder <= public.holders or len(part.integers) != len(part.ciphertexts):
        return False
    return holds(_statement(public, part.holder, part.ciphertexts, part.integers), part.proof)


def identifies(public: ThresholdKey, holder: int, challenge: bytes, proof: Proof) -> bool:
    """Whether a proof, from anybody, shows that its sender has the share of a holder.

    Example:
        >>> public, shares = deal(2**40 - 437, 2**40 - 4637, holders=3, threshold=2)  # far too small, for tests
        >>> proof = shares[0].identified(b"now")
        >>> [identifies(public, number, when, proof) for number, when in ((1, b"now"), (2, b"now"), (1, b"then"))]
        [True, False, False]
    """
    return 1 <= holder <= public.holders and holds(_identity(public, holder, challenge), proof)


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


def _identity(key: ThresholdKey, holder: int, challenge: bytes) -> Statement:
    """The claim to know the logarithm of a holder's verification value: a decryption of a number that everybody knows."""
    known = int(gmpy2.powmod(key.verification[holder - 1], 2, key.public_key.n_square))
    claim = _statement(key, holder, (key.base,), (known,))
    return replace(claim, context=f"{claim.context}/identity/{challenge.hex()}")


def _require_distinct(contributions: dict[str, Ciphertext], n: int) -> None:
    """Refuse repeated contributions and those without randomness: they hide no other contribution in the sum."""
    seen: dict[mpz, str] = {}
    shape = next(iter(contributions.values())).shape
    for name, given in contributions.items():
        if given.shape != shape:
            raise ValueError(f"{name} has shape {given.shape}: must be {shape}, as the first one has")
        if any(c % n == 1 for c in given.integers):
            raise ValueError(f"{name} was encrypted without randomness: it is no contribution")
        for c in given.integers:
            if c in seen:
                raise ValueError(f"{name} is the same ciphertext as {seen[c]}: a contribution counts once")
            seen[c] = name
