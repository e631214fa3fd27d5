"""Whether a run goes on from the finished one that its promise names, and whether that one is charged as its ledger says."""

from collections.abc import Collection, Iterator
from pathlib import Path

from hubbub.accounting.actual_cost import run_charge
from hubbub.accounting.chain import Chain, read_chain
from hubbub.accounting.history import History
from hubbub.accounting.promise import Promise
from hubbub.errors import HubbubError, RunFolderError
from hubbub.training.checkpoint import Checkpoint
from hubbub.training.start import Extends, Segments, begins_with, model_digest, optimizer_digest, read_start
from hubbub.training.store import RunStore

__all__ = ["breaks", "goes_on_from"]


def goes_on_from(folder: Path, promise: Promise) -> str:
    """The finished run that a run goes on from, in words; empty for one that begins by itself.

    Raises:
        ValueError: The promise says something that cannot be.
    """
    extends = Extends.of(promise.settings)
    if extends is None:
        return ""
    origin = Segments.of(folder).goes_on_from
    which = f"goes on from the model of the run of ledger {extends.ledger[:16]} as of head {extends.head[:16]}"
    if origin is None or not (Path(origin) / "ledger.jsonl").is_file():
        return f"{which}, which is charged; its folder is not there, so that only what this ledger holds of it was checked"
    return f"{which}, which is charged as its own ledger in {origin} says"


def breaks(folder: Path, promise: Promise) -> Iterator[str]:
    """Where a run does not go on from what it says, or the finished run is not charged as its ledger says, in words.

    The folder of the finished run is read where it still is; without it, what the promise says is all that can be checked.
    """
    extends = Extends.of(promise.settings)
    if extends is None:
        return
    charge = next((run for run in promise.earlier if run.first == extends.ledger), None)
    if charge is None or charge.head != extends.head:
        yield f"the run of ledger {extends.ledger[:16]}, from whose model this run goes on, is not charged"
        return
    if promise.settings.get("initial_model") != extends.model:
        yield "initial_model in ledger.jsonl is not the model that the finished run ended with"
    try:
        model, optimizer = read_start(RunStore(folder))
        if why := begins_with(extends, model_digest(model), optimizer_digest(optimizer)):
            yield f"state/initial.safetensors {why}"
        origin = Segments.of(folder).goes_on_from
        if origin is not None and (Path(origin) / "ledger.jsonl").is_file():
            yield from _origin(Path(origin), folder, promise, extends)
    except (HubbubError, ValueError, TypeError) as error:
        yield str(error)


def _origin(folder: Path, into: Path, promise: Promise, extends: Extends) -> Iterator[str]:
    """What the folder of the finished run says against it."""
    chain = read_chain(folder / "ledger.jsonl")
    if chain.hashes[0] != extends.ledger:
        yield f"{folder} holds another run than the one that this run goes on from; put that back"
        return
    if extends.head not in chain.hashes:
        yield (
            f"{folder / 'ledger.jsonl'} never had head {extends.head[:16]}, at which this run went on from it: it was changed "
            "or rolled back since; restore it"
        )
        return
    charged = {run.first: run for run in promise.earlier}
    charge = charged[extends.ledger]
    until = chain.hashes.index(extends.head) + 1
    then = Chain(chain.path, chain.records[:until], chain.hashes[:until])
    own = Promise.from_record(chain.records[0], RunStore(folder).load_strategy())
    if run_charge(then, own, History.of(then.records[1:])).record() != charge.record():
        yield f"the run in {folder} is not charged as its ledger says that it cost"
    if any(record.get("kind") == "begin" for record in chain.records[until:]):
        yield f"the run in {folder} has gone on since this run went on from it, and what it did since is not charged"
    for before in own.earlier:
        run = charged.get(before.first)
        if run is None:
            yield f"the run of ledger {before.first[:16]}, which the run in {folder} was charged with, is not charged here"
        elif run != before and (run.head == before.head or run.rounds < before.rounds):
            yield f"the run of ledger {before.first[:16]}, which that in {folder} was charged with, is charged otherwise here"
    yield from _branches(folder, into, charged)
    yield from _ended_with(folder, extends, chain.rounds_at(extends.head))


def _branches(folder: Path, into: Path, charged: Collection[str]) -> Iterator[str]:
    """What else the finished run went on in, before this run began, without being charged here; what is gone cannot be told."""
    branches = Segments.of(folder).went_on_in
    before = branches[: branches.index(str(into.resolve()))] if str(into.resolve()) in branches else ()
    for other in map(Path, before):
        path = other / "ledger.jsonl"
        if path.is_file() and read_chain(path).hashes[0] not in charged:
            yield f"the run in {folder} went on in {other} before, which is not charged here"


def _ended_with(folder: Path, extends: Extends, rounds: int | None) -> Iterator[str]:
    """The finished run's last checkpoint holds the model that was gone on from, where it can still be read."""
    path = folder / "state" / "checkpoint.json"
    try:
        checkpoint = Checkpoint(path, again=False)
    except RunFolderError:
        # A closed run has given up a part of it.
        return
    if checkpoint.rounds == rounds and model_digest(checkpoint.model) != extends.model:
        yield f"{path.parent} holds another model than the one that this run went on from"
