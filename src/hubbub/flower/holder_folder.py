"""What a holder of the key does for a run, and the folder that it keeps of it, so that a restart makes it forget nothing.

For each run one folder, of the holder's own::

    agreement.json          what was agreed at the first message; there last, when the rest is there
    promise.json            where it was told: what the run promises …
    strategy.safetensors    … and the arrays of its strategy
    opened.json             which rounds it opened, and which noise it gave
    noise/                  keys of its noise, where it adds any
"""

import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from flwr.app import ConfigRecord, RecordDict

from hubbub import files, strict_json
from hubbub._checks import integer, scale, shown
from hubbub.accounting.promise import Promise
from hubbub.errors import LedgerError, RunFolderError
from hubbub.flower.holder_messages import (
    ARRAYS,
    CLIP_NORM,
    HELLO,
    NOISE,
    OPEN,
    PROMISE,
    Held,
    answer_record,
    request_of,
    round_of,
    said,
)
from hubbub.flower.messages import AGREEMENT
from hubbub.flower.secagg_client import agreement_of
from hubbub.lattice import Lattice
from hubbub.secagg.key_holder import Holder
from hubbub.secagg.paillier import PrivateKey
from hubbub.secagg.protocol import Agreement
from hubbub.secagg.threshold import KeyShare
from hubbub.training.encrypted import HolderNoise, noise_steps
from hubbub.training.encryption import Encryption
from hubbub.training.run_folder.state import parse

__all__ = ["HolderFolder"]

_LARGEST_PROMISE, _LARGEST_ARRAYS = 10**6, 2**32
_FILES = ("promise.json", "strategy.safetensors")
_LOG = logging.getLogger("flwr")


class HolderFolder:
    """A holder's answers to the server.

    Args:
        key: A share, or the whole key.
        root: Where it keeps a folder for each run.
        seed: Of its noise in a simulation; ``None`` draws secret noise.
    """

    def __init__(self, key: KeyShare | PrivateKey, root: Path, seed: object = None) -> None:
        self._key, self._root = key, root
        self._seed = None if seed is None else integer("paillier-noise-seed", seed, at_least=0)

    def answer(self, content: RecordDict) -> ConfigRecord:
        """What the server gets in reply to a message.

        Raises:
            ValueError, TypeError: The message is none that a holder answers, or not by what was agreed.
            SumNotOpenedError: It is no sum that this holder opens.
            NoiseExhaustedError: The noise of the round was given out.
            RunFolderError, OSError: The folder cannot be read or written.
        """
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
    """A promise of noise by the holders.

    Raises:
        ValueError: It cannot be read, or promises something else.
    """
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
    """The folder, made where it is missing, for one message at a time, in whatever process it arrives.

    Raises:
        RunFolderError: It belongs to somebody else.
    """
    files.make_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise RunFolderError(f"{folder}: belongs to another user; give this holder a folder of its own")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
