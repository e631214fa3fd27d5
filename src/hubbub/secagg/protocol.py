"""The agreement of clients, server and holders of the key before the first round, and the format of their messages.

::

    agreement = Agreement(public, packing, size=21_840, run="…", min_contributions=2)
    data = agreement.contribution("client 7", round_index=0, steps=steps)      # at the client
    aggregator.add("client 7", data)                                           # at the server

An agreement is public. Its digest is part of every message, so that numbers of another packing, run or key are not added by
mistake. It does not stop an attacker: ciphertexts are malleable. A message is a header, ciphertexts of one width, and a SHA-256
of both, which detects damage. The channel must authenticate senders.
"""

import hashlib
import itertools
import os
import re
import struct
import tempfile
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import IntEnum
from functools import cached_property
from io import BytesIO, FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gmpy2 import mpz

from hubbub._util import files, strict_json
from hubbub._util.checks import boolean, integer, plain_numbers, shown, table
from hubbub.secagg.ciphertext import width
from hubbub.secagg.packing import Packing
from hubbub.secagg.paillier import PublicKey

_VERSION = 1
LONGEST_NAME = 200
_MOST_NUMBERS = 2**33
# A modulus in hexadecimal.
_HEXADECIMAL = re.compile(f"[0-9a-f]{{1,{16_384 // 4}}}")
_MAGIC = b"hubbub-paillier1"
# Kind, agreement, round, length of the name, number of ciphertexts.
_HEAD = struct.Struct("<16sB16sQHI")
_DIGEST = 32
_LENGTH = struct.Struct("<Q")
# Bytes of messages in memory; more are in a temporary file.
_IN_MEMORY = 2**26


class Kind(IntEnum):
    """The kind of a message."""

    CONTRIBUTION = 1
    NOISE = 2
    SUM = 3


def framed(sender: str, ciphertexts: int, key_bits: int) -> int:
    """The size of a message in bytes."""
    return _HEAD.size + len(sender.encode()) + ciphertexts * width(key_bits) + _DIGEST


def as_bytes(integers: Iterable[int], key_bits: int) -> Iterator[bytes]:
    """Ciphertexts as bytes, each :func:`width` long."""
    size = width(key_bits)
    return (int(c).to_bytes(size, "little") for c in integers)


@dataclass(frozen=True)
class Message:
    """One sender's ciphertexts of one round, with the digest of what was agreed, 16 bytes."""

    kind: Kind
    agreement: bytes
    round_index: int
    sender: str
    integers: Sequence[int] = field(repr=False)

    def to_bytes(self, key_bits: int) -> bytes:
        """The message as bytes."""
        name = self.sender.encode()
        if not 1 <= len(name) <= LONGEST_NAME:
            raise ValueError(f"sender = {shown(self.sender)}: must be a name of at most {LONGEST_NAME} bytes")
        integer("round_index", self.round_index, at_least=0, at_most=2**63)
        head = _HEAD.pack(_MAGIC, self.kind, self.agreement, self.round_index, len(name), len(self.integers))
        body = b"".join([head, name, *as_bytes(self.integers, key_bits)])
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, data: object, key_bits: int, name: str, *, at_most: int) -> "Message":
        """A received message; the range of its ciphertexts is not checked."""
        if not isinstance(data, bytes):
            raise ValueError(f"{name}: sent a {type(data).__name__}: must be bytes")
        if len(data) < _HEAD.size + _DIGEST:
            raise ValueError(f"{name}: sent {len(data)} bytes: too few for a message")
        magic, kind, agreement, round_index, letters, count = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise ValueError(f"{name}: sent no encrypted vector of this version")
        if count > at_most:
            raise ValueError(f"{name}: sent {count} ciphertexts: at most {at_most} were agreed on")
        if not 1 <= letters <= LONGEST_NAME:
            raise ValueError(f"{name}: states a sender of {letters} bytes, a name has from 1 to {LONGEST_NAME}")
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


class MessageFile(Collection[bytes]):
    """Messages in a file, in the order in which they came: each is read again when it is needed, so that memory holds one.

    Args:
        path: A file, created if it is missing; what another start appended is found again, up to a torn end. Without one a
            temporary file, which is in memory while it is short.
    """

    def __init__(self, path: Path | None = None) -> None:
        # Without buffers: what a full disk refused is gone, and is neither written later nor in the way of the others.
        self._file: BytesIO | FileIO = BytesIO() if path is None else path.open("r+b" if path.exists() else "w+b", buffering=0)
        self._path, self._ends = path, [0]
        weakref.finalize(self, self._file.close)
        size = self._file.seek(0, os.SEEK_END)
        while (start := self._ends[-1] + _LENGTH.size) <= size:
            self._file.seek(self._ends[-1])
            end = start + _LENGTH.unpack(self._file.read(_LENGTH.size))[0]
            if end > size:
                break
            self._ends.append(end)

    def append(self, data: bytes) -> None:
        """Put a message behind the others, which stay as they are if it cannot be written."""
        framed = _LENGTH.pack(len(data)) + data
        if isinstance(self._file, BytesIO) and self._ends[-1] + len(framed) > _IN_MEMORY:
            # No SpooledTemporaryFile, which loses what it holds if the disk is full just then.
            moved = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 # closed with the messages
            try:
                files.write_whole(moved.write, self._file.getvalue(), None)
            except OSError:
                moved.close()
                raise
            self._file.close()
            self._file = moved
            weakref.finalize(self, moved.close)
        self._file.seek(self._ends[-1])
        try:
            files.write_whole(self._file.write, framed, self._path)
        except OSError as error:
            error.filename = None if self._path is None else str(self._path)
            raise
        self._ends.append(self._ends[-1] + len(framed))

    def keep(self, count: int) -> None:
        """Drop all messages but the first ``count``."""
        del self._ends[count + 1 :]
        self._file.truncate(self._ends[-1])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[bytes]:
        for start, end in itertools.pairwise(self._ends):
            self._file.seek(start + _LENGTH.size)
            # A file without buffers reads less than 2 GiB at once.
            parts, left = list[bytes](), end - start - _LENGTH.size
            while left and (part := self._file.read(left)):
                parts.append(part)
                left -= len(part)
            yield b"".join(parts)

    def __contains__(self, data: object) -> bool:
        return any(data == message for message in self)


@dataclass(frozen=True)
class Agreement:
    """The terms of a secure aggregation.

    Args:
        public_key: For encryption.
        packing: How numbers are packed into plaintexts.
        size: Numbers in a sum.
        run: A unique name of the run.
        min_contributions: The fewest contributions in a sum that is opened.
        noising_holders: The number of holders that add noise to every sum, or 0.
        whole_key: Whether one owner has the key. Holders of shares form a sum themselves, from the contributions; the owner
            could read these one by one, and gets the server's sum only.
        server_noise: Whether the server adds one message of noise, if no holders do.
    """

    public_key: PublicKey
    packing: Packing
    size: int
    run: str
    min_contributions: int = 2
    noising_holders: int = 0
    whole_key: bool = False
    server_noise: bool = True

    def __post_init__(self) -> None:
        plain_numbers(self, whole_key=boolean, server_noise=boolean)
        if self.packing.key_bits != self.public_key.bits:
            raise ValueError(f"packing.key_bits = {self.packing.key_bits}: the key has {self.public_key.bits} bits")
        integer("size", self.size, at_least=1, at_most=_MOST_NUMBERS)
        if not isinstance(self.run, str) or not 1 <= len(self.run) <= LONGEST_NAME or not self.run.isprintable():
            raise ValueError(f"run = {shown(self.run)}: must be a name of at most {LONGEST_NAME} printable characters")
        integer("min_contributions", self.min_contributions, at_least=1, at_most=self.packing.max_clients)
        integer("noising_holders", self.noising_holders, at_least=0, at_most=100)
        if self.whole_key and self.noising_holders:
            raise ValueError("noising_holders: holders who add noise have shares of the key, and nobody has it whole")

    def record(self) -> dict[str, Any]:
        """The agreement as strict JSON."""
        key = {"n": f"{self.public_key.n:x}", "short_exponents": self.public_key.short_exponents}
        terms = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "public_key"}
        return {"version": _VERSION, **key, **terms, "packing": asdict(self.packing)}

    @classmethod
    def from_record(cls, record: object) -> "Agreement":
        """A received agreement; compare its key's ``key_id`` with the one that the owner gave you."""
        try:
            stated = dict(table("the agreement", record))
            version, modulus = stated.pop("version", None), stated.pop("n", None)
            if type(version) is not int or version != _VERSION:
                raise ValueError(f"version = {shown(version)}: is of another version than {_VERSION}, which this hubbub reads")
            if not isinstance(modulus, str) or not _HEXADECIMAL.fullmatch(modulus):
                raise ValueError("n is no number in hexadecimal")
            key = PublicKey.received(int(modulus, 16), stated.pop("short_exponents"))
            return cls(public_key=key, packing=Packing(**stated.pop("packing")), **stated)
        except (KeyError, TypeError, ValueError) as error:
            what = f"has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"the agreement on secure aggregation cannot be read: {what}") from error

    @cached_property
    def digest(self) -> bytes:
        """The first 16 bytes of a SHA-256 of all terms."""
        return hashlib.sha256(b"hubbub agreement 1" + strict_json.canonical(self.record())).digest()[:16]

    @property
    def ciphertexts(self) -> int:
        """The number of ciphertexts in a sum."""
        return self.packing.plaintexts(self.size)

    def contribution(self, sender: str, round_index: int, steps: npt.NDArray[np.int64], noise: Any = None) -> bytes:
        """A client's message: its numbers, packed and encrypted.

        ``steps`` are ``(size,)`` int64, secret, bounded by the packing; ``noise`` is the client's share, ``(size,)`` whole
        numbers of at most ``packing.noise // max_clients`` each.
        """
        return self._message(Kind.CONTRIBUTION, sender, round_index, self.packing.pack_steps(self._own(steps), noise))

    def noise(self, sender: str, round_index: int, steps: npt.NDArray[np.int64]) -> bytes:
        """A message of noise for a sum, ``(size,)`` whole steps; it counts as no contribution."""
        return self._message(Kind.NOISE, sender, round_index, self.packing.pack_noise(self._own(steps)))

    def _own(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if steps.shape != (self.size,):
            raise ValueError(f"steps has shape {steps.shape}: the agreement is on {self.size} numbers")
        return steps

    def _message(self, kind: Kind, sender: str, round_index: int, plaintexts: list[int]) -> bytes:
        integers = self.public_key.encrypt(plaintexts).integers
        return Message(kind, self.digest, round_index, sender, integers).to_bytes(self.public_key.bits)
