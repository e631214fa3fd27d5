"""Where a run stands while another process is at work on it: read from its folder, in which nothing is written or locked."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hubbub.accounting.chain import read_chain
from hubbub.accounting.history import History
from hubbub.accounting.promise import Promise
from hubbub.accounting.spent import spent
from hubbub.errors import LedgerError, RunFolderError
from hubbub.files import read
from hubbub.training.metrics import read_metrics
from hubbub.training.store import RunStore

__all__ = ["Followed", "Standing", "worker"]

# Of the last rounds, by which the time that is left is estimated.
_RECENT = 20
_LONGEST_NUMBER = 20


@dataclass(frozen=True)
class Standing:
    """Where a run stands.

    Args:
        planned: Rounds that it promised.
        charged: Rounds that its ledger has charged; the last may be under way.
        burned: Of these, how many were charged for nothing.
        epsilon: What they have cost, by the ledger.
        promised: What all planned rounds will have cost.
        delta: Of this guarantee.
        unit: Who is hidden.
        private: Whether anything is promised.
        closed: Whether the run was ended for good.
        rows: The metrics so far, one mapping a round: noted by the run, not on record.
        worker: The process that is at work on it; ``None`` where there is none.
    """

    planned: int
    charged: int
    burned: int
    epsilon: float
    promised: float
    delta: float
    unit: str
    private: bool
    closed: bool
    rows: Sequence[Mapping[str, Any]]
    worker: int | None

    @property
    def measured(self) -> int:
        """How many rounds are over, and their numbers noted."""
        return self.rows[-1]["round_index"] + 1 if self.rows else 0

    @property
    def finished(self) -> bool:
        """Whether all rounds are over. Where nobody is at work a round may lack its numbers for good."""
        return self.charged >= self.planned and (self.measured >= self.planned or self.worker is None)

    @property
    def ended(self) -> bool:
        """Whether nothing will change unless somebody goes on with it."""
        return self.finished or self.closed or self.worker is None

    @property
    def seconds_a_round(self) -> float | None:
        """Of the last rounds on average, with what came between them, as far as it is noted."""
        recent = [row for row in self.rows[-_RECENT:] if row.get("seconds") is not None]
        whole = sum(row["seconds"] + row.get("phases", {}).get("evaluate", 0.0) for row in recent)
        return whole / len(recent) if recent else None

    @property
    def seconds_left(self) -> float | None:
        """An estimate; ``None`` where nobody is at work, or nothing is known."""
        each = self.seconds_a_round
        return None if each is None or self.ended else each * (self.planned - self.measured)

    def last(self, name: str) -> float | None:
        """The number of that name that was noted last."""
        found = (row[name] for row in reversed(self.rows) if row.get(name) is not None)
        value: float | None = next(found, None)
        return value


class Followed:
    """A run that is looked at again and again; what does not change is read once.

    Args:
        folder: Of the run.

    Raises:
        RunFolderError: The folder is no run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._promise: Promise | None = None
        self._known: tuple[str, float] | None = None
        self._whole: float | None = None
        if not (folder / "ledger.jsonl").is_file() and not (folder / "config.toml").is_file():
            what = "is no folder" if not folder.is_dir() else "is no run (neither config.toml nor ledger.jsonl there)"
            raise RunFolderError(f"{folder}: {what}; name the folder that 'hubbub train' made")

    def begun(self) -> bool:
        """Whether the run has a ledger, which it gets with its first round.

        Raises:
            RunFolderError: It has none, and nobody is at work who could make it one.
        """
        if (self.folder / "ledger.jsonl").is_file():
            return True
        if worker(self.folder, sure=False) is None:
            raise RunFolderError(f"{self.folder}: has not begun its first round; begin it with 'hubbub resume {self.folder}'")
        return False

    def look(self) -> Standing:
        """Where the run stands now.

        Raises:
            RunFolderError: A part of the folder cannot be read.
            LedgerError: The ledger is damaged, or does not account for the metrics.
        """
        # A run at work writes its metrics after its ledger: read before, they are on record by the time that this is read.
        working = worker(self.folder)
        rows, _ = read_metrics(self.folder / "metrics.jsonl")
        chain = read_chain(self.folder / "ledger.jsonl")
        try:
            history = History.of(chain.records[1:])
        except ValueError as error:
            raise LedgerError(f"{chain.path}, {error}") from error
        if self._promise is None:
            self._promise = Promise.from_record(chain.records[0], RunStore(self.folder).load_strategy())
        promise, charged = self._promise, len(history.rounds)
        if rows and rows[-1]["round_index"] >= charged:
            raise LedgerError(
                f"{chain.path}: holds {charged} rounds, but metrics.jsonl goes to {rows[-1]['round_index'] + 1} rounds: it was "
                "rolled back, or is another run's; restore the ledger that goes with this folder"
            )
        if self._known is None or self._known[0] != chain.head:
            self._known = chain.head, spent(promise, history).guarantee.epsilon
        return Standing(
            planned=promise.rounds,
            charged=charged,
            burned=sum(1 for entry in history.rounds if entry.state == "burned"),
            epsilon=self._known[1],
            promised=self._promised(promise),
            delta=promise.delta,
            unit=promise.privacy_unit,
            private=promise.mechanism is not None,
            closed=history.closed,
            rows=rows,
            worker=working,
        )

    def _promised(self, promise: Promise) -> float:
        if self._whole is None:
            self._whole = promise.after(promise.rounds, promise.delta).epsilon
        return self._whole


def worker(folder: Path, *, sure: bool = True) -> int | None:
    """The process that is at work on a run, by its lock file, which is neither opened for writing nor locked.

    Args:
        folder: Of the run.
        sure: Whether a process counts only as long as it holds the file open, where this machine lets one see that. A run that
            is being prepared holds it from time to time.
    """
    lock = folder / "state" / "lock"
    try:
        number = int(read(lock, at_most=_LONGEST_NUMBER))
        if number < 1:
            return None
        os.kill(number, 0)
    except PermissionError:
        # Of another user, it is there all the same.
        return number
    except (OSError, ValueError, OverflowError):
        return None
    if not sure:
        return number
    try:
        return number if any(_same(path, lock) for path in Path(f"/proc/{number}/fd").iterdir()) else None
    except OSError:
        return number


def _same(path: Path, lock: Path) -> bool:
    try:
        return path.samefile(lock)
    except OSError:
        # Closed since it was listed.
        return False
