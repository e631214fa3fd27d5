"""A holder of the key behind a node: it keeps its agreement, its noise and the rounds it opened in a folder for each run."""

import hashlib
import logging
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from flwr.app import ConfigRecord, RecordDict

from hubbub._util import files, strict_json
from hubbub._util.checks import integer, scale, shown, table
from hubbub.errors import LedgerError, RunFolderError
from hubbub.flower import holder_messages as messages
from hubbub.flower.holder_messages import CLIP_NORM, FIRST, HELLO, NOISE, OPEN, PROMISE, SERIES, TAKE
from hubbub.ledger.promise import Promise
from hubbub.noise.lattice import Lattice
from hubbub.secagg.aggregator import Request
from hubbub.secagg.key_holder import Holder
from hubbub.secagg.paillier import PrivateKey
from hubbub.secagg.protocol import LONGEST_NAME, Agreement, MessageFile, framed
from hubbub.secagg.threshold import KeyShare
from hubbub.training.encrypted import HolderNoise, noise_steps
from hubbub.training.encryption import BITS_ABOVE
from hubbub.training.run_folder.state import parse

_LARGEST_PROMISE, _LARGEST_ARRAYS = 10**6, 2**32
_FILES = ("promise.json", "strategy.safetensors")
# Of contributions that came in several messages, before the number of their round and the digest of their secret.
_TAKEN = "contributions-"
_LOG = logging.getLogger("flwr")


def answer(
    content: RecordDict, key: KeyShare | PrivateKey, root: Path, seed: int | None = None, *, node: int = 0
) -> ConfigRecord:
    """The answer of a holder at a node to a message of the server; ``seed`` is that of its noise in a simulation."""
    record = messages.said(content)
    action, agreement = record.get("action"), messages.agreement_of(record.get(messages.AGREEMENT))
    # Refuses an agreement on another key before anything is kept.
    number = Holder(key, agreement).number
    # The run's name comes from outside.
    folder = root / f"holder-{number}-{hashlib.sha256(agreement.run.encode()).hexdigest()[:16]}"
    if action != HELLO and not (folder / "agreement.json").exists():
        raise ValueError(f"run {agreement.run!r}: this holder does not know it; say {HELLO} first")
    with files.locked_folder(folder):
        if action == HELLO:
            _agree(folder, key, agreement, record, seed)
            return messages.held(key, record.get(messages.CHALLENGE), node)
        _require_agreed(folder, agreement)
        holder, (stated, arrays) = Holder(key, agreement, folder), _kept(folder)
        if agreement.noising_holders and not stated:
            raise RunFolderError(f"{folder / _FILES[0]}: is missing or empty, and this holder agreed to add noise; restore it")
        promise = _promise(stated, arrays, seed) if stated else None
        round_index = integer(messages.ROUND, record.get(messages.ROUND), at_least=0, at_most=2**31)
        if promise is not None and round_index >= promise.rounds:
            raise ValueError(f"round {round_index + 1}: the run promised to have {promise.rounds}")
        if action == NOISE:
            return _noise(folder, holder, promise, round_index, record, seed)
        if action in (TAKE, OPEN):
            contributions = _taken(folder, agreement, content, round_index)
            if action == TAKE:
                return ConfigRecord({"taken": len(contributions)})
            rows = max(1, agreement.noising_holders)
            noise, total = messages.parts(content, "noise", rows), messages.data_of(content, "total")
            opened = holder.open(Request(round_index, contributions, noise, total))
            _forget(folder)
            return messages.answer_record(opened, agreement.public_key.bits)
    raise ValueError(f"action = {shown(action)}: must be {HELLO}, {NOISE} or {OPEN}, or {TAKE} for contributions in parts")


def _agree(folder: Path, key: KeyShare | PrivateKey, agreement: Agreement, record: ConfigRecord, seed: int | None) -> None:
    """Keep the agreement and the promise the first time; later refuse others under the run's name."""
    most = {PROMISE: _LARGEST_PROMISE, messages.ARRAYS: _LARGEST_ARRAYS}
    stated, arrays = (messages.bytes_of(record, name, most[name]) if name in record else b"" for name in most)
    if (folder / "agreement.json").exists():
        _require_agreed(folder, agreement)
        if _kept(folder) != [stated, arrays]:
            raise ValueError(f"run {agreement.run!r}: promises something else than when this holder agreed to it")
        if stated:
            _promise(stated, arrays, seed)
        return
    if (agreement.noising_holders > 0) != bool(stated):
        raise ValueError("there is a promise and no holder adds noise, or holders add noise and the promise is missing")
    sentence = "Holders add no noise: who does, and what is guaranteed, the server knows."
    if stated:
        promise = _promise(stated, arrays, seed)
        if promise.lattice_bits + BITS_ABOVE != agreement.packing.bits:
            raise ValueError(
                f"the promise is of noise on a lattice of {promise.lattice_bits} bits, the agreement packs "
                f"{agreement.packing.bits}: clients could move a sum by more than the noise hides"
            )
        sentence = "Each holder adds noise of its own: " + promise.after(promise.rounds, promise.delta).sentence()
    for name, part in zip(_FILES, (stated, arrays), strict=True):
        if stated:
            files.write_atomic(folder / name, part)
        else:
            # Left by a start that received a promise and was interrupted.
            files.remove(folder / name)
    Holder(key, agreement, folder).begin()
    files.write_atomic(folder / "agreement.json", strict_json.canonical(agreement.record()))
    _log_once(agreement.run, agreement.min_contributions, sentence)


def _noise(
    folder: Path, holder: Holder, promise: Promise | None, round_index: int, record: ConfigRecord, seed: int | None
) -> ConfigRecord:
    """The holder's row of noise for a round, encrypted; it is spent from here on."""
    if promise is None or promise.mechanism is None:
        raise ValueError("holders add no noise in this run")
    clip_norm, fixed = scale(CLIP_NORM, record.get(CLIP_NORM)), promise.terms.clip_norm
    if fixed is None and not promise.terms.adaptive:
        raise ValueError("the run promises no clip norm, to which noise would be scaled")
    if fixed is not None and clip_norm != fixed:
        raise ValueError(f"{CLIP_NORM} = {clip_norm}: the run promises {shown(fixed)}")
    holder.require_no_noise_yet(round_index)
    size, given, lattice = holder.agreement.size, holder.next_noise, Lattice(clip_norm, promise.lattice_bits)
    stream = HolderNoise(promise.mechanism, size, folder / "noise", seed=seed, given=given)
    steps = noise_steps(stream.row(round_index) * lattice.clip_norm, lattice.step)
    return ConfigRecord({"noise": holder.noise(round_index, steps)})


def _taken(folder: Path, agreement: Agreement, content: RecordDict, round_index: int) -> Collection[bytes]:
    """The contributions of a round that came until now: in the message alone, or behind others in a file of the folder."""
    record, most = messages.said(content), agreement.packing.max_clients
    first = integer(FIRST, record.get(FIRST, 0), at_least=0, at_most=most)
    contributions = messages.parts(content, "contribution", most - first)
    if first == 0:
        _forget(folder)
        if record["action"] == OPEN:
            return contributions
    series = hashlib.sha256(messages.bytes_of(record, SERIES, messages.CHALLENGE_BYTES)).hexdigest()
    path = folder / f"{_TAKEN}{round_index}-{series[:32]}"
    if first and not path.exists():
        raise ValueError(f"round {round_index + 1}: {first} contributions are said to have come, and none did")
    longest = framed("n" * LONGEST_NAME, agreement.ciphertexts, agreement.public_key.bits)
    if any(len(data) > longest for data in contributions):
        raise ValueError(f"round {round_index + 1}: a contribution has more than {longest} bytes")
    taken = MessageFile(path)
    if first > len(taken):
        raise ValueError(f"round {round_index + 1}: {first} contributions are said to have come, and {len(taken)} did")
    taken.keep(first)
    for data in contributions:
        taken.append(data)
    return taken


def _forget(folder: Path) -> None:
    """Remove the contributions of rounds that were opened, or ended before."""
    for path in folder.glob(f"{_TAKEN}*"):
        files.remove(path)


def _kept(folder: Path) -> list[bytes]:
    """The promise and the arrays of its strategy, as received; empty without a promise."""
    if not (folder / _FILES[0]).exists():
        return [b"", b""]
    return [files.read(folder / name, at_most=_LARGEST_ARRAYS) for name in _FILES]


def _promise(stated: bytes, arrays: bytes, seed: int | None) -> Promise:
    record = table(PROMISE, strict_json.loads(stated))
    try:
        promise = Promise.from_record(record, {name: tensor.numpy() for name, tensor in parse(arrays).items()})
    except LedgerError as error:
        raise ValueError(f"the promise of the run cannot be read: {error}") from error
    if promise.noise_by != "holders":
        raise ValueError("the run does not promise that holders add noise")
    if seed is not None and not promise.simulation:
        raise ValueError("this node's paillier-noise-seed is for simulations; the run is not a simulation")
    return promise


@lru_cache(maxsize=64)
def _log_once(run: str, min_contributions: int, sentence: str) -> None:
    """Log the agreement of a run, once for all holders in this process, as in a simulation."""
    _LOG.info("Sums of at least %s contributions are opened here for run %r. %s", min_contributions, run, sentence)


def _require_agreed(folder: Path, agreement: Agreement) -> None:
    if not (folder / "opened.json").exists():
        raise RunFolderError(f"{folder}: opened.json is missing, so that nobody knows which rounds were opened; restore it")
    if files.read(folder / "agreement.json", at_most=_LARGEST_PROMISE) != strict_json.canonical(agreement.record()):
        raise ValueError(f"run {agreement.run!r}: this holder agreed to other terms under that name (agreement.json)")
