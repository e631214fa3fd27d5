"""The server's sum of encrypted contributions: each is added once, and the sum is read when the holders have opened it."""

import hashlib
import hmac
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt

from hubbub._util.checks import integer, shown
from hubbub.errors import SumNotOpenedError
from hubbub.secagg.ciphertext import Ciphertext
from hubbub.secagg.protocol import Agreement, Kind, Message, MessageFile, as_bytes

_SERVER = "server"


@dataclass(frozen=True)
class Request:
    """A request to the holders of shares to open a sum: the messages of clients and of who adds noise.

    The owner of a whole key gets the server's sum, ``total``, and no messages.
    """

    round_index: int
    contributions: Collection[bytes] = field(repr=False)
    noise: tuple[bytes, ...] = field(repr=False)
    total: bytes = field(default=b"", repr=False)

    @property
    def digest(self) -> bytes:
        """A SHA-256 of all of it."""
        hashed = hashlib.sha256(b"hubbub request 1" + self.round_index.to_bytes(8, "big"))
        for parts in (self.contributions, self.noise, (self.total,)):
            hashed.update(len(parts).to_bytes(8, "big"))
            for part in parts:
                hashed.update(hashlib.sha256(part).digest())
        return hashed.digest()


class Aggregator:
    """The encrypted sum of one round; messages of other rounds are refused, so that none of an earlier one is remembered.

    If it ``keeps``, a request is made of it: what came is kept for the holders of shares, in a temporary file.
    """

    def __init__(self, agreement: Agreement, round_index: int, *, keeps: bool = True) -> None:
        self.agreement = agreement
        self.round_index = integer("round_index", round_index, at_least=0)
        # Holders of shares form the sum from the messages; the owner of a whole key, who could read single ones, gets none.
        self._kept = MessageFile() if keeps and not agreement.whole_key else None
        self._senders: dict[str, None] = {}
        self._noise: dict[str, bytes] = {}
        # Digests: the ciphertexts themselves would be the memory of all contributions.
        self._ciphertexts: set[bytes] = set()
        self._total: Ciphertext | None = None

    @property
    def senders(self) -> tuple[str, ...]:
        """The senders of the contributions in the sum, in their order."""
        return tuple(self._senders)

    @property
    def total(self) -> Ciphertext:
        """The encrypted sum of all contributions and noise."""
        if self._total is None:
            raise self.unopened("no contribution came, so that there is no sum")
        return self._total

    def unopened(self, why: object, who: tuple[str, ...] = ()) -> SumNotOpenedError:
        """A refusal to open the sum of this round, and who caused it."""
        return SumNotOpenedError(f"round {self.round_index + 1}: {why}", who)

    def add(self, sender: str, data: object) -> None:
        """Add the contribution of a client, which the channel names; one that is refused leaves the sum as it was."""
        if sender in self._senders:
            raise ValueError(f"client {shown(sender)}: has contributed to this round already")
        if len(self._senders) >= self.agreement.packing.max_clients:
            raise ValueError(
                f"client {shown(sender)}: the packing has room for {self.agreement.packing.max_clients} contributions, which "
                "have come"
            )
        self._take(Kind.CONTRIBUTION, f"client {shown(sender)}", sender, data)
        self._senders[sender] = None

    def add_noise(self, sender: str, data: object) -> None:
        """Add noise, which counts as no contribution."""
        if sender in self._noise:
            raise ValueError(f"{sender}: its noise of this round is in the sum already")
        if len(self._noise) >= (self.agreement.noising_holders or self.agreement.server_noise):
            raise ValueError(f"{sender}: sent noise that was not agreed on")
        self._take(Kind.NOISE, sender, sender, data)
        self._noise[sender] = cast(bytes, data)

    def add_own_noise(self, steps: npt.NDArray[np.int64]) -> None:
        """Encrypt the server's noise, ``(size,)`` whole steps, and add it."""
        self.add_noise(_SERVER, self.agreement.noise(_SERVER, self.round_index, steps))

    def require_contributions(self) -> None:
        """Refuse a sum with too few contributions."""
        came, needed = len(self._senders), self.agreement.min_contributions
        if came < needed:
            raise self.unopened(f"{came} contributions came; sums of fewer than {needed} are not opened")

    def require_complete(self) -> None:
        """Refuse a sum with too few contributions, or without the noise that was agreed on."""
        self.require_contributions()
        rows = self.agreement.noising_holders
        if len(self._noise) < rows:
            raise self.unopened(f"the noise of {len(self._noise)} holders came; each of {rows} adds its own")
        if self.agreement.server_noise and self.agreement.packing.noise and not self._noise:
            raise self.unopened("the server's noise is not in the sum, which is not opened bare")

    def request(self) -> Request:
        """The request to the holders."""
        self.require_complete()
        if self._kept is not None:
            return Request(self.round_index, self._kept, tuple(self._noise.values()))
        sums = Message(Kind.SUM, self.agreement.digest, self.round_index, _SERVER, self.total.integers)
        return Request(self.round_index, (), (), sums.to_bytes(self.agreement.public_key.bits))

    def digest(self, key: bytes) -> str:
        """An HMAC of the encrypted sum."""
        tag = hmac.new(key, digestmod=hashlib.sha256)
        for part in as_bytes(self.total.integers, self.agreement.public_key.bits):
            tag.update(part)
        return tag.hexdigest()

    def read(self, plaintexts: Iterable[int]) -> npt.NDArray[np.int64]:
        """The sum in whole steps, ``(size,)``, from the opened plaintexts."""
        try:
            steps = self.agreement.packing.unpack_steps(plaintexts, len(self._senders))
        except ValueError as error:
            raise self.unopened(error) from error
        if steps.size != self.agreement.size:
            raise self.unopened(f"the sum has {steps.size} numbers, {self.agreement.size} were agreed on")
        return steps

    def _take(self, kind: Kind, name: str, sender: str, data: object) -> None:
        """Check a message, keep it, and add its ciphertexts to the sum; a refused message leaves the sum as it was."""
        agreed = self.agreement
        message = received(agreed, self.round_index, kind, data, name)
        if message.sender != sender:
            raise ValueError(f"{name}: sent the message of {shown(message.sender)}")
        if len(message.integers) != agreed.ciphertexts:
            raise ValueError(f"{name}: sent {len(message.integers)} ciphertexts, {agreed.ciphertexts} were agreed on")
        ciphertext = agreed.public_key.ciphertext(list(message.integers), name=name)
        if any(c % agreed.public_key.n == 1 for c in ciphertext.integers):
            raise ValueError(f"{name}: sent what was encrypted without randomness")
        fresh = {hashlib.sha256(c).digest()[:16] for c in as_bytes(ciphertext.integers, agreed.public_key.bits)}
        if len(fresh) < len(ciphertext.integers) or not self._ciphertexts.isdisjoint(fresh):
            raise ValueError(f"{name}: sent a ciphertext that was there before; each is made afresh")
        if self._kept is not None and kind is Kind.CONTRIBUTION:
            try:
                self._kept.append(cast(bytes, data))
            except OSError as error:
                where = f"cannot be kept in {tempfile.tempdir or 'a temporary file'} for the holders: {error.strerror}"
                raise OSError(error.errno, f"{name}: {where}; make room, or name another folder by TMPDIR") from error
        self._ciphertexts |= fresh
        self._total = ciphertext if self._total is None else self._total + ciphertext


def received(agreement: Agreement, round_index: int, kind: Kind, data: object, name: str) -> Message:
    """A received message; one that is not of this agreement, round and kind is refused."""
    message = Message.from_bytes(data, agreement.public_key.bits, name, at_most=agreement.ciphertexts)
    if message.agreement != agreement.digest:
        raise ValueError(f"{name}: encrypted for another run, under another key, or packed in another way than was agreed")
    if message.round_index != round_index:
        raise ValueError(f"{name}: sent a message of round {message.round_index + 1}, this is round {round_index + 1}")
    if message.kind is not kind:
        raise ValueError(f"{name}: sent a {message.kind.name.lower()}: this is the place of a {kind.name.lower()}")
    return message
