"""What the server and the holders of the key say to each other on a grid, as records: both sides read them here.

The server asks with ``query.paillier`` messages: who holds what (*hello*), noise of a round, and to open a sum. The parts of a
large request are records of their own, which Flower carries one by one. Nothing in them is secret but what a sum says, in the
answer of the one owner of a whole key.
"""

import fcntl
import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from flwr.app import ConfigRecord, RecordDict

from hubbub._util import files, strict_json
from hubbub._util.checks import integer, scale, shown
from hubbub.errors import LedgerError, RunFolderError
from hubbub.flower.messages import AGREEMENT, HELLO, Held, said
from hubbub.flower.secagg_client import agreement_of
from hubbub.ledger.promise import Promise
from hubbub.noise.lattice import Lattice
from hubbub.secagg.aggregator import Aggregator, Request
from hubbub.secagg.key_holder import Holder, Opened
from hubbub.secagg.paillier import PrivateKey
from hubbub.secagg.proofs import Proof
from hubbub.secagg.protocol import Agreement, as_bytes, width
from hubbub.secagg.threshold import KeyShare, Partial, ThresholdKey
from hubbub.training.encrypted import HolderNoise, noise_steps
from hubbub.training.encryption import Encryption
from hubbub.training.run_folder.state import parse

__all__ = [
    "ARRAYS",
    "CLIP_NORM",
    "NOISE",
    "OPEN",
    "PROMISE",
    "ROUND",
    "HolderFolder",
    "answer_record",
    "opened",
    "request_of",
    "request_records",
    "round_of",
]

NOISE, OPEN = "noise", "open"
ROUND, CLIP_NORM, PROMISE, ARRAYS = "round", "clip-norm", "promise", "arrays"
_MOST_ROUNDS = 2**31
# That a decrypted number, which may be negative, needs beyond the bits of the key.
_SPARE_BYTES = 1
# Of the two numbers of a proof: more than one of a key of 16,384 bits has.
_LONGEST_PROOF = 16_384


def request_records(request: Request) -> dict[str, ConfigRecord]:
    """What a holder is asked to open: its messages, each in a record of its own."""
    parts = {**_numbered("contribution", request.contributions), **_numbered("noise", request.noise)}
    return {**parts, "total": ConfigRecord({"data": request.total})}


def request_of(content: RecordDict, round_index: int, *, contributions: int, noise: int) -> Request:
    """The request that came, of at most so many messages."""
    names = [_named(content, "contribution", contributions), _named(content, "noise", noise)]
    given = [tuple(_data(content, name) for name in some) for some in names]
    return Request(round_index, given[0], given[1], _data(content, "total"))


def answer_record(answer: Opened, key_bits: int) -> ConfigRecord:
    """A holder's answer: its part and the proof of it, or, of the owner of the whole key, what the sum says."""
    if not isinstance(answer, Partial):
        size = key_bits // 8 + _SPARE_BYTES
        plain = b"".join(int(number).to_bytes(size, "little", signed=True) for number in answer)
        return ConfigRecord({"plaintexts": plain})
    parts = b"".join(as_bytes(answer.integers, key_bits))
    proof = (answer.proof.challenge, answer.proof.response)
    numbers = [int(number).to_bytes((int(number).bit_length() + 7) // 8, "little") for number in proof]
    return ConfigRecord({"holder": answer.holder, "parts": parts, "challenge": numbers[0], "response": numbers[1]})


def opened(content: RecordDict, holder: int, aggregator: Aggregator, public: ThresholdKey | None) -> Opened:
    """The answer that came from a holder; whether it is true is not looked at."""
    record, total = said(content), aggregator.total
    bits, count = aggregator.agreement.public_key.bits, len(total.integers)
    if public is None:
        return tuple(_integers(record, "plaintexts", count, bits // 8 + _SPARE_BYTES, signed=True))
    if record.get("holder") != holder:
        raise ValueError(f"answers as holder {shown(record.get('holder'))}")
    parts = tuple(_integers(record, "parts", count, width(bits)))
    proof = Proof(*(int.from_bytes(_bytes(record, name, _LONGEST_PROOF), "little") for name in ("challenge", "response")))
    return Partial(public.key_id, holder, total.shape, tuple(int(c) for c in total.integers), parts, proof)


def round_of(record: ConfigRecord) -> int:
    """The round of a message, from 0."""
    return integer(ROUND, record.get(ROUND), at_least=0, at_most=_MOST_ROUNDS)


def _numbered(name: str, parts: Sequence[bytes]) -> dict[str, ConfigRecord]:
    return {f"{name}-{i}": ConfigRecord({"data": part}) for i, part in enumerate(parts)}


def _named(records: Iterable[str], name: str, most: int) -> list[str]:
    """The names of the parts of a kind, in order."""
    count = sum(1 for found in records if found.startswith(f"{name}-"))
    if count > most:
        raise ValueError(f"has {count} records of {name}, at most {most} were agreed on")
    return [f"{name}-{i}" for i in range(count)]


def _data(content: RecordDict, name: str) -> bytes:
    record = content.get(name)
    if not isinstance(record, ConfigRecord):
        raise ValueError(f"has no ConfigRecord {name!r}")
    return _bytes(record, "data", None)


def _bytes(record: ConfigRecord, name: str, at_most: int | None) -> bytes:
    value = record.get(name)
    if not isinstance(value, bytes) or (at_most is not None and len(value) > at_most):
        raise ValueError(f"{name}: must be bytes" + ("" if at_most is None else f", at most {at_most}"))
    return value


def _integers(record: ConfigRecord, name: str, count: int, size: int, *, signed: bool = False) -> list[int]:
    data = _bytes(record, name, None)
    if len(data) != count * size:
        raise ValueError(f"{name}: has {len(data)} bytes, {count} numbers of {size} were asked for")
    return [int.from_bytes(data[i : i + size], "little", signed=signed) for i in range(0, len(data), size)]


_LARGEST_PROMISE, _LARGEST_ARRAYS = 10**6, 2**32
_FILES = ("promise.json", "strategy.safetensors")
_LOG = logging.getLogger("flwr")


class HolderFolder:
    """A holder's answers to the server."""

    def __init__(self, key: KeyShare | PrivateKey, root: Path, seed: object = None) -> None:
        self._key, self._root = key, root
        self._seed = None if seed is None else integer("paillier-noise-seed", seed, at_least=0)

    def answer(self, content: RecordDict) -> ConfigRecord:
        """What the server gets in reply to a message."""
        record = said(content)
        action = record.get("action")
        agreement = agreement_of(record.get(AGREEMENT))
        # A holder of another key neither keeps nor answers anything.
        number = Holder(self._key, agreement).number
        # A run's name is anybody's text.
        folder = self._root / f"holder-{number}-{hashlib.sha256(agreement.run.encode()).hexdigest()[:16]}"
        if action != HELLO and not folder.exists():
            raise ValueError(_untold(agreement))
        with _locked(folder):
            if action == HELLO:
                self._agree(folder, agreement, record)
                return self._held()
            _require_agreed(folder, agreement)
            holder, promise = Holder(self._key, agreement, folder), _promise_in(folder)
            round_index = round_of(record)
            if promise is not None and round_index >= promise.rounds:
                raise ValueError(f"round {round_index + 1}: the run promised to have {promise.rounds}")
            if action == NOISE:
                return self._noise(folder, holder, promise, round_index, record)
            if action == OPEN:
                rows = max(1, agreement.noising_holders)
                request = request_of(content, round_index, contributions=agreement.packing.max_clients, noise=rows)
                return answer_record(holder.open(request), agreement.public_key.bits)
        raise ValueError(f"action = {shown(action)}: must be {HELLO}, {NOISE} or {OPEN}")

    def _held(self) -> ConfigRecord:
        if isinstance(self._key, KeyShare):
            return Held(self._key.holder, self._key.public.key_id).record()
        return Held(1, self._key.public_key.key_id).record()

    def _agree(self, folder: Path, agreement: Agreement, record: ConfigRecord) -> None:
        """Keep what was agreed and promised, the first time; later refuse anything else under the run's name."""
        stated, arrays = (_optional(record, name) for name in (PROMISE, ARRAYS))
        if (folder / "agreement.json").exists():
            _require_agreed(folder, agreement)
            kept = [files.read(folder / name, at_most=_LARGEST_ARRAYS) if (folder / name).exists() else b"" for name in _FILES]
            if kept != [stated, arrays]:
                raise ValueError(f"run {agreement.run!r}: promises something else than when this holder agreed to it")
            return
        if (agreement.noising_holders > 0) != bool(stated):
            raise ValueError("a promise is there, and no holder adds noise, or holders do, and it is missing")
        sentence = "Holders add no noise: who does, and what is guaranteed, the server knows."
        if stated:
            promise = _promise(stated, arrays)
            if Encryption.bits_of(promise.lattice_bits) != agreement.packing.bits:
                raise ValueError(
                    f"the promise is of noise on a lattice of {promise.lattice_bits} bits, the agreement packs "
                    f"{agreement.packing.bits}: clients could move a sum by more than the noise hides"
                )
            if self._seed is not None and not promise.simulation:
                raise ValueError("this node's paillier-noise-seed is for simulations; the run is none")
            sentence = "Each holder adds noise of its own: " + promise.after(promise.rounds, promise.delta).sentence()
            files.write_atomic(folder / _FILES[0], stated)
            files.write_atomic(folder / _FILES[1], arrays)
        else:
            # What a start left that was told of a promise and did not come to its end.
            for name in _FILES:
                files.remove(folder / name)
        Holder(self._key, agreement, folder).begin()
        files.write_atomic(folder / "agreement.json", strict_json.canonical(agreement.record()))
        _say_once(agreement.run, agreement.min_contributions, sentence)

    def _noise(
        self, folder: Path, holder: Holder, promise: Promise | None, round_index: int, record: ConfigRecord
    ) -> ConfigRecord:
        """The holder's row of a round, encrypted; from here on it is spent."""
        if promise is None or promise.mechanism is None:
            raise ValueError("holders add no noise in this run")
        clip_norm = _promised_clip_norm(promise, record)
        holder.require_no_noise_yet(round_index)
        stream = HolderNoise(promise.mechanism, holder.agreement.size, folder / "noise", seed=self._seed)
        lattice = Lattice(clip_norm, promise.lattice_bits)
        steps = noise_steps(stream.row(round_index) * lattice.clip_norm, lattice.step)
        return ConfigRecord({"noise": holder.noise(round_index, steps)})


def _promised_clip_norm(promise: Promise, record: ConfigRecord) -> float:
    """The clip norm of the message, which is the promised one where it does not move.

    Raises:
        ValueError: It is another.
    """
    told, fixed = scale(CLIP_NORM, record.get(CLIP_NORM)), promise.terms.clip_norm
    if fixed is None and not promise.terms.adaptive:
        raise ValueError("the run promises no clip norm, to which noise would be scaled")
    if fixed is not None and told != fixed:
        raise ValueError(f"{CLIP_NORM} = {told}: the run promises {shown(fixed)}")
    return told


def _promise_in(folder: Path) -> Promise | None:
    if not (folder / _FILES[0]).exists():
        return None
    return _promise(*(files.read(folder / name, at_most=_LARGEST_ARRAYS) for name in _FILES))


def _promise(stated: bytes, arrays: bytes) -> Promise:
    """A promise of noise by the holders."""
    if len(stated) > _LARGEST_PROMISE:
        raise ValueError(f"{PROMISE}: has {len(stated)} bytes, at most {_LARGEST_PROMISE} are read")
    record = strict_json.loads(stated)
    if not isinstance(record, dict):
        raise ValueError(f"{PROMISE}: is no table")
    try:
        promise = Promise.from_record(record, {name: tensor.numpy() for name, tensor in parse(arrays).items()})
    except LedgerError as error:
        raise ValueError(f"the promise of the run cannot be read: {error}") from error
    if promise.noise_by != "holders":
        raise ValueError("the run does not promise that holders add noise")
    return promise


@lru_cache(maxsize=64)
def _say_once(run: str, min_contributions: int, sentence: str) -> None:
    """Log what holders of a run agreed to, once for all of them that are in this process, as they are in a simulation."""
    _LOG.info("Sums of at least %s contributions are opened here for run %r. %s", min_contributions, run, sentence)


def _require_agreed(folder: Path, agreement: Agreement) -> None:
    path = folder / "agreement.json"
    if not path.exists():
        raise ValueError(_untold(agreement))
    if not (folder / "opened.json").exists():
        raise RunFolderError(f"{folder}: opened.json is missing, so that nobody knows which rounds were opened; restore it")
    if files.read(path, at_most=_LARGEST_PROMISE) != strict_json.canonical(agreement.record()):
        raise ValueError(f"run {agreement.run!r}: this holder agreed to other terms under that name (agreement.json)")


def _untold(agreement: Agreement) -> str:
    return f"run {agreement.run!r}: this holder was not told of it; say {HELLO} first"


def _optional(record: ConfigRecord, name: str) -> bytes:
    value = record.get(name, b"")
    if not isinstance(value, bytes) or len(value) > _LARGEST_ARRAYS:
        raise TypeError(f"{name}: must be bytes")
    return value


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder, made where it is missing, for one message at a time, in whatever process it arrives."""
    files.make_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise RunFolderError(f"{folder}: belongs to another user; give this holder a folder of its own")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
