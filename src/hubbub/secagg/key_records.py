"""What a key file says, field by field, and new files that replace none. No message shows what stands in a file."""

import os
import re
import secrets
import shlex
import stat
from base64 import urlsafe_b64decode
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from hubbub import files, strict_json
from hubbub.errors import KeyFileError

__all__ = ["Record", "create", "read"]

_NUMBER = re.compile(r"0x[1-9a-f][0-9a-f]*")
_BASE64 = re.compile(r"[A-Za-z0-9_-]+")
# A threshold key of 8192 bits and 100 holders has half a megabyte; the numbers of the longest keys have 32768 bits.
_MOST_BYTES, _MOST_DIGITS = 2**22, 2 + 2**13

_Parts = ParamSpec("_Parts")
_Key = TypeVar("_Key")


@dataclass(frozen=True, repr=False)
class Record:
    """The fields of a file, or of a part of one, of which nothing is known yet."""

    path: Path
    fields: dict[str, Any]
    prefix: str = ""

    def error(self, field: str, why: str) -> KeyFileError:
        """What is wrong with a field."""
        return KeyFileError(f"{self.path}: {self.prefix}{field}: {why}")

    def require_fields(self, needed: Collection[str], further: Collection[str] = ()) -> None:
        """Refuse a record without a field that it must have, or with one that it may not have."""
        missing = sorted(set(needed) - set(self.fields))
        if missing:
            raise self.error(missing[0], "is missing")
        known = sorted({*needed, *further})
        if not set(self.fields) <= set(known):
            # Its name is not shown: in a damaged file it may be a secret.
            names = ", ".join(self.prefix + name for name in known)
            raise KeyFileError(f"{self.path}: has a field that is none of {names}")

    def inner(self, field: str) -> "Record":
        """A field that has fields of its own."""
        value = self.fields[field]
        if not isinstance(value, dict):
            raise self.error(field, "must be a JSON object")
        return Record(self.path, value, f"{self.prefix}{field}.")

    def number(self, field: str) -> int:
        """A whole number from 1 that stands as text in hexadecimal digits."""
        return self._hexadecimal(field, self.fields[field])

    def numbers(self, field: str) -> tuple[int, ...]:
        """A list of such."""
        value = self.fields[field]
        if not isinstance(value, list):
            raise self.error(field, "must be a list")
        return tuple(self._hexadecimal(f"{field}[{i}]", item) for i, item in enumerate(value))

    def count(self, field: str) -> int:
        """A small whole number from 1."""
        value = self.fields[field]
        if type(value) is not int or not 1 <= value < 2**31:
            raise self.error(field, "must be a whole number from 1")
        return value

    def base64(self, field: str) -> int:
        """A whole number that stands as text in base64url without padding."""
        value = self.fields[field]
        if (
            not isinstance(value, str)
            or not 0 < len(value) <= _MOST_DIGITS
            or len(value) % 4 == 1
            or not _BASE64.fullmatch(value)
        ):
            raise self.error(field, "must be a number as text, in base64url")
        return int.from_bytes(urlsafe_b64decode(value + "=" * (-len(value) % 4)), "big")

    def made(self, make: Callable[_Parts, _Key], *parts: _Parts.args, **named: _Parts.kwargs) -> _Key:
        """A key of its parts; why there is none is said of the file.

        Raises:
            KeyFileError: They make no key.
        """
        try:
            return make(*parts, **named)
        except (TypeError, ValueError) as error:
            raise KeyFileError(f"{self.path}: {error}") from None

    def _hexadecimal(self, field: str, value: object) -> int:
        if not isinstance(value, str) or len(value) > _MOST_DIGITS or not _NUMBER.fullmatch(value):
            raise self.error(field, "must be a number as text, 0x and small hexadecimal digits")
        return int(value, 16)


def read(path: str | Path, *, secret: bool) -> Record:
    """What a file says, if it is JSON of one reading.

    Args:
        path: The file.
        secret: Whether nobody but the owner may be able to read it.

    Raises:
        KeyFileError: It is missing, open to others, or no JSON object.
    """
    where = Path(path)
    try:
        if secret:
            _require_closed(where)
        content = files.read(where, at_most=_MOST_BYTES)
    except OSError as error:
        raise KeyFileError(f"{where}: cannot be read: {error.strerror}") from error
    fields = _parsed(content)
    if not isinstance(fields, dict):
        raise KeyFileError(f"{where}: is no key file: must be one JSON object, every name in it once")
    return Record(where, fields)


def create(path: str | Path, fields: dict[str, Any], *, mode: int) -> None:
    """Write a new file, whole or not at all, durably; a name that is taken is left alone, even if it is taken at this moment.

    Raises:
        KeyFileError: The name is taken, or the folder cannot be written.
    """
    where = Path(path)
    temporary = where.with_name(f".{where.name}.{secrets.token_hex(4)}")
    try:
        files.write_atomic(temporary, strict_json.canonical(fields) + b"\n", mode=mode)
        try:
            os.link(temporary, where)
        finally:
            files.remove(temporary)
    except FileExistsError:
        raise KeyFileError(f"{where}: exists, and a key file is never overwritten; choose another name or folder") from None
    except OSError as error:
        raise KeyFileError(f"{where}: cannot be written: {error.strerror}") from error


def _require_closed(path: Path) -> None:
    mode = os.lstat(path).st_mode
    if stat.S_ISREG(mode) and mode & 0o077:
        raise KeyFileError(
            f"{path}: is secret, and others may read or change it (mode {stat.S_IMODE(mode):04o}); type: chmod 600 "
            f"{shlex.quote(str(path))}"
        )


def _parsed(content: bytes) -> Any:
    """What a text says, or nothing: the parser's own error would carry the text along."""
    try:
        return strict_json.loads(content)
    except ValueError:
        return None
