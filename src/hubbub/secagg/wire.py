"""Encrypted vectors as bytes, in one form only: a header, ciphertexts of one width, and a digest of it all.

The digest shows what was cut off or damaged on the way. Against those who write messages themselves it does nothing: senders
are told apart by the channel, which must be authenticated.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from gmpy2 import mpz

from hubbub._checks import integer, shown

__all__ = ["Kind", "Message", "as_bytes", "framed", "width"]

_MAGIC = b"hubbub-paillier1"
# Kind, agreement, round, length of the name, number of ciphertexts.
_HEAD = struct.Struct("<16sB16sQHI")
_DIGEST = 32
_LONGEST_NAME = 200


class Kind(IntEnum):
    """What a message is."""

    CONTRIBUTION = 1
    NOISE = 2
    SUM = 3


def width(key_bits: int) -> int:
    """The bytes of one ciphertext under a key of so many bits."""
    return -(-2 * key_bits // 8)


def framed(sender: str, body: int) -> int:
    """The bytes of a message of such a sender whose ciphertexts take ``body`` bytes."""
    return _HEAD.size + len(sender.encode()) + body + _DIGEST


def as_bytes(integers: Iterable[int], key_bits: int) -> Iterator[bytes]:
    """Ciphertexts as bytes, each :func:`width` long."""
    size = width(key_bits)
    return (int(c).to_bytes(size, "little") for c in integers)


@dataclass(frozen=True)
class Message:
    """One sender's ciphertexts of one round.

    Args:
        kind: A contribution, noise, or a sum.
        agreement: The digest of what was agreed, 16 bytes.
        round_index: From 0.
        sender: The name by which the sender is known.
        integers: The ciphertexts.
    """

    kind: Kind
    agreement: bytes
    round_index: int
    sender: str
    integers: Sequence[int] = field(repr=False)

    def to_bytes(self, key_bits: int) -> bytes:
        """The message in its one form.

        Raises:
            ValueError: The sender's name is empty or too long.
        """
        name = self.sender.encode()
        if not 1 <= len(name) <= _LONGEST_NAME:
            raise ValueError(f"sender = {shown(self.sender)}: must be a name of at most {_LONGEST_NAME} bytes")
        integer("round_index", self.round_index, at_least=0, at_most=2**63)
        head = _HEAD.pack(_MAGIC, self.kind, self.agreement, self.round_index, len(name), len(self.integers))
        body = b"".join([head, name, *as_bytes(self.integers, key_bits)])
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, data: object, key_bits: int, name: str, *, at_most: int) -> "Message":
        """Read a message that came from outside; its ciphertexts are integers in range of nothing yet.

        Args:
            data: What came.
            key_bits: Of the key.
            name: Of the sender in messages.
            at_most: How many ciphertexts it may have.

        Raises:
            ValueError: It is not in the one form, or damaged.
        """
        if not isinstance(data, bytes):
            raise ValueError(f"{name}: sent a {type(data).__name__}: must be bytes")
        if len(data) < _HEAD.size + _DIGEST:
            raise ValueError(f"{name}: sent {len(data)} bytes: too few for a message")
        magic, kind, agreement, round_index, letters, count = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise ValueError(f"{name}: sent no encrypted vector of this version")
        if count > at_most:
            raise ValueError(f"{name}: sent {count} ciphertexts: at most {at_most} were agreed on")
        if not 1 <= letters <= _LONGEST_NAME:
            raise ValueError(f"{name}: states a sender of {letters} bytes, a name has from 1 to {_LONGEST_NAME}")
        size = width(key_bits)
        if len(data) != _HEAD.size + letters + count * size + _DIGEST:
            raise ValueError(f"{name}: sent {len(data)} bytes, not those of {count} ciphertexts of {size} bytes: cut off?")
        if hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
            raise ValueError(f"{name}: the message was damaged on its way: its digest is another")
        if kind not in set(Kind):
            raise ValueError(f"{name}: sent a message of kind {kind}, which there is not")
        start = _HEAD.size + letters
        try:
            sender = data[_HEAD.size : start].decode()
        except UnicodeDecodeError:
            raise ValueError(f"{name}: states a sender that is no text") from None
        numbers = [mpz(int.from_bytes(data[i : i + size], "little")) for i in range(start, start + count * size, size)]
        return cls(Kind(kind), agreement, round_index, sender, numbers)
