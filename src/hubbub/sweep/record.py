"""``sweep.json``: what a sweep's folder is a sweep of, so that it goes on as it began and no other is mixed with it."""

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hubbub import __version__, files, strict_json
from hubbub.config import Layer
from hubbub.errors import RunFolderError
from hubbub.sweep.grid import Axis, Grid

__all__ = ["RECORD", "SweepRecord", "begin", "locked", "read_record"]

RECORD = "sweep.json"
_SCHEMA = 1
_LARGEST = 2**24


@dataclass(frozen=True)
class SweepRecord:
    """What a sweep is of.

    Args:
        source: The name of the config file, for people.
        base: The settings that all cells have in common, files by their whole names.
        grid: What they differ in.
        allow_import: Whether names of code in the settings may be imported.
        version: Of the library that began it.
    """

    source: str
    base: Layer
    grid: Grid
    allow_import: bool = False
    version: str = __version__

    def as_json(self) -> dict[str, Any]:
        """It as strict JSON values, with the digest by which it is known."""
        told = {"base": self.base, "grid": [[axis.key, list(axis.values)] for axis in self.grid.axes]}
        return {
            **told,
            "schema": _SCHEMA,
            "source": self.source,
            "allow_import": self.allow_import,
            "version": self.version,
            "digest": hashlib.sha256(strict_json.canonical(told)).hexdigest(),
        }


def begin(folder: Path, record: SweepRecord) -> None:
    """Make the folder of a sweep, or see that it is of the same one.

    Raises:
        RunFolderError: It holds another sweep, or something else.
    """
    if os.path.lexists(folder / RECORD):
        found = read_record(folder).as_json()
        _require_same(folder, found, record.as_json())
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{folder}: exists and is no sweep ({RECORD} not there); choose another folder with -o")
    try:
        files.make_folder(folder)
        files.write_atomic(folder / RECORD, strict_json.canonical(record.as_json()))
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be written ({error.strerror}); choose another folder with -o") from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a sweep for as long as this one is at work.

    Raises:
        RunFolderError: Another one is.
    """
    path = folder / "lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be opened ({error.strerror})") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunFolderError(f"{folder}: another process is at work on this sweep; wait for it") from error
        yield
    finally:
        os.close(lock)


def read_record(folder: Path) -> SweepRecord:
    """The record of a sweep's folder.

    Raises:
        RunFolderError: It is none, or its record was changed.
    """
    path = folder / RECORD
    try:
        told = strict_json.loads(files.read(path, at_most=_LARGEST))
        if told["schema"] != _SCHEMA:
            raise ValueError(f"schema {told['schema']!r} is not known to this version, which knows {_SCHEMA}")
        record = _from_json(told)
        if record.as_json()["digest"] != told["digest"]:
            raise ValueError("it was changed")
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be read ({error.strerror}); name a config file and --grid, or the folder of a sweep"
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunFolderError(
            f"{path}: is no record of a sweep ({error}); restore it, or begin anew in another folder"
        ) from error
    return record


def _from_json(told: Mapping[str, Any]) -> SweepRecord:
    axes = tuple(Axis(key, tuple(values)) for key, values in told["grid"])
    base = {section: dict(keys) for section, keys in told["base"].items()}
    if not isinstance(told["allow_import"], bool):
        raise TypeError(f"allow_import = {told['allow_import']!r}")
    return SweepRecord(str(told["source"]), base, Grid(axes), told["allow_import"], str(told["version"]))


def _require_same(folder: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    if found["digest"] == wanted["digest"]:
        return
    what = "grid" if found["base"] == wanted["base"] else "settings"
    raise RunFolderError(
        f"{folder}: holds another sweep, of {found['source']} with other {what}; choose another folder with -o, or go on with "
        f"that one: hubbub sweep {folder}"
    )
