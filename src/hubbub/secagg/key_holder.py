"""The holder who opens sums: the owner of the whole key, or of one share of it.

A holder opens only sums of enough contributions, each round once, and if holders add noise, only sums with its own noise. The
rounds it opened and the noise it released are on disk before its answer leaves, so that restarts change nothing.

It does not authenticate clients: contributions are not signed, and a server that makes contributions of its own can isolate a
single client's.
"""

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hubbub._util import checks, files, strict_json
from hubbub._util.checks import integer
from hubbub._util.files import refusing
from hubbub.errors import SumNotOpenedError
from hubbub.secagg.aggregator import Aggregator, Request, received
from hubbub.secagg.ciphertext import Ciphertext
from hubbub.secagg.paillier import PrivateKey
from hubbub.secagg.protocol import Agreement, Kind, Message
from hubbub.secagg.threshold import KeyShare, Partial, ThresholdKey, combine, proved

_LARGEST = 10_000
# The answer of a holder of a share, or of the owner of the whole key (plaintexts).
Opened = Partial | tuple[int, ...]


@dataclass(frozen=True)
class _Done:
    """A holder's record: the first round not opened and the digest of the last request; the last round for which it released
    noise, −1 for none, and the SHA-256 of that message; digests in hexadecimal."""

    next_round: int = 0
    request: str = ""
    noise_round: int = -1
    noise: str = ""


class Holder:
    """A holder of a share, or of the whole key, in one run; its record is in a folder, or in memory without one."""

    def __init__(self, key: KeyShare | PrivateKey, agreement: Agreement, folder: Path | None = None) -> None:
        public, demanded = key.public.public_key, key.public.min_contributions
        if public != agreement.public_key:
            raise ValueError(f"agreement: is on the key {agreement.public_key.key_id!r}, this holder has {public.key_id!r}")
        if isinstance(key, PrivateKey) != agreement.whole_key:
            raise ValueError("agreement: is for the owner of a whole key, and this is a share, or the other way round")
        if agreement.min_contributions < demanded:
            raise ValueError(
                f"agreement: opens sums of {agreement.min_contributions} contributions, the key is for sums of at least "
                f"{demanded}; agree on as many"
            )
        self.agreement = agreement
        self._key = key
        self._path = None if folder is None else folder / "opened.json"
        # The record of earlier starts.
        self._done = _Done()
        if self._path is None or not self._path.exists():
            return
        with refusing(self._path, "cannot be read", "give this holder a folder of its own"):
            stored = strict_json.loads(files.read(self._path, at_most=_LARGEST))
            if stored["agreement"] != agreement.digest.hex():
                raise ValueError("it is another run's")
            rounds = [integer(name, stored[name], at_least=least) for name, least in (("next_round", 0), ("noise_round", -1))]
            request, noise = ("" if stored[name] == "" else checks.digest(name, stored[name]) for name in ("request", "noise"))
            self._done = _Done(rounds[0], request, rounds[1], noise)

    @property
    def number(self) -> int:
        """The holder's number from 1; 1 for the owner of the whole key."""
        return self._key.holder

    @property
    def name(self) -> str:
        """The holder's name in messages."""
        return f"holder {self.number}"

    @property
    def next_noise(self) -> int:
        """The first round from which on no noise was released."""
        return self._done.noise_round + 1

    def begin(self) -> None:
        """Write an empty record, so that a missing record later means a lost one."""
        self._remember(self._done)

    def noise(self, round_index: int, steps: npt.NDArray[np.int64]) -> bytes:
        """A message of this holder's noise, ``(size,)`` secret steps of one round; no sum without it is opened here."""
        self.require_no_noise_yet(round_index)
        data = self.agreement.noise(self.name, round_index, steps)
        self._remember(replace(self._done, noise_round=round_index, noise=hashlib.sha256(data).hexdigest()))
        return data

    def require_no_noise_yet(self, round_index: int) -> None:
        """Refuse a round that is not later than all opened rounds and all released noise."""
        if integer("round_index", round_index, at_least=0) < max(self._done.next_round, self.next_noise):
            raise ValueError(f"round {round_index + 1}: {self.name} has given its noise of this round already")

    def open(self, request: Request) -> Opened:
        """This holder's part of what a sum says.

        Too few contributions, a round that was opened already, and a sum without the holder's own noise are refused.
        """
        digest = request.digest.hex()
        if request.round_index < self._done.next_round and digest != self._done.request:
            raise SumNotOpenedError(f"round {request.round_index + 1}: {self.name} has opened a sum of this round already")
        try:
            total = self._formed(request)
        except ValueError as error:
            raise SumNotOpenedError(f"{self.name} opens nothing: {error}", (self.name,)) from error
        self._remember(replace(self._done, next_round=request.round_index + 1, request=digest))
        if isinstance(self._key, KeyShare):
            return self._key.partial(total, contributions=len(request.contributions) or 1)
        plaintexts, needed = tuple(self._key.decrypt(total)), self.agreement.min_contributions
        with suppress(ValueError):
            if self.agreement.packing.contributions(plaintexts) >= needed:
                return plaintexts
        raise SumNotOpenedError(
            f"round {request.round_index + 1}: {self.name} opened no sum of {needed} contributions or more, and keeps it",
            (self.name,),
        )

    def _formed(self, request: Request) -> Ciphertext:
        """The sum, formed from the messages by the server's own rules; for the owner of the whole key, the server's sum."""
        agreed, done = self.agreement, self._done
        own = done.noise if done.noise_round == request.round_index else None
        given = {hashlib.sha256(data).hexdigest() for data in request.noise}
        if agreed.noising_holders and (own not in given or len(request.noise) != agreed.noising_holders):
            raise ValueError(f"the sum holds the noise of {len(given)} holders, or not this holder's own")
        if agreed.whole_key:
            message = received(agreed, request.round_index, Kind.SUM, request.total, "the sum")
            return agreed.public_key.ciphertext(list(message.integers), name="the sum")
        summing = Aggregator(agreed, request.round_index, keeps=False)
        for add, parts in ((summing.add, request.contributions), (summing.add_noise, request.noise)):
            for data in parts:
                stated = Message.from_bytes(data, agreed.public_key.bits, "a message of the sum", at_most=agreed.ciphertexts)
                add(stated.sender, data)
        summing.require_complete()
        return summing.total

    def _remember(self, done: _Done) -> None:
        """Keep the record, on disk first."""
        if self._path is not None:
            content = {"agreement": self.agreement.digest.hex(), **asdict(done)}
            files.write_atomic(self._path, strict_json.canonical(content))
        self._done = done


def combined(
    aggregator: Aggregator, public: ThresholdKey | None, answers: Iterable[Opened]
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """The opened sum, from the answers of the holders of a threshold key, or (``None``) of the owner of a whole key.

    It is ``(size,)`` whole steps, with the names of holders whose answers were false and left out.

    Raises:
        SumNotOpenedError: Too few answers are true, or the plaintexts are no sum of the contributions.
    """
    given = list(answers)
    if public is None:
        whole = [answer for answer in given if isinstance(answer, tuple)]
        if len(whole) != 1:
            raise aggregator.unopened("the owner of the key did not answer")
        return aggregator.read(whole[0]), ()
    asked = (public.key_id, aggregator.total.shape, tuple(int(c) for c in aggregator.total.integers))
    true, false = dict[int, Partial](), dict[int, None]()
    for part in (answer for answer in given if isinstance(answer, Partial)):
        if (part.key_id, part.shape, part.ciphertexts) == asked and proved(public, part):
            true.setdefault(part.holder, part)
        else:
            false[part.holder] = None
    liars = tuple(f"holder {number}" for number in false if number not in true)
    try:
        return aggregator.read(combine(public, list(true.values())[: public.threshold], aggregator.total)), liars
    except ValueError as error:
        named = f"; false answers of {', '.join(liars)}" if liars else ""
        raise aggregator.unopened(f"{error}{named}", liars) from error
