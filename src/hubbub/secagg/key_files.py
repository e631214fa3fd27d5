"""Keys as files: JSON of one form, checked again when it is read, never overwritten and never pickled.

::

    key_files.write_private("private-key.json", private)     # mode 0600
    key_files.write_public("public-key.json", private.public_key)
    public = key_files.read_public("public-key.json")        # a PublicKey or a ThresholdKey

A public key is trusted as much as the way it came by: compare its ``key_id`` with the one that its owner gives you. Files of
secrets hold them as they are, and no message shows what stands in a file. Keys of phe's command line are read too: JSON Web
Keys of type "DAJ".
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import stat
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import gmpy2

from hubbub._util import files, strict_json
from hubbub.errors import KeyFileError
from hubbub.secagg.paillier import SMALLEST_BITS, PrivateKey, PublicKey
from hubbub.secagg.threshold import KeyShare, ThresholdKey

__all__ = [
    "PRIVATE",
    "PUBLIC",
    "read_private",
    "read_public",
    "read_share",
    "share_name",
    "write_phe_public",
    "write_private",
    "write_public",
    "write_share",
]

# The names of files in a folder of keys.
PUBLIC, PRIVATE = "public-key.json", "private-key.json"

_VERSION = 1
_PUBLIC, _THRESHOLD = "hubbub paillier public key", "hubbub paillier threshold key"
_PRIVATE, _SHARE = "hubbub paillier private key", "hubbub paillier key share"
_COMMON = frozenset({"format", "version", "key_id", "bits"})
_FIELDS: Mapping[str, frozenset[str]] = {
    _PUBLIC: _COMMON | {"n", "short_exponents"},
    _THRESHOLD: _COMMON | {"n", "holders", "threshold", "min_contributions", "base", "verification"},
    _PRIVATE: _COMMON | {"p", "q"},
    _SHARE: _COMMON | {"holder", "secret", "public"},
}
_INSECURE = "insecure"
_PHE, _PHE_FORM = "DAJ", "PAI-GN1"
_NUMBER = re.compile(r"0x[1-9a-f][0-9a-f]*")
_BASE64 = re.compile(r"[A-Za-z0-9_-]+")
# A threshold key of 8192 bits and 100 holders has half a megabyte; the numbers of the longest keys have 32768 bits.
_MOST_BYTES, _MOST_DIGITS = 2**22, 2 + 2**13

_Parts = ParamSpec("_Parts")
_Key = TypeVar("_Key")


def share_name(holder: int) -> str:
    """The file of a share in a folder of keys, by its holder's number from 1."""
    return f"share-{holder}.json"


def write_public(path: str | Path, key: PublicKey | ThresholdKey, *, allow_small: bool = False) -> None:
    """Write what everybody may read, into a new file.

    Args:
        path: A name that is not taken.
        key: Of one owner, or of a group of holders.
        allow_small: For tests: a key below 2048 bits, in a file that says that it is insecure.

    Raises:
        KeyFileError: The name is taken or cannot be written, or the key is too small.
    """
    if isinstance(key, ThresholdKey):
        fields = _threshold_fields(key)
    else:
        fields = {**_head(_PUBLIC, key.key_id, key.bits), "n": hex(key.n), "short_exponents": key.short_exponents}
    _create(path, fields, fields["bits"], allow_small=allow_small, mode=0o644)


def write_phe_public(path: str | Path, key: PublicKey) -> None:
    """Write a public key as phe's command line reads it, into a new file.

    Raises:
        KeyFileError: The name is taken or cannot be written, or the key is too small.
    """
    text = urlsafe_b64encode(key.n.to_bytes((key.bits + 7) // 8, "big")).decode().rstrip("=")
    fields = {"kty": _PHE, "alg": _PHE_FORM, "key_ops": ["encrypt"], "n": text, "kid": f"hubbub {key.key_id}"}
    _create(path, fields, key.bits, mode=0o644)


def write_private(path: str | Path, key: PrivateKey, *, allow_small: bool = False) -> None:
    """Write a private key into a new file that only its owner may read.

    Args:
        path: A name that is not taken.
        key: Secret.
        allow_small: As for :func:`write_public`.

    Raises:
        KeyFileError: The name is taken or cannot be written, or the key is too small.
    """
    public = key.public_key
    fields = {**_head(_PRIVATE, public.key_id, public.bits), "p": hex(key.p), "q": hex(key.q)}
    _create(path, fields, public.bits, allow_small=allow_small, mode=0o600)


def write_share(path: str | Path, share: KeyShare, *, allow_small: bool = False) -> None:
    """Write a holder's share, and the key that it is of, into a new file that only its owner may read.

    Args:
        path: A name that is not taken.
        share: Secret.
        allow_small: As for :func:`write_public`.

    Raises:
        KeyFileError: The name is taken or cannot be written, or the key is too small.
    """
    key, bits = share.public, share.public.public_key.bits
    parts = {"holder": share.holder, "secret": hex(share.secret), "public": _threshold_fields(key)}
    _create(path, {**_head(_SHARE, key.key_id, bits), **parts}, bits, allow_small=allow_small, mode=0o600)


def read_public(path: str | Path) -> PublicKey | ThresholdKey:
    """The public key in a file; its class says who decrypts: the owner of a private key, or holders together.

    Raises:
        KeyFileError: The file is missing, damaged or of another kind, or the key is not sound.
    """
    record = _read(path, secret=False)
    if record.fields.get("kty") == _PHE:
        return _phe_public(record)
    if _kind(record, _PUBLIC, _THRESHOLD) == _THRESHOLD:
        return _threshold_key(record)
    n, short = record.number("n"), record.fields["short_exponents"]
    _require_sound(record, n, short_exponents=short is True)
    key = record.made(PublicKey, n, short)
    _require_said(record, key.key_id, key.bits)
    return key


def read_private(path: str | Path) -> PrivateKey:
    """The private key in a file; its primes are tested again.

    Raises:
        KeyFileError: The file is missing, damaged, of another kind or open to others, or the key is not sound.
    """
    record = _read(path, secret=True)
    if record.fields.get("kty") == _PHE:
        record.require_fields({"kty", "key_ops", "p", "q", "pub"}, {"kid"})
        public = _phe_public(record.inner("pub"))
        key = record.made(PrivateKey.from_primes, record.base64("p"), record.base64("q"))
        if key.public_key != public:
            raise record.error("pub.n", "is not the product of p and q")
        return key
    _kind(record, _PRIVATE)
    key = record.made(PrivateKey.from_primes, record.number("p"), record.number("q"))
    _require_said(record, key.public_key.key_id, key.public_key.bits)
    return key


def read_share(path: str | Path) -> KeyShare:
    """A holder's share, checked against the key that stands with it.

    Raises:
        KeyFileError: The file is missing, damaged, of another kind or open to others, or the share does not fit the key.
    """
    record = _read(path, secret=True)
    _kind(record, _SHARE)
    beside = record.inner("public")
    _kind(beside, _THRESHOLD)
    public = _threshold_key(beside)
    _require_said(record, public.key_id, public.public_key.bits)
    return record.made(KeyShare, public, record.count("holder"), record.number("secret"))


def _head(kind: str, key_id: str, bits: int) -> dict[str, Any]:
    small = {_INSECURE: True} if bits < SMALLEST_BITS else {}
    return {"format": kind, "version": _VERSION, **small, "key_id": key_id, "bits": bits}


def _threshold_fields(key: ThresholdKey) -> dict[str, Any]:
    counts = {"holders": key.holders, "threshold": key.threshold, "min_contributions": key.min_contributions}
    numbers = {"n": hex(key.n), "base": hex(key.base), "verification": [hex(unit) for unit in key.verification]}
    return {**_head(_THRESHOLD, key.key_id, key.public_key.bits), **counts, **numbers}


def _kind(record: _Record, *expected: str) -> str:
    """Which of the expected kinds a record is; it has all fields of that, and no other."""
    kind = record.fields.get("format")
    if kind not in expected:
        found = repr(kind) if isinstance(kind, str) and kind in _FIELDS else "no word that is known"
        raise record.error("format", f"is {found}: must be {' or '.join(map(repr, expected))}")
    version = record.fields.get("version")
    if type(version) is not int or version != _VERSION:
        raise record.error("version", f"must be {_VERSION}: a later hubbub wrote this file, or nothing of ours did")
    record.require_fields(_FIELDS[kind], {_INSECURE})
    if record.fields.get(_INSECURE, True) is not True:
        raise record.error(_INSECURE, "must be true, or left out")
    return str(kind)


def _require_said(record: _Record, key_id: str, bits: int) -> None:
    """Refuse a file that says of its key what is not true, or does not say that it is too small."""
    if type(record.fields["bits"]) is not int or record.fields["bits"] != bits:
        raise record.error("bits", f"the key has {bits}, and the file says otherwise")
    if record.fields["key_id"] != key_id:
        raise record.error("key_id", f"the key is {key_id!r}, and the file says otherwise: one of them was changed")
    if (bits < SMALLEST_BITS) != (_INSECURE in record.fields):
        raise record.error(
            "bits", f"a key must have at least {SMALLEST_BITS}, or be marked as {_INSECURE}, and this one has {bits}"
        )


def _require_sound(record: _Record, n: int, *, short_exponents: bool) -> None:
    """What can be seen of an n whose primes nobody knows."""
    if _INSECURE not in record.fields:
        record.made(PublicKey.received, n, short_exponents)
    if short_exponents and n % 4 != 1:
        raise record.error("n", "is no product of two primes that are 3 mod 4, as this kind of key has them")


def _threshold_key(record: _Record) -> ThresholdKey:
    n, base, units = record.number("n"), record.number("base"), record.numbers("verification")
    holders, threshold, least = (record.count(name) for name in ("holders", "threshold", "min_contributions"))
    _require_sound(record, n, short_exponents=True)
    key = record.made(ThresholdKey, n, holders, threshold, base, units, least)
    if any(gmpy2.jacobi(unit, n) != 1 for unit in (base, *units)):
        raise record.error("base or verification", "a number is no square mod n")
    _require_said(record, key.key_id, key.public_key.bits)
    return key


def _phe_public(record: _Record) -> PublicKey:
    record.require_fields({"kty", "alg", "key_ops", "n"}, {"kid"})
    if (record.fields["kty"], record.fields["alg"]) != (_PHE, _PHE_FORM):
        raise record.error("alg", f"must be {_PHE_FORM!r}, of kty {_PHE!r}")
    # Whether its primes fit short exponents is not said.
    return record.made(PublicKey.received, record.base64("n"))


@dataclass(frozen=True, repr=False)
class _Record:
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
            raise KeyFileError(f"{self.path}: has a field that is not one of {names}")

    def inner(self, field: str) -> _Record:
        """A field that has fields of its own."""
        value = self.fields[field]
        if not isinstance(value, dict):
            raise self.error(field, "must be a JSON object")
        return _Record(self.path, value, f"{self.prefix}{field}.")

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
        well_formed = isinstance(value, str) and len(value) <= _MOST_DIGITS and _BASE64.fullmatch(value)
        if not well_formed or len(value) % 4 == 1:
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


def _read(path: str | Path, *, secret: bool) -> _Record:
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
    try:
        fields = strict_json.loads(content)
    except ValueError:
        # The parser's own error would carry the text along.
        fields = None
    if not isinstance(fields, dict):
        raise KeyFileError(f"{where}: is no key file: must be one JSON object, every name in it once")
    return _Record(where, fields)


def _create(path: str | Path, fields: dict[str, Any], bits: int, *, mode: int, allow_small: bool = False) -> None:
    """Write a new file, whole or not at all, durably; a name that is taken is left alone, even if it is taken at this moment.

    Raises:
        KeyFileError: The name is taken, the folder cannot be written, or the key is too small.
    """
    where = Path(path)
    if bits < SMALLEST_BITS and not allow_small:
        raise KeyFileError(f"{path}: a key of {bits} bits hides nothing: must have at least {SMALLEST_BITS}")
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
