"""What Paillier must answer on this machine: published values, and laws that fresh keys must obey.

Source: ISO/IEC 18033-6:2019, test vector of Paillier encryption; phe, the regression in its ``paillier_test.py``.
"""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hubbub.secagg import paillier, textbook, threshold
from hubbub.secagg.safe_primes import safe_prime_pair

__all__ = ["Check", "checks"]

_ISO_M = int("414243444546474849404a4b4c4d4e4f", 16)
_ISO_P = int(
    "ff03b1a74827c746db83d2eaff00067622f545b62584321256e62b01509f10962f9c5c8fd0b7f5184a9ce8e81f439df47dda14563dd55a221799d2aa57ed"
    "2713271678a5a0b8b40a84ad13d5b6e6599e6467c670109cf1f45ccfed8f75ea3b814548ab294626fe4d14ff764dd8b091f11a0943a2dd2b983b0df02f4c"
    "4d00b413",
    16,
)
_ISO_Q = int(
    "dacaabc1dc57faa9fd6a4274c4d588765a1d3311c22e57d8101431b07eb3ddcb05d77d9a742ac2322fe6a063bd1e05acb13b0fe91c70115c2b1eee1155e0"
    "72527011a5f849de7072a1ce8e6b71db525fbcda7a89aaed46d27aca5eaeaf35a26270a4a833c5cda681ffd49baa0f610bad100cdf47cc86e5034e2a0b21"
    "79e04ec7",
    16,
)
_ISO_R = int(
    "57fb19590c31dc7c034b2a889cf4037ce3db799909c1eb0adb6199d8e96791daca9018891f34309daff32dced4af7d793d16734d055e28023acab7295956"
    "bfbfdf62bf0ccb2ed31d5d176ca8b404e93007565fb6b72c33a512b4dc4f719231d62e27e34c3733929af32247f88c20d1ee77096cc80d3d642464054c81"
    "5b35878ba812349c8bdc3c6b645daf1a0de60965f44dcf705681032480f1eeba82243196b96903becdc0df0801d4120cbd6db1c4b2841a27991c44a43750"
    "c24ed0825718ad14cfb9c6b40b78ff3d25f71741f2def1c9d420d4b0fa1e0a02e7851b5ec6a81133a368b80d1500b0f28fc653d2e6ff4366236dbf80ae3b"
    "4beae35e04579f2c",
    16,
)
_ISO_C = int(
    "1fb7f08a42deb47876e4cbdc3f0b172c033563a696ad7a7c76fa5971b793fa488dcdd6bd65c7c5440d67d847cb89ccca468b2c96763fff5a5ece83302511"
    "12d65e59b7da94cfe9309f441ccc8f59c67dec75113d37b1ee929c8d4ce6b5e561a30a91104b0526de892e4eff9f4fbecba3db8ed94267be31df360feaff"
    "b1151ef5b5a8e51777f09d38072bcb1b1ad15d80d5448fd0edb41cc499f8eebae2af26569427a26d0afeaa833173d6ae4e5f84eb88c0c68c29baecf7ec5a"
    "f2c1c5577336ca9482690f1c94597654afda84c6fb74df95cdd08fa9a66296126b4061b0530d124f3797426a08f72e90ef4994eeb348f5e92bd12d41cd33"
    "43a9e271a2f73d2cc7ffbd65bf64fb63e759f312e615aae01ae9f4573a21f1a70f56a61cfbb94d8f96fcf06c2b3216ed9574f6888df86cd5e471b641507a"
    "c6815ca781f6d31e69d6848e542a7c57dc21109b5574b63365a19273783fafc93639c414b9475ea5ea82e73958ff5fdba967d52721ff71209e5a3db3c580"
    "e1bfd142ba4b8ab77eb16cb488d46a04a672662cd108b7e9c58ba13dfb850653208f81956539475ffce85e0b0da59e5bd8d90051be9b2cc99e37c060ce09"
    "814e1524458bfb5427d7a16b672682be448fa16464fcb3e7f1dca6812a2c5a9814b98ccb676367b7b3b269c670cd0210edf70ad9cb337f766af75fe06d18"
    "b3f7f7c2eae6565ff2815c2c09b1a1f5",
    16,
)
_BITS, _SMALL_BITS = 2048, 256
_ZEROS, _COINS = 100, 2**20
# Of fair coins: beyond ten standard deviations of √coins/2 once in 10²³ times.
_DEVIATIONS = 10


@dataclass(frozen=True)
class Check:
    """One check and how it went.

    Args:
        name: What was asked.
        failure: What went wrong; ``None`` where nothing did.
    """

    name: str
    failure: str | None


def checks() -> Iterator[Check]:
    """Each check as it is done; none of them raises."""
    todo: tuple[tuple[str, Callable[[], bool]], ...] = (
        ("ISO/IEC 18033-6: its message and randomness give its ciphertext", _iso_encrypts),
        ("ISO/IEC 18033-6: its key reads its ciphertext, and adds to it", _iso_decrypts),
        ("phe: n = 126869, m = 10100, r = 74384 give c = 935906717, and back", _tiny),
        (f"a fresh key of {_BITS} bits: arithmetic under encryption is arithmetic", _round_trip),
        (f"a fresh key of {_BITS} bits: {_ZEROS} encryptions of 0 share no randomness", _zeros_differ),
        ("any 3 of 5 holders decrypt, and 2 do not", _threshold),
        ("the operating system's coins show no bias", _coins),
    )
    for name, check in todo:
        yield Check(name, _failure(check))


def _failure(check: Callable[[], bool]) -> str | None:
    try:
        return None if check() else "another answer came out"
    except Exception as error:  # noqa: BLE001 # whatever went wrong is the finding
        return f"{type(error).__name__}: {error}"


def _iso_encrypts() -> bool:
    return textbook.encrypt(_ISO_P * _ISO_Q, _ISO_M, _ISO_R) == _ISO_C


def _iso_decrypts() -> bool:
    private = paillier.PrivateKey.from_primes(_ISO_P, _ISO_Q)
    arrived = private.public_key.ciphertext(_ISO_C)
    read = private.decrypt(arrived), private.decrypt(arrived + private.public_key.encrypt(-1))
    return read == (_ISO_M, _ISO_M - 1) and textbook.decrypt(_ISO_P, _ISO_Q, _ISO_C) == _ISO_M


def _tiny() -> bool:
    return textbook.encrypt(126869, 10100, 74384) == 935906717 and textbook.decrypt(293, 433, 935906717) == 10100


def _round_trip() -> bool:
    private = paillier.generate(_BITS)
    public = private.public_key
    a, b = ([secrets.randbelow(2**1001) - 2**1000 for _ in range(3)] for _ in "ab")
    sums = public.encrypt(a) + public.encrypt(b) * -3 + 17
    arrived = public.ciphertext([int(c) for c in sums.integers])
    expected = [x - 3 * y + 17 for x, y in zip(a, b, strict=True)]
    return bool(private.decrypt(arrived) == expected)


def _zeros_differ() -> bool:
    public = paillier.generate(_BITS).public_key
    zeros = [int(c) for c in public.encrypt([0] * _ZEROS).integers]
    # Modulo n too, where what was encrypted does not count.
    return len({c % public.n for c in zeros}) == _ZEROS and 1 not in {c % public.n for c in zeros}


def _threshold() -> bool:
    public, shares = threshold.deal(*safe_prime_pair(_SMALL_BITS), holders=5, threshold=3)
    values = [secrets.randbelow(2**100), -secrets.randbelow(2**100)]
    sums = public.encrypt(values) + public.encrypt([1, 1])
    partials = [share.partial(sums) for share in shares]
    expected = [value + 1 for value in values]
    if any(
        threshold.combine(public, [partials[i] for i in chosen]) != expected for chosen in ((0, 1, 2), (4, 2, 0), (3, 4, 1))
    ):
        return False
    try:
        threshold.combine(public, partials[:2])
    except ValueError:
        return True
    return False


def _coins() -> bool:
    ones = secrets.randbits(_COINS).bit_count()
    return (2 * ones - _COINS) ** 2 <= _DEVIATIONS**2 * _COINS
