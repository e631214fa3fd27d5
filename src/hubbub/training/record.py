"""What a run's folder says of what it promised and what it did, read and checked, for whoever accounts for it."""

from pathlib import Path

from hubbub.accounting.chain import read_chain
from hubbub.accounting.history import History
from hubbub.accounting.promise import Promise
from hubbub.accounting.together import Recorded
from hubbub.errors import LedgerError, RunFolderError
from hubbub.training.store import RunStore

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
        RunFolderError: The folder is no run, or its strategy cannot be read.
        LedgerError: The ledger is damaged, or is none.
    """
    chain = read_chain(ledger_of(folder))
    try:
        history = History.of(chain.records[1:])
    except ValueError as error:
        raise LedgerError(f"{chain.path}, {error}") from error
    promise = Promise.from_record(chain.records[0], RunStore(folder).load_strategy())
    return Recorded(str(folder), chain, promise, history)
