"""What happened in a run, record by record: the one reading of a ledger that its writer, its printer and its verifier share."""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hubbub._util.checks import digest, integer, scale
from hubbub.errors import LedgerError
from hubbub.ledger.chain import Chain
from hubbub.ledger.participations import Participations, blocks_behind, read_cohorts, whole_block

# A file of the run's folder, never one outside it.
_NAME = re.compile(r"(state/)?[A-Za-z]+\.[a-z]+")


@dataclass(slots=True)
class Round:
    """A round that was begun; its cost is spent, whatever its state.

    Args:
        state: ``"begun"``, ``"committed"`` or ``"aborted"``.
        epoch: The number of the incarnation that began it, from 0; ``None`` without one.
        clients: How many took part; ``None`` of a random cohort, whose size is secret.
        total: The HMAC of the sum, under a key of the run.
        clip_norm: The largest L2 norm of an update; ``None`` if nothing was clipped.
        release: The SHA-256 of the release; ``None`` if none was committed.
    """

    state: str
    epoch: int | None
    clients: int | None
    total: str
    clip_norm: float | None
    release: str | None = None


@dataclass(frozen=True)
class Epoch:
    """An incarnation of a run: one start of its process, with a key of its own.

    Args:
        first_row: The first row of z that it may draw.
        key: The HMAC of its key; ``None`` in a simulation.
        sampler: The fingerprint of the sampler; rows are drawn again only where it is the same.
        ranks: The number of processes that shared its rounds.
        listed: The HMAC of the list of clients, where the promise counts on one that stays.
    """

    first_row: int
    key: str | None
    sampler: str
    ranks: int = 1
    listed: str | None = None


@dataclass
class History:
    """The state that records lead to.

    Args:
        rounds: One entry for each round that was begun.
        epochs: One entry for each incarnation.
        participations: Who took part when; of random cohorts no list is kept.
        cohorts_size: Bytes of the file of cohorts that the records account for.
        unrecorded: Whole blocks behind them: a crash leaves one at most, and 2 stands for more.
        closed: Whether the keys were destroyed.
        forgets: Whether releases no longer stay, since the disk had no room for them.
        files: The SHA-256 of each file that the run has made of its rounds, by name, as recorded since the last of them;
            ``None`` before.
    """

    rounds: list[Round] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    participations: Participations = field(default_factory=Participations)
    cohorts_size: int = 0
    unrecorded: int = 0
    closed: bool = False
    forgets: bool = False
    files: Mapping[str, str] | None = None

    @classmethod
    def of_chain(cls, chain: Chain, *further: Mapping[str, Any]) -> "History":
        """The state after all records of a ledger, and after further ones that are to be added."""
        history, content = cls(), memoryview(read_cohorts(chain.path) if chain.path else b"")
        for line, body in enumerate([*chain.records[1:], *further], start=2):
            try:
                end = whole_block(content, history.cohorts_size) if body.get("cohort") is not None else None
                history.apply(body, content[history.cohorts_size : end or history.cohorts_size])
            except (ValueError, TypeError, KeyError) as error:
                what = f"has no {error}" if isinstance(error, KeyError) else str(error)
                raise LedgerError(f"{chain.path}, line {line}: is no record of this ledger ({what})") from error
        if not history.participations.distinct:
            raise LedgerError(f"{chain.path}, the cohorts name a client as new that took part before")
        history.unrecorded = blocks_behind(content, history.cohorts_size, len(history.rounds))
        return history

    @property
    def epoch(self) -> int | None:
        """The number of the last start; ``None`` where none was recorded, as in memory."""
        return len(self.epochs) - 1 if self.epochs else None

    @property
    def pending(self) -> int | None:
        """The round that was begun and neither committed nor aborted."""
        return len(self.rounds) - 1 if self.rounds and self.rounds[-1].state == "begun" else None

    @property
    def next_round(self) -> int:
        """The first round that was neither released nor aborted."""
        return len(self.rounds) - (self.pending is not None)

    def undo(self) -> Callable[[], None]:
        """How to return from the record that is applied next to the state as it is, without reading anything again."""
        rounds, epochs, last = len(self.rounds), len(self.epochs), replace(self.rounds[-1]) if self.rounds else None
        kept = dict(vars(self))

        def restore() -> None:
            self.participations.remove(rounds)
            del self.rounds[rounds:], self.epochs[epochs:]
            if last is not None:
                self.rounds[-1] = last
            vars(self).update(kept)

        return restore

    def apply(self, body: Mapping[str, Any], block: bytes | memoryview = b"") -> None:
        """Take one more record into account; of a round whose cohort is kept, with its block."""
        kind = body["kind"]
        if self.closed and kind != "publish":
            raise ValueError(f"{kind!r} follows the end of the run")
        match kind:
            case "epoch":
                self._start(body)
            case "begin":
                self._begin(body, block)
            case "commit" | "abort":
                self._end(body)
            case "files" | "publish" | "forget" | "close":
                self._mark(body)
            case _:
                raise ValueError(f"kind = {kind!r}: is not known; this hubbub may be older than the one that wrote it")

    def _start(self, body: Mapping[str, Any]) -> None:
        """An incarnation of the run begins: keys and rows of noise follow those before."""
        # A simulation resumes the round that was under way; a secure run has settled it.
        follows = self.pending is None or body["key"] is None
        if integer("epoch", body["epoch"], at_least=0) != len(self.epochs) or not follows:
            raise ValueError(f"incarnation {body['epoch']} does not follow")
        first_row = integer("first_row", body["first_row"], at_least=self.epochs[-1].first_row if self.epochs else 0)
        key = None if body["key"] is None else digest("key", body["key"])
        ranks = integer("ranks", body.get("ranks", 1), at_least=1)
        listed = digest("listed", body["listed"]) if "listed" in body else None
        self.epochs.append(Epoch(first_row, key, digest("sampler", body["sampler"]), ranks, listed))

    def _begin(self, body: Mapping[str, Any], block: bytes | memoryview) -> None:
        """The cost of a round is recorded."""
        round_index = integer("round", body["round"], at_least=0)
        epoch = None if body["epoch"] is None else integer("epoch", body["epoch"], at_least=0)
        if self.pending is not None or round_index != len(self.rounds) or epoch != self.epoch:
            raise ValueError(f"begin of round {round_index} in incarnation {epoch} does not follow")
        clip_norm = None if body["clip_norm"] is None else scale("clip_norm", body["clip_norm"])
        total, clients = digest("sum", body["sum"]), body["clients"]
        if (clients is None) != (body["cohort"] is None):
            raise ValueError("clients and cohort: one is there without the other")
        if clients is not None:
            integer("clients", clients, at_least=0)
            if hashlib.sha256(block).hexdigest() != digest("cohort", body["cohort"]):
                raise ValueError(f"the cohort of round {round_index} is missing from the file of cohorts, or is another one")
            self.participations.add(round_index, block)
            if len(self.participations.cohort(round_index)) != clients:
                raise ValueError(f"clients = {clients}: the cohort of round {round_index} has another number")
            self.cohorts_size += len(block)
        self.rounds.append(Round("begun", epoch, clients, total, clip_norm))
        self.files = None

    def _end(self, body: Mapping[str, Any]) -> None:
        """The round under way is committed or aborted."""
        round_index = integer("round", body["round"], at_least=0)
        if self.pending is None or round_index != self.pending:
            raise ValueError(f"{body['kind']} of round {round_index} does not follow")
        last = self.rounds[-1]
        if body["kind"] == "abort":
            last.state = "aborted"
        else:
            last.state, last.release = "committed", digest("release", body["release"])

    def _mark(self, body: Mapping[str, Any]) -> None:
        """Between rounds: files are bound or published, releases stay no longer than to a checkpoint, or the run is closed."""
        match body["kind"] if self.pending is None else None:
            case "files" if self.files is None:
                self.files = _digests(body["files"])
            case "publish" if self.files is not None:
                published_files(body)
            case "forget" if not self.forgets and set(body) == {"kind"}:
                self.forgets = True
            case "close":
                self.closed = True
            case _:
                raise ValueError(f"{body['kind']} follows a round that is not over, or itself, or says what it must not")


def published_files(record: Mapping[str, Any]) -> dict[str, str]:
    """The SHA-256 of what was published, by name."""
    if record["kind"] != "publish":
        raise ValueError(f"kind = {str(record['kind'])[:80]!r}: must be 'publish'")
    return _digests(record["files"])


def _digests(files: object) -> dict[str, str]:
    if not isinstance(files, Mapping) or not files or not all(isinstance(f, str) and _NAME.fullmatch(f) for f in files):
        raise ValueError(f"files = {str(files)[:80]!r}: must be digests by the names of files")
    return {name: digest(name, value) for name, value in files.items()}
