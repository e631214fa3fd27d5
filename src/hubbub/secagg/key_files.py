"""Key files: strict JSON in one form, checked again when it is read, never overwritten and never pickled.

::

    key_files.write_private("private-key.json", private)     # mode 0600
    key_files.write_public("public-key.json", private.public_key)
    public = key_files.read_public("public-key.json")        # a PublicKey or a ThresholdKey

Compare a public key's ``key_id`` with the one that its owner gives you: nothing in the file proves whose key it is. Secrets are
stored unencrypted, and no error message quotes a file.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
    "write_private",
    "write_public",
    "write_share",
]

# File names in a folder of keys.
PUBLIC, PRIVATE = "public-key.json", "private-key.json"

_VERSION = 1
_PUBLIC, _THRESHOLD = "hubbub paillier public key", "hubbub paillier threshold key"
_PRIVATE, _SHARE = "hubbub paillier private key", "hubbub paillier key share"
_HEX = re.compile(r"0x[1-9a-f][0-9a-f]*")
# A threshold key of 8192 bits and 100 holders has half a megabyte; the numbers of the longest keys have 32768 bits.
_MOST_BYTES, _MOST_DIGITS = 2**22, 2 + 2**13


def share_name(holder: int) -> str:
    """The file name of a share, by its holder's number from 1.

    Example:
        >>> share_name(2)
        'share-2.json'
    """
    return f"share-{holder}.json"


def write_public(path: str | Path, key: PublicKey | ThresholdKey) -> None:
    """Write a public key into a new file that everybody may read.

    Args:
        path: A file that does not exist.
        key: Of one owner, or of holders of shares.

    Raises:
        KeyFileError: The file exists or cannot be written, or the key is too small.
    """
    if isinstance(key, ThresholdKey):
        fields = _threshold_fields(key)
    else:
        fields = {**_head(_PUBLIC, key.key_id, key.bits), "n": hex(key.n), "short_exponents": key.short_exponents}
    _create(path, fields, fields["bits"], mode=0o644)


def write_private(path: str | Path, key: PrivateKey) -> None:
    """Write a private key into a new file that only its owner may read.

    Args:
        path: A file that does not exist.
        key: Secret.

    Raises:
        KeyFileError: The file exists or cannot be written, or the key is too small.
    """
    public = key.public_key
    fields = {**_head(_PRIVATE, public.key_id, public.bits), "p": hex(key.p), "q": hex(key.q)}
    _create(path, fields, public.bits, mode=0o600)


def write_share(path: str | Path, share: KeyShare) -> None:
    """Write a holder's share, with its public key, into a new file that only its owner may read.

    Args:
        path: A file that does not exist.
        share: Secret.

    Raises:
        KeyFileError: The file exists or cannot be written, or the key is too small.
    """
    key, bits = share.public, share.public.public_key.bits
    parts = {"holder": share.holder, "secret": hex(share.secret), "public": _threshold_fields(key)}
    _create(path, {**_head(_SHARE, key.key_id, bits), **parts}, bits, mode=0o600)


def read_public(path: str | Path) -> PublicKey | ThresholdKey:
    """The public key in a file; its class says who decrypts: the owner of a private key, or holders of shares together.

    Raises:
        KeyFileError: The file is missing, damaged or of another kind, or the key is not sound.
    """
    with _naming(path):
        fields = _read(Path(path), secret=False)
        if fields.get("format") == _THRESHOLD:
            return _threshold_key(fields)
        values = _values(fields, _PUBLIC, _THRESHOLD)
        key = _sound(values["n"], short_exponents=values["short_exponents"])
        _require_stated(values, key.key_id, key.bits)
        return key


def read_private(path: str | Path) -> PrivateKey:
    """The private key in a file; its primes are tested again.

    Raises:
        KeyFileError: The file is missing, damaged, of another kind or readable by others, or the key is not sound.
    """
    with _naming(path):
        values = _values(_read(Path(path), secret=True), _PRIVATE)
        key = PrivateKey.from_primes(values["p"], values["q"])
        _require_stated(values, key.public_key.key_id, key.public_key.bits)
        return key


def read_share(path: str | Path) -> KeyShare:
    """A holder's share, checked against the public key that is stored with it.

    Raises:
        KeyFileError: The file is missing, damaged, of another kind or readable by others, or the share does not fit the key.
    """
    with _naming(path):
        values = _values(_read(Path(path), secret=True), _SHARE)
        public = _threshold_key(values["public"], "public.")
        _require_stated(values, public.key_id, public.public_key.bits)
        return KeyShare(public, values["holder"], values["secret"])


@contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    """Turn a refusal inside into a KeyFileError that names the file; the cause is dropped, since it may carry a secret."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise KeyFileError(f"{Path(path)}: {error}") from None


def _head(kind: str, key_id: str, bits: int) -> dict[str, Any]:
    return {"format": kind, "version": _VERSION, "key_id": key_id, "bits": bits}


def _threshold_fields(key: ThresholdKey) -> dict[str, Any]:
    counts = {"holders": key.holders, "threshold": key.threshold, "min_contributions": key.min_contributions}
    numbers = {"n": hex(key.n), "base": hex(key.base), "verification": [hex(unit) for unit in key.verification]}
    return {**_head(_THRESHOLD, key.key_id, key.public_key.bits), **counts, **numbers}


def _threshold_key(fields: dict[str, Any], prefix: str = "") -> ThresholdKey:
    values = _values(fields, _THRESHOLD, prefix=prefix)
    n, base, units = values["n"], values["base"], values["verification"]
    _sound(n, short_exponents=True)
    key = ThresholdKey(n, values["holders"], values["threshold"], base, units, values["min_contributions"])
    if any(gmpy2.jacobi(unit, n) != 1 for unit in (base, *units)):
        raise ValueError(f"{prefix}base or verification: a number is no square mod n")
    _require_stated(values, key.key_id, key.public_key.bits, prefix)
    return key


def _sound(n: int, *, short_exponents: bool) -> PublicKey:
    """The public key of n, after the checks that need no primes."""
    key = PublicKey.received(n, short_exponents)
    if short_exponents and n % 4 != 1:
        raise ValueError("n: is no product of two primes that are 3 mod 4, as this kind of key has them")
    return key


def _require_stated(values: dict[str, Any], key_id: str, bits: int, prefix: str = "") -> None:
    """Refuse a file whose stated length or id is not the key's, or whose key is too small."""
    if type(values["bits"]) is not int or values["bits"] != bits:
        raise ValueError(f"{prefix}bits: the key has {bits}, and the file says otherwise")
    if values["key_id"] != key_id:
        raise ValueError(f"{prefix}key_id: the key is {key_id!r}, and the file says otherwise: one of them was changed")
    if bits < SMALLEST_BITS:
        raise ValueError(f"{prefix}bits: a key must have at least {SMALLEST_BITS}, and this one has {bits}")


# Fields of a file, and how each is read.


def _any(value: Any) -> Any:
    return value


def _hex(value: object) -> int:
    if not isinstance(value, str) or len(value) > _MOST_DIGITS or not _HEX.fullmatch(value):
        raise ValueError("must be a number as text, 0x and small hexadecimal digits")
    return int(value, 16)


def _hexes(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError("must be a list")
    return tuple(map(_hex, value))


def _count(value: object) -> int:
    if type(value) is not int or not 1 <= value < 2**31:
        raise ValueError("must be a whole number from 1")
    return value


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object")
    return value


_Fields = Mapping[str, Callable[[Any], Any]]
_COMMON: _Fields = dict.fromkeys(("format", "version", "key_id", "bits"), _any)
_FIELDS: Mapping[str, _Fields] = {
    _PUBLIC: {**_COMMON, "n": _hex, "short_exponents": _any},
    _THRESHOLD: {
        **_COMMON,
        **dict.fromkeys(("holders", "threshold", "min_contributions"), _count),
        "n": _hex,
        "base": _hex,
        "verification": _hexes,
    },
    _PRIVATE: {**_COMMON, "p": _hex, "q": _hex},
    _SHARE: {**_COMMON, "holder": _count, "secret": _hex, "public": _object},
}


def _values(fields: dict[str, Any], *kinds: str, prefix: str = "") -> dict[str, Any]:
    """The values of a file of one of the expected kinds, which has all fields of its kind and no other."""
    kind, version = fields.get("format"), fields.get("version")
    if kind not in kinds:
        found = repr(kind) if isinstance(kind, str) and kind in _FIELDS else "no word that is known"
        raise ValueError(f"{prefix}format: is {found}: must be {' or '.join(map(repr, kinds))}")
    if type(version) is not int or version != _VERSION:
        raise ValueError(f"{prefix}version: must be {_VERSION}: the file was not written by this version of hubbub")
    forms = _FIELDS[str(kind)]
    if missing := sorted(set(forms) - set(fields)):
        raise ValueError(f"{prefix}{missing[0]}: is missing")
    if not set(fields) <= set(forms):
        # The unknown name is not shown: in a damaged file it may be a secret.
        raise ValueError(f"has a field that is not one of {', '.join(prefix + name for name in sorted(forms))}")
    values = dict(fields)
    for name, form in forms.items():
        try:
            values[name] = form(fields[name])
        except ValueError as error:
            raise ValueError(f"{prefix}{name}: {error}") from None
    return values


def _read(path: Path, *, secret: bool) -> dict[str, Any]:
    """The JSON object in a file; a secret one must be closed to everybody but its owner."""
    try:
        if secret:
            _require_closed(path)
        content = files.read(path, at_most=_MOST_BYTES)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error
    try:
        fields = strict_json.loads(content)
    except ValueError:
        # The parser's own error would carry the text along.
        fields = None
    if not isinstance(fields, dict):
        raise ValueError("is no key file: must be one JSON object, every name in it once")
    return fields


def _create(path: str | Path, fields: dict[str, Any], bits: int, *, mode: int) -> None:
    """Write a new file durably, whole or not at all; a file that exists is never replaced, even if it appears meanwhile.

    Raises:
        KeyFileError: The file exists, the folder cannot be written, or the key is too small.
    """
    where = Path(path)
    if bits < SMALLEST_BITS:
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
        raise ValueError(
            f"is secret, and others may read or change it (mode {stat.S_IMODE(mode):04o}); type: chmod 600 "
            f"{shlex.quote(str(path))}"
        )
