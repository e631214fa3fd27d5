"""Random bits as a function of a key: the same key and name give the same bits, another name gives independent ones.

A real run draws its keys from the operating system; a simulation derives them from its seed. Everything that is random in a
run — cohorts, shuffles, noise — has a key of its own under its own name, so nothing shares a generator and each part can be
drawn again after an interruption.

Source: HMAC-SHA-256 (RFC 2104) derives keys, AES-256 in counter mode (NIST SP 800-38A) expands them.
"""

import hashlib
import hmac
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn, SupportsIndex

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from hubbub.errors import NoiseExhaustedError

KEY_BYTES = 32


class Uncopied:
    """Base of what holds a secret key: a copy would draw the same bits for other data, and a pickle is the key, unprotected."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled: it holds a secret, and is used in one place")


def require_own_process(process: int, what: str, whose: str) -> None:
    """Refuse what a secret key draws in a process that was forked from the one that it belongs to."""
    if process != os.getpid():
        raise NoiseExhaustedError(
            f"{what}: process {os.getpid()} was forked from {process}, {whose}; open the run in the process that releases it"
        )


def fresh_key() -> bytes:
    """32 secret bytes from the operating system."""
    return os.urandom(KEY_BYTES)


def seed_key(seed: int) -> bytes:
    """The key of a simulation: known to whoever knows the seed."""
    return hashlib.sha256(f"hubbub simulation seed {seed}".encode()).digest()


def derive(key: bytes, *name: str | int) -> bytes:
    """The key of a named part.

    Example:
        >>> derive(seed_key(1), "cohort", 3) == derive(seed_key(1), "cohort", "3")
        False
    """
    # Equal whole numbers of different kinds, such as NumPy's, name one part.
    parts = [part if isinstance(part, str) else operator.index(part) for part in name]
    message = "/".join(f"{type(part).__name__}:{len(str(part))}:{part}" for part in parts)
    return hmac.digest(key, message.encode(), "sha256")


def seed_for(key: bytes, *name: str | int) -> int:
    """A seed of 63 bits for a library's own generator."""
    return int.from_bytes(derive(key, *name)[:8], "big") >> 1


def bits(key: bytes, count: int) -> npt.NDArray[np.uint64]:
    """``(count,)`` uniform 64-bit numbers. A key is used for one call: a second call would give the same numbers."""
    return word_stream(key)(count)


def word_stream(key: bytes, start: int = 0) -> Callable[[int], npt.NDArray[np.uint64]]:
    """A function that gives the next ``(count,)`` numbers of :func:`bits`.

    ``start``: how many numbers to leave out first, an even one, since the cipher makes two at a time.
    """
    encryptor = Cipher(algorithms.AES(key), modes.CTR((start // 2).to_bytes(16, "big"))).encryptor()

    def following(count: int) -> npt.NDArray[np.uint64]:
        words = np.empty(count + 2, dtype="<u8")
        encryptor.update_into(bytes(8 * count), words.data.cast("B"))
        return words[:count]

    return following


def sealed(key: bytes, parts: Iterable[bytes]) -> Iterator[bytes]:
    """Content, which comes in parts, encrypted and authenticated under a key that may be used again.

    Example:
        >>> bytes(unsealed(seed_key(1), b"".join(sealed(seed_key(1), [b"row", b"s"]))))
        b'rows'
    """
    nonce = os.urandom(16)
    encryptor = Cipher(algorithms.AES(derive(key, "encrypt")), modes.CTR(nonce)).encryptor()
    tag = hmac.new(derive(key, "authenticate"), nonce, "sha256")
    yield nonce
    for part in parts:
        hidden = encryptor.update(part)
        tag.update(hidden)
        yield hidden
    yield tag.digest()


def unsealed(key: bytes, content: bytes) -> memoryview:
    """The content that :func:`sealed` encrypted, which may be written over."""
    whole = memoryview(content)
    # hmac.digest takes no 2 GiB.
    tag = hmac.new(derive(key, "authenticate"), whole[:-32], "sha256").digest()
    if len(whole) < 48 or not hmac.compare_digest(tag, whole[-32:]):
        raise ValueError("it is not what this key sealed")
    # The cipher may need a block more.
    plain = memoryview(bytearray(len(whole) - 48 + 15))
    decryptor = Cipher(algorithms.AES(derive(key, "encrypt")), modes.CTR(bytes(whole[:16]))).decryptor()
    return plain[: decryptor.update_into(whole[16:-32], plain)]


def uniform_choice(key: bytes, population: int, size: int) -> list[int]:
    """``size`` of the numbers below ``population``, each set equally likely, in increasing order.

    Example:
        >>> len(set(uniform_choice(seed_key(1), population=100, size=7)))
        7
    """
    order = np.argsort(bits(key, population), kind="stable")
    return sorted(int(i) for i in order[:size])
