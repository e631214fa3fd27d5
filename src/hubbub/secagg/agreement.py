"""What clients, the server and the holders of the key agree on before the first round, and what a client then sends.

::

    agreement = Agreement(public, packing, size=21_840, run="…", min_contributions=2)
    data = agreement.contribution("client 7", round_index=0, steps=steps)      # at the client
    aggregator.add("client 7", data)                                           # at the server

Everything in it is public. Its digest stands in every message, so that numbers that were packed in another way, for another run
or under another key are not added by mistake. It binds nobody who writes messages himself: ciphertexts are malleable.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hubbub import strict_json
from hubbub._checks import integer, shown
from hubbub.secagg.packing import Packing
from hubbub.secagg.paillier import PublicKey
from hubbub.secagg.wire import Kind, Message

__all__ = ["Agreement"]

_VERSION = 1
_LONGEST_NAME = 200
_MOST_NUMBERS = 2**33
# A modulus in hexadecimal.
_HEXADECIMAL = re.compile(f"[0-9a-f]{{1,{16_384 // 4}}}")


@dataclass(frozen=True)
class Agreement:
    """The terms of a secure aggregation.

    Args:
        public_key: Under which everybody encrypts.
        packing: How numbers lie in plaintexts.
        size: How many numbers a sum has.
        run: A name of the run that no other run has.
        min_contributions: The fewest contributions in a sum that is opened.
        noising_holders: How many holders of the key add noise of their own to every sum; 0 where they do not.
        whole_key: Whether one owner has the key. Holders of shares form a sum themselves, from the contributions; the owner
            would read these one by one, and gets the server's sum alone.
        server_noise: Whether the server adds one message of noise, where no holders do.

    Raises:
        ValueError: A number out of range, or more contributions demanded than the packing has room for.
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
        if self.packing.key_bits != self.public_key.bits:
            raise ValueError(f"packing.key_bits = {self.packing.key_bits}: the key has {self.public_key.bits} bits")
        integer("size", self.size, at_least=1, at_most=_MOST_NUMBERS)
        if not isinstance(self.run, str) or not 1 <= len(self.run) <= _LONGEST_NAME or not self.run.isprintable():
            raise ValueError(f"run = {shown(self.run)}: must be a name of at most {_LONGEST_NAME} printable characters")
        integer("min_contributions", self.min_contributions, at_least=1, at_most=self.packing.max_clients)
        integer("noising_holders", self.noising_holders, at_least=0, at_most=100)
        for name in ("whole_key", "server_noise"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} = {shown(getattr(self, name))}: must be True or False")
        if self.whole_key and self.noising_holders:
            raise ValueError("noising_holders: holders who add noise have shares of the key, and nobody has it whole")

    def record(self) -> dict[str, Any]:
        """The agreement as strict JSON."""
        return {
            "version": _VERSION,
            "n": f"{self.public_key.n:x}",
            "short_exponents": self.public_key.short_exponents,
            "packing": asdict(self.packing),
            "size": self.size,
            "run": self.run,
            "min_contributions": self.min_contributions,
            "noising_holders": self.noising_holders,
            "whole_key": self.whole_key,
            "server_noise": self.server_noise,
        }

    @classmethod
    def from_record(cls, record: object) -> "Agreement":
        """An agreement that came from outside; compare its key's ``key_id`` with the one that you were told.

        Raises:
            ValueError: It cannot be read, or its key is too short or no product of two large primes.
        """
        try:
            version = record.get("version") if isinstance(record, Mapping) else None
            if not isinstance(record, Mapping) or type(version) is not int or version != _VERSION:
                raise ValueError(f"version = {shown(version)}: is of another version than {_VERSION}, which this hubbub reads")
            told = dict(record)
            del told["version"]
            modulus = told.pop("n")
            if not isinstance(modulus, str) or not _HEXADECIMAL.fullmatch(modulus):
                raise ValueError("n is no number in hexadecimal")
            key = PublicKey.received(int(modulus, 16), told.pop("short_exponents"))
            return cls(public_key=key, packing=Packing(**told.pop("packing")), **told)
        except (KeyError, TypeError, ValueError) as error:
            what = f"has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"the agreement on secure aggregation cannot be read: {what}") from error

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that stand for all of it."""
        return hashlib.sha256(b"hubbub agreement 1" + strict_json.canonical(self.record())).digest()[:16]

    @property
    def ciphertexts(self) -> int:
        """How many make one sum."""
        return self.packing.plaintexts(self.size)

    def contribution(self, sender: str, round_index: int, steps: npt.NDArray[np.int64], noise: Any = None) -> bytes:
        """A client's message: its numbers, packed and encrypted.

        Args:
            sender: The client's name.
            round_index: From 0.
            steps: ``(size,)`` int64, secret; bounded by the packing.
            noise: ``(size,)`` whole numbers, the client's share of the noise, at most ``packing.noise // max_clients`` each.

        Raises:
            ValueError: The numbers are not as many as was agreed, or one does not fit.
        """
        return self._message(Kind.CONTRIBUTION, sender, round_index, self.packing.pack_steps(self._own(steps), noise))

    def noise(self, sender: str, round_index: int, steps: npt.NDArray[np.int64]) -> bytes:
        """A message of noise for a sum, ``(size,)`` whole steps; it counts as no contribution.

        Raises:
            ValueError: The noise is more than the slots have room for.
        """
        return self._message(Kind.NOISE, sender, round_index, self.packing.pack_noise(self._own(steps)))

    def _own(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if steps.shape != (self.size,):
            raise ValueError(f"steps has shape {steps.shape}: the agreement is on {self.size} numbers")
        return steps

    def _message(self, kind: Kind, sender: str, round_index: int, plaintexts: list[int]) -> bytes:
        integers = self.public_key.encrypt(plaintexts).integers
        return Message(kind, self.digest, round_index, sender, integers).to_bytes(self.public_key.bits)
