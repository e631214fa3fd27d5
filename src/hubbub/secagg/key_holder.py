"""Who opens sums: the owner of the whole key, or the holder of one share of it.

A holder opens sums of enough contributions alone, each round once, and where the holders add noise, only sums that hold its
own. What it has opened, and which noise it gave, is on disk before its answer leaves, so that a restart does not make it
forget.

It knows nobody: that each contribution comes from another client is what the server says, and nothing here signs what clients
send. A server that makes contributions of its own can get at a single client's.
"""

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hubbub._util import files, strict_json
from hubbub._util.checks import integer
from hubbub.errors import RunFolderError, SumNotOpenedError
from hubbub.secagg.aggregator import Aggregator, Request, require_of
from hubbub.secagg.ciphertext import Ciphertext
from hubbub.secagg.paillier import PrivateKey
from hubbub.secagg.protocol import Agreement, Kind, Message
from hubbub.secagg.threshold import KeyShare, LyingHolderError, Partial, ThresholdKey, combine

__all__ = ["Holder", "Opened", "combined"]

_LARGEST = 10_000
_DIGEST_BYTES = 32
# What a holder answers: its part, or, of the whole key, what the sum says.
Opened = Partial | tuple[int, ...]


@dataclass(frozen=True)
class _Done:
    """What a holder did: the first round that it has not opened and the last request; the last round that it gave noise of, −1
    for none, and the SHA-256 of that message."""

    next_round: int = 0
    request: bytes = b""
    noise_round: int = -1
    noise: bytes = b""


class Holder:
    """One who opens sums of one run.

    Args:
        key: A share, or the whole key.
        agreement: What was agreed; a share's key demands no fewer contributions than it says.
        folder: Where the holder keeps what it did; ``None`` keeps it in memory.

    Raises:
        ValueError: The agreement is on another key, or on fewer contributions than the key demands.
        RunFolderError: The folder is another run's, or cannot be read.
    """

    def __init__(self, key: KeyShare | PrivateKey, agreement: Agreement, folder: Path | None = None) -> None:
        public = key.public.public_key if isinstance(key, KeyShare) else key.public_key
        if public != agreement.public_key:
            raise ValueError(f"agreement: is on the key {agreement.public_key.key_id!r}, this holder has {public.key_id!r}")
        if isinstance(key, PrivateKey) != agreement.whole_key:
            raise ValueError("agreement: is for the owner of a whole key, and this is a share, or the other way round")
        demanded = key.public.min_contributions if isinstance(key, KeyShare) else 1
        if agreement.min_contributions < demanded:
            raise ValueError(
                f"agreement: opens sums of {agreement.min_contributions} contributions, the key is for sums of at least "
                f"{demanded}; agree on as many"
            )
        self.agreement = agreement
        self._key = key
        self._path = None if folder is None else folder / "opened.json"
        self._done = self._kept()

    @property
    def number(self) -> int:
        """From 1; the owner of the whole key is number 1."""
        return self._key.holder if isinstance(self._key, KeyShare) else 1

    @property
    def name(self) -> str:
        """By which messages name the holder."""
        return f"holder {self.number}"

    @property
    def next_round(self) -> int:
        """The first round that was not opened yet."""
        return self._done.next_round

    def begin(self) -> None:
        """Write down that nothing was done yet, so that a record that is missing later is a record that was lost."""
        self._remember(self._done)

    def noise(self, round_index: int, steps: npt.NDArray[np.int64]) -> bytes:
        """This holder's noise of a round as a message; a sum without it is not opened here.

        Args:
            round_index: One that was not opened yet, later than any that noise was given of.
            steps: ``(size,)`` whole steps; secret, and never used for another round.

        Raises:
            ValueError: The round was opened, or its noise given out, already.
        """
        self.require_no_noise_yet(round_index)
        data = self.agreement.noise(self.name, round_index, steps)
        self._remember(replace(self._done, noise_round=round_index, noise=hashlib.sha256(data).digest()))
        return data

    def require_no_noise_yet(self, round_index: int) -> None:
        """Refuse a round that was opened, or that noise was given of, or one before.

        Raises:
            ValueError: It is one.
        """
        if integer("round_index", round_index, at_least=0) < max(self._done.next_round, self._done.noise_round + 1):
            raise ValueError(f"round {round_index + 1}: {self.name} has given its noise of this round already")

    def open(self, request: Request, *, threads: int = 1) -> Opened:
        """This holder's part of what a sum says.

        Raises:
            SumNotOpenedError: It is no sum that this holder opens: too few contributions, the round was opened already, or the
                holder's own noise is not in it.
        """
        digest = request.digest
        if request.round_index < self._done.next_round and digest != self._done.request:
            raise SumNotOpenedError(f"round {request.round_index + 1}: {self.name} has opened a sum of this round already")
        try:
            total = self._formed(request)
        except ValueError as error:
            raise SumNotOpenedError(f"{self.name} opens nothing: {error}", (self.name,)) from error
        self._remember(replace(self._done, next_round=request.round_index + 1, request=digest))
        if isinstance(self._key, PrivateKey):
            return self._counted(tuple(self._key.decrypt(total, threads=threads)), request)
        seen = len(request.contributions) or 1
        return self._key.partial(total, contributions=seen, workers=threads)

    def _counted(self, plaintexts: tuple[int, ...], request: Request) -> tuple[int, ...]:
        """What the owner of the whole key has opened, if it counts enough contributions."""
        needed = self.agreement.min_contributions
        with suppress(ValueError):
            if self.agreement.packing.contributions(plaintexts) >= needed:
                return plaintexts
        raise SumNotOpenedError(
            f"round {request.round_index + 1}: {self.name} opened no sum of {needed} contributions or more, and keeps it",
            (self.name,),
        )

    def _formed(self, request: Request) -> Ciphertext:
        """The sum, made of the messages by the server's own rules, or the server's where that was agreed."""
        agreed, done = self.agreement, self._done
        own = done.noise if done.noise_round == request.round_index else None
        given = {hashlib.sha256(data).digest() for data in request.noise}
        if agreed.noising_holders and (own not in given or len(request.noise) != agreed.noising_holders):
            raise ValueError(f"the sum holds the noise of {len(given)} holders, or not this holder's own")
        if agreed.whole_key:
            message = Message.from_bytes(request.total, agreed.public_key.bits, "the sum", at_most=agreed.ciphertexts)
            require_of(agreed, request.round_index, Kind.SUM, message, "the sum")
            return agreed.public_key.ciphertext(list(message.integers), name="the sum")
        summing = Aggregator(agreed, request.round_index)
        for add, parts in ((summing.add, request.contributions), (summing.add_noise, request.noise)):
            for data in parts:
                stated = Message.from_bytes(data, agreed.public_key.bits, "a message of the sum", at_most=agreed.ciphertexts)
                add(stated.sender, data)
        summing.request()
        return summing.total

    def _kept(self) -> _Done:
        """What was done by earlier starts."""
        if self._path is None or not self._path.exists():
            return _Done()
        try:
            told = strict_json.loads(files.read(self._path, at_most=_LARGEST))
            if told["agreement"] != self.agreement.digest.hex():
                raise ValueError("it is another run's")
            rounds = [integer(name, told[name], at_least=least) for name, least in (("next_round", 0), ("noise_round", -1))]
            return _Done(rounds[0], _digest(told["request"]), rounds[1], _digest(told["noise"]))
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise RunFolderError(f"{self._path}: cannot be read ({error}); give this holder a folder of its own") from error

    def _remember(self, done: _Done) -> None:
        """Keep it, on disk first."""
        if self._path is not None:
            told = {
                "agreement": self.agreement.digest.hex(),
                "next_round": done.next_round,
                "request": done.request.hex(),
                "noise_round": done.noise_round,
                "noise": done.noise.hex(),
            }
            files.write_atomic(self._path, strict_json.canonical(told))
        self._done = done


def combined(
    aggregator: Aggregator, public: ThresholdKey | None, answers: Iterable[Opened]
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """What a sum says, from the answers of those who open it.

    Args:
        aggregator: The sum.
        public: The key that is shared out; ``None`` where one owner has it whole.
        answers: Of the holders.

    Returns:
        ``(size,)`` whole steps, and the names of holders whose answers were false, which were left out.

    Raises:
        SumNotOpenedError: Too few true answers, or what they say is no sum of the contributions.
    """
    given = list(answers)
    if public is None:
        whole = [answer for answer in given if isinstance(answer, tuple)]
        if len(whole) != 1:
            raise SumNotOpenedError(f"round {aggregator.round_index + 1}: the owner of the key did not answer")
        return aggregator.read(whole[0]), ()
    asked = (public.key_id, aggregator.total.shape, tuple(int(c) for c in aggregator.total.integers))
    given_parts = [answer for answer in given if isinstance(answer, Partial)]
    partials = [part for part in given_parts if (part.key_id, part.shape, part.ciphertexts) == asked]
    liars = tuple(f"holder {part.holder}" for part in given_parts if part not in partials)
    while True:
        try:
            return aggregator.read(combine(public, partials, aggregator.total)), liars
        except LyingHolderError as error:
            liars += tuple(f"holder {number}" for number in error.holders)
            partials = [part for part in partials if part.holder not in error.holders]
        except ValueError as error:
            false = f"; false answers of {', '.join(liars)}" if liars else ""
            raise SumNotOpenedError(f"round {aggregator.round_index + 1}: {error}{false}", liars) from error


def _digest(text: object) -> bytes:
    """What a file holds of a SHA-256, or of none."""
    if not isinstance(text, str) or len(text) not in (0, 2 * _DIGEST_BYTES):
        raise ValueError("a digest must be empty or 64 hexadecimal digits")
    return bytes.fromhex(text)
