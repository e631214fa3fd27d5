"""``metrics.jsonl``: one strict JSON object a round, for the operator; the rows of all starts of a run, in order."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from hubbub import files, strict_json
from hubbub._checks import finite, integer, non_negative
from hubbub.errors import RunFolderError

__all__ = ["Metrics", "read_metrics", "rounds_shown"]

_LARGEST = 2**32
_NUMBERS = ("loss", "accuracy", "clients", "clients_per_second", "seconds", "clipped_fraction", "train_loss", "clip_norm")
_OF_ENCRYPTION = ("encrypt_seconds", "aggregate_seconds", "decrypt_seconds", "upload_bytes")


def read_metrics(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The rows, and how many bytes they take; a torn last line, which a crash can leave, is no row.

    Nor is what a loss of power can leave, zeros in place of what was not written, with all that follows it.

    Raises:
        RunFolderError: The file is no list of rounds in order.
    """
    if not os.path.lexists(path):
        return [], 0
    rows: list[dict[str, Any]] = []
    size = 0
    try:
        for content in files.read(path, at_most=_LARGEST).splitlines(keepends=True):
            if not content.endswith(b"\n") or (b"\0" in content and content[:1] in (b"{", b"\0")):
                break
            rows.append(_row(strict_json.loads(content), after=rows[-1]["round_index"] if rows else -1))
            size += len(content)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read ({error.strerror}); move it away to go on") from error
    except (ValueError, TypeError, KeyError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else str(error)
        raise RunFolderError(
            f"{path}, line {len(rows) + 1}: is no row of metrics ({what}); move the file away to go on"
        ) from error
    return rows, size


def rounds_shown(folder: Path) -> int:
    """How many rounds the metrics of a run's folder go to. They are written after a round is on record, so never ahead of it.

    Raises:
        RunFolderError: The file is no list of rounds in order.
    """
    rows, _ = read_metrics(folder / "metrics.jsonl")
    return int(rows[-1]["round_index"]) + 1 if rows else 0


def _row(row: Any, after: int) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise TypeError(f"it is a {type(row).__name__}, not a table")
    integer("round_index", row["round_index"], at_least=after + 1)
    if row["epsilon"] is not None:
        non_negative("epsilon", row["epsilon"])
    for name in _NUMBERS:
        if row.setdefault(name, None) is not None:
            finite(name, row[name])
    for name in _OF_ENCRYPTION:
        if row.get(name) is not None:
            non_negative(name, row[name])
    phases = row.get("phases", {})
    if not isinstance(phases, dict):
        raise TypeError(f"phases = {phases!r}: must be a table of seconds")
    for name, seconds in phases.items():
        non_negative(f"phases.{name}", seconds)
    private = row.get("private", [])
    if not isinstance(private, list) or not all(isinstance(name, str) for name in private):
        raise TypeError(f"private = {private!r}: must be a list of names")
    return row


class Metrics:
    """The file of a run that is at work. Nothing is written before the first row of this start.

    Raises:
        RunFolderError: The file is no list of rounds in order.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows, self._size = read_metrics(path)
        self._descriptor: int | None = None

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def add(self, row: Mapping[str, Any]) -> None:
        """Write one more row, strict JSON: what is not finite is ``None`` in it."""
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            os.ftruncate(self._descriptor, self._size)
        os.write(self._descriptor, strict_json.canonical(row) + b"\n")
        self.rows.append(dict(row))
