"""A file of records, each bound to all before it: a line holds a record and the SHA-256 of the line before with it.

A damaged, edited, reordered or shortened-in-the-middle file does not pass: every byte of it is bound. Whoever recomputes the
chain can forge it, and a tail that is cut at a line shows only to somebody who kept a later ``head``.
"""

import hashlib
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hubbub._util import files, strict_json
from hubbub.errors import LedgerError

_GENESIS = "0" * 64
_LONGEST = 2**36
_BEFORE, _BETWEEN, _AFTER = b'{"body":', b',"hash":"', b'"}'
_TAIL = len(_BETWEEN) + 64 + len(_AFTER)
# A loss of power can leave a last line whose sectors were not all written: they read as zeros, which no record holds.
_UNWRITTEN = bytes(1)
# Kinds of records that are about no round.
_OF_FILES = ("files", "publish")
_CHANGED = "was changed by another process while this one was at work, or removed; restore it, and open it again"


@dataclass
class Chain:
    """Records in order.

    Args:
        path: Where they are kept; ``None`` keeps them in memory.
        records: The bodies.
        hashes: The hash of each; the last is the head.
        size: Bytes of whole lines in the file.
        torn: Bytes behind them that a crash left.
        ended: Whether the last whole record has its end of line.

    Example:
        >>> chain = Chain()
        >>> chain.append({"kind": "promise"})
        >>> chain.head == record_hash("0" * 64, {"kind": "promise"})
        True
    """

    path: Path | None = None
    records: list[Mapping[str, Any]] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    size: int = 0
    torn: bytes = b""
    ended: bool = True

    @property
    def head(self) -> str:
        """The hash of the last record: whoever keeps it can see whether the file was rolled back."""
        return self.hashes[-1] if self.hashes else _GENESIS

    @property
    def head_of_rounds(self) -> str:
        """The head before anything was recorded of files: a file that names it stays the same when it is recorded."""
        pairs = zip(reversed(self.records), reversed(self.hashes), strict=True)
        return next((hash_ for body, hash_ in pairs if body.get("kind") not in _OF_FILES), _GENESIS)

    @property
    def closed(self) -> bool:
        """Whether the run was ended permanently."""
        return any(record.get("kind") == "close" for record in self.records)

    @property
    def begun(self) -> int:
        """How many rounds were begun."""
        return sum(record.get("kind") == "begin" for record in self.records)

    def rounds_at(self, head: str) -> int | None:
        """How many rounds had been begun when the chain had this head; ``None`` where it never had."""
        if head not in self.hashes:
            return None
        return sum(1 for record in self.records[: self.hashes.index(head) + 1] if record.get("kind") == "begin")

    def round_heads(self, after: str | None = None) -> list[tuple[int, str]]:
        """After how many rounds the chain had which head: of its promise, and of each round that was ended since a head."""
        found, after = [], after and after.lower()
        for body, head in zip(reversed(self.records), reversed(self.hashes), strict=True):
            if head == after:
                break
            if body["kind"] in ("promise", "commit", "abort"):
                found.append((body.get("round", -1) + 1, head))
        else:
            if after is not None:
                self.require_head(after)
        return found[::-1]

    def append(self, body: Mapping[str, Any]) -> None:
        """Write a record, durably, then believe it; if it cannot be written, the chain stays as it was.

        Args:
            body: A record, of strict JSON values.

        Raises:
            LedgerError: The file was changed by another process.
        """
        content = strict_json.canonical(body)
        head = _bound(self.head, content)
        line = _BEFORE + content + _BETWEEN + head.encode() + _AFTER + b"\n"
        if self.path is not None:
            try:
                if self.hashes:
                    files.append(self.path, line, at=self.size)
                else:
                    # Born whole: a crash leaves no file, or one with its first record.
                    files.write_atomic(self.path, line)
            except (BlockingIOError, FileNotFoundError) as error:
                raise LedgerError(f"{self.path}: {_CHANGED}") from error
        self.records.append(body)
        self.hashes.append(head)
        self.size += len(line)

    def require_unchanged(self) -> None:
        """Refuse a file that is longer or shorter than what was read and written here.

        Raises:
            LedgerError: The file was changed by another process.
        """
        if self.path is not None and (
            not os.path.lexists(self.path) or self.path.lstat().st_size != self.size + len(self.torn)
        ):
            raise LedgerError(f"{self.path}: {_CHANGED}")

    def repair(self) -> None:
        """Remove what a crash left behind the last whole record, or give that record the end that it lost."""
        if self.path is None:
            return
        if self.torn:
            self.require_unchanged()
            files.truncate(self.path, self.size)
            self.torn = b""
        if not self.ended:
            files.append(self.path, b"\n", at=self.size)
            self.size, self.ended = self.size + 1, True

    def require_head(self, head: str) -> None:
        """Refuse a chain that does not hold a head that somebody kept.

        Args:
            head: 64 hexadecimal digits.

        Raises:
            LedgerError: It was rolled back, or is the ledger of another run; or this is no head.
        """
        if len(head) != 64:
            raise LedgerError(f"head = {head[:80]!r}: is no head, which has 64 hexadecimal digits; give all of it")
        if head.lower() not in self.hashes:
            raise LedgerError(
                f"head = {head[:80]!r}: is not among the {len(self.hashes)} hashes of {self.path or 'this ledger'}, which "
                "was rolled back or is another run's; restore the ledger that goes with this head"
            )


def read_chain(path: Path) -> Chain:
    """The records of a file; nothing is written.

    Args:
        path: ``ledger.jsonl`` of a run's folder.

    Raises:
        LedgerError: The file cannot be read, holds no promise, or a line is not what its hash says; the line is named. A last
            line that was cut off is ``torn`` and no error.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "ledger.jsonl"
        >>> chain = Chain(path)
        >>> chain.append({"kind": "promise"})
        >>> read_chain(path).head == chain.head, read_chain(path).records
        (True, [{'kind': 'promise'}])
    """
    chain = Chain(path)
    with files.refusing(path, "cannot be read", kind=LedgerError):
        content = files.read(path, at_most=_LONGEST)
    for number, line in enumerate(io.BytesIO(content), start=1):
        whole = line.endswith(b"\n")
        try:
            _believe(chain, line.removesuffix(b"\n"))
            chain.size, chain.ended = chain.size + len(line), whole
        except ValueError as error:
            last = chain.size + len(line) == len(content)
            if chain.hashes and last and (not whole or _UNWRITTEN in line) and not _ended_by_another(chain, line):
                chain.torn = line
                break
            raise LedgerError(f"{path}, line {number}: is no record of this ledger ({error})") from error
    if not chain.hashes:
        raise LedgerError(f"{path}: holds no promise, which a ledger begins with")
    return chain


def record_hash(before: str, body: Mapping[str, Any]) -> str:
    """The hash of a record that follows the one of hash ``before``: what a chain's head is when the record was added."""
    return _bound(before, strict_json.canonical(body))


def _ended_by_another(chain: Chain, line: bytes) -> bool:
    """Whether a line is a whole record with another end: no crash leaves that, which cuts a line or leaves zeros in it."""
    content, stated = line[len(_BEFORE) : -_TAIL - 1], line[-_TAIL - 1 + len(_BETWEEN) : -len(_AFTER) - 1]
    return line[-1:] not in (_UNWRITTEN, b"\n") and stated == _bound(chain.head, content).encode()


def _believe(chain: Chain, line: bytes) -> None:
    """Add a line's record, if it follows."""
    if not (line.startswith(_BEFORE) and line.endswith(_AFTER) and line[-_TAIL:].startswith(_BETWEEN)):
        raise ValueError("it is not of the form that is written")
    content = line[len(_BEFORE) : -_TAIL]
    head = _bound(chain.head, content)
    if head.encode() != line[-_TAIL + len(_BETWEEN) : -len(_AFTER)]:
        raise ValueError("its hash does not follow from the line before")
    body = strict_json.loads_canonical(content)
    if not isinstance(body, dict):
        raise ValueError("it is no JSON object")
    chain.records.append(body)
    chain.hashes.append(head)


def _bound(head: str, content: bytes) -> str:
    """The hash of a record's text and of all before it."""
    return hashlib.sha256(head.encode() + content).hexdigest()
