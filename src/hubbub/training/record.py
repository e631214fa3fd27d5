"""What a run's folder says of what it promised and what it did, read and checked, for whoever accounts for it."""

from pathlib import Path

from hubbub.accounting.chain import read_chain
from hubbub.accounting.history import History
from hubbub.accounting.multi_run import Recorded
from hubbub.accounting.promise import Promise
from hubbub.errors import LedgerError, RunFolderError
from hubbub.training.store import RunStore
from hubbub.training.traces import Traces

__all__ = ["ledger_of", "read_run"]


def ledger_of(folder: Path) -> Path:
    """The ledger of a run.

    Raises:
        RunFolderError: The folder is no run.
    """
    path = folder / "ledger.jsonl"
    if not path.is_file():
        raise RunFolderError(f"{folder}: is no run (ledger.jsonl not there); name the folder that 'hubbub train' made")
    return path


def read_run(folder: Path) -> Recorded:
    """A run's promise and history; nothing is written, and no code that they name is imported.

    Raises:
        RunFolderError: The folder is no run, or a part of it cannot be read.
        LedgerError: The ledger is damaged, is none, or does not account for all that lies in the folder.
    """
    path, store = ledger_of(folder), RunStore(folder)
    traces = Traces.of(store)
    chain = read_chain(path)
    try:
        history = History.of(chain.records[1:])
    except ValueError as error:
        raise LedgerError(f"{chain.path}, {error}") from error
    promise = Promise.from_record(chain.records[0], store.load_strategy())
    for unknown in traces.unknown(chain, history):
        raise LedgerError(
            f"{path}: holds {len(history.rounds)} rounds, but {unknown}: it was rolled back, or is another run's; restore the "
            "ledger that goes with this folder"
        )
    return Recorded(str(folder), chain, promise, history, alone=not traces.tell)
