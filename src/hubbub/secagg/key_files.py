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
from collections.abc import Iterator, Mapping
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
_FORMATS: Mapping[type, str] = {
    PublicKey: "hubbub paillier public key",
    ThresholdKey: "hubbub paillier threshold key",
    PrivateKey: "hubbub paillier private key",
    KeyShare: "hubbub paillier key share",
}
_HEX = re.compile(r"0x[1-9a-f][0-9a-f]*")
# A threshold key of 8192 bits and 100 holders has half a megabyte; the numbers of the longest keys have 32768 bits.
_MOST_BYTES, _MOST_DIGITS = 2**22, 2 + 2**13
_Key = PublicKey | ThresholdKey | PrivateKey | KeyShare


def share_name(holder: int) -> str:
    """The file name of a share, by its holder's number from 1.

    Example:
        >>> share_name(2)
        'share-2.json'
    """
    return f"share-{holder}.json"


def write_public(path: str | Path, key: PublicKey | ThresholdKey) -> None:
    """Write a public key, of one owner or of holders of shares, into a new file that everybody may read.

    Args:
        path: A new file.
        key: Of at least 2048 bits.

    Raises:
        KeyFileError: The file exists or cannot be written, or the key is too small.

    Example:
        >>> import tempfile
        >>> from hubbub.secagg import paillier
        >>> file, public = Path(tempfile.mkdtemp()) / PUBLIC, paillier.generate(2048).public_key
        >>> write_public(file, public)
        >>> read_public(file) == public
        True
    """
    _write(path, key, mode=0o644)


def write_private(path: str | Path, key: PrivateKey) -> None:
    """Write a private key into a new file that only its owner may read.

    Args:
        path: A new file.
        key: Of at least 2048 bits.

    Raises:
        KeyFileError: The file exists or cannot be written, or the key is too small.

    Example:
        >>> import tempfile
        >>> from hubbub.secagg import paillier
        >>> folder, private = Path(tempfile.mkdtemp()), paillier.generate(2048)
        >>> write_private(folder / PRIVATE, private)
        >>> oct((folder / PRIVATE).stat().st_mode & 0o777), read_private(folder / PRIVATE).public_key == private.public_key
        ('0o600', True)
    """
    _write(path, key, mode=0o600)


def write_share(path: str | Path, share: KeyShare) -> None:
    """Write a holder's share, with its public key, into a new file that only its owner may read.

    Args:
        path: A new file; :func:`share_name` is its usual name.
        share: Of a key of at least 2048 bits.

    Raises:
        KeyFileError: The file exists or cannot be written, or the key is too small.

    Example::

        public, shares = threshold.generate(holders=3, threshold=2)
        for share in shares:
            write_share(folder / share_name(share.holder), share)
    """
    _write(path, share, mode=0o600)


def read_public(path: str | Path) -> PublicKey | ThresholdKey:
    """The public key in a file; its class says who decrypts: the owner of a private key, or holders of shares together.

    Raises:
        KeyFileError: The file is missing, damaged or of another kind, or the key is not sound.

    Example:
        >>> import tempfile
        >>> read_public(Path(tempfile.gettempdir()) / "no-such-key.json")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        hubbub.errors.KeyFileError: ...no-such-key.json: cannot be read: No such file or directory
    """
    key: PublicKey | ThresholdKey = _read(path, PublicKey, ThresholdKey, secret=False)
    return key


def read_private(path: str | Path) -> PrivateKey:
    """The private key in a file; its primes are tested again.

    Raises:
        KeyFileError: The file is missing, damaged, of another kind or readable by others, or the key is not sound.

    Example:
        >>> import tempfile
        >>> from hubbub.secagg import paillier
        >>> file = Path(tempfile.mkdtemp()) / PRIVATE
        >>> write_private(file, paillier.generate(2048))
        >>> file.chmod(0o640)
        >>> read_private(file)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        hubbub.errors.KeyFileError: ...private-key.json: is secret, and others may read or change it (mode 0640); ...
    """
    key: PrivateKey = _read(path, PrivateKey, secret=True)
    return key


def read_share(path: str | Path) -> KeyShare:
    """A holder's share, checked against the public key that is stored with it.

    Raises:
        KeyFileError: The file is missing, damaged, of another kind or readable by others, or the share does not fit the key.

    Example:
        >>> import tempfile
        >>> from hubbub.secagg import paillier
        >>> file = Path(tempfile.mkdtemp()) / PRIVATE
        >>> write_private(file, paillier.generate(2048))
        >>> read_share(file)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        hubbub.errors.KeyFileError: ...: format: is 'hubbub paillier private key': must be 'hubbub paillier key share'
    """
    share: KeyShare = _read(path, KeyShare, secret=True)
    return share


@contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    """Turn a refusal inside into a KeyFileError that names the file; the cause is dropped, since it may carry a secret."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise KeyFileError(f"{Path(path)}: {error}") from None


def _said(key: _Key) -> dict[str, Any]:
    """All that the file of a key says."""
    match key:
        case PublicKey():
            own: dict[str, Any] = {"n": hex(key.n), "short_exponents": key.short_exponents}
        case ThresholdKey():
            own = {"holders": key.holders, "threshold": key.threshold, "min_contributions": key.min_contributions}
            own |= {"n": hex(key.n), "base": hex(key.base), "verification": [hex(unit) for unit in key.verification]}
        case PrivateKey():
            own = {"p": hex(key.p), "q": hex(key.q)}
        case KeyShare():
            own = {"holder": key.holder, "secret": hex(key.secret), "public": _said(key.public)}
    public = key if isinstance(key, PublicKey | ThresholdKey) else key.public
    bits = public.public_key.bits
    if bits < SMALLEST_BITS:
        raise ValueError(f"a key of {bits} bits hides nothing: must have at least {SMALLEST_BITS}")
    return {"format": _FORMATS[type(key)], "version": _VERSION, "key_id": public.key_id, "bits": bits, **own}


def _key(fields: dict[str, Any], *classes: type) -> Any:
    """The key of one of the classes that a file describes: all that the file says must be what the key's own file would say."""
    given, version = fields.get("format"), fields.get("version")
    expected = {_FORMATS[kind]: kind for kind in classes}
    if given not in list(expected):
        found = repr(given) if given in _FORMATS.values() else "no word that is known"
        raise ValueError(f"format: is {found}: must be {' or '.join(map(repr, expected))}")
    if type(version) is not int or version != _VERSION:
        raise ValueError(f"version: must be {_VERSION}: the file was not written by this version of hubbub")
    try:
        key = _made(expected[given], fields)
        said = _said(key)
        for name, value in said.items():
            if strict_json.canonical(fields[name]) != strict_json.canonical(value):
                known = f" is {value!r}" if name == "key_id" else f" has {value}" if name == "bits" else " has another"
                raise ValueError(f"{name}: the key{known}, and the file says otherwise: one of them was changed")
    except KeyError as missing:
        raise ValueError(f"{missing.args[0]}: is missing") from None
    if set(fields) != set(said):
        # The unknown name is not shown: in a damaged file it may be a secret.
        raise ValueError(f"has a field that is not one of {', '.join(sorted(said))}")
    return key


def _made(kind: type, fields: dict[str, Any]) -> Any:
    """The key of the numbers in a file, after the checks that it needs because it comes from outside."""
    if kind is PrivateKey:
        return PrivateKey.from_primes(_number("p", fields["p"]), _number("q", fields["q"]))
    if kind is KeyShare:
        if not isinstance(fields["public"], dict):
            raise ValueError("public: must be a JSON object")
        try:
            public = _key(fields["public"], ThresholdKey)
        except ValueError as error:
            raise ValueError(f"public: {error}") from None
        return KeyShare(public, _count("holder", fields["holder"]), _number("secret", fields["secret"]))
    key = PublicKey.received(_number("n", fields["n"]), fields["short_exponents"] if kind is PublicKey else True)
    if key.short_exponents and key.n % 4 != 1:
        raise ValueError("n: is no product of two primes that are 3 mod 4, as this kind of key has them")
    if kind is PublicKey:
        return key
    if not isinstance(fields["verification"], list):
        raise ValueError("verification: must be a list")
    base, *units = [_number("base or verification", unit) for unit in (fields["base"], *fields["verification"])]
    if any(gmpy2.jacobi(unit, key.n) != 1 for unit in (base, *units)):
        raise ValueError("base or verification: a number is no square mod n")
    holders, threshold, least = (_count(name, fields[name]) for name in ("holders", "threshold", "min_contributions"))
    return ThresholdKey(key.n, holders, threshold, base, tuple(units), least)


def _number(name: str, value: object) -> int:
    if not isinstance(value, str) or len(value) > _MOST_DIGITS or not _HEX.fullmatch(value):
        raise ValueError(f"{name}: must be a number as text, 0x and small hexadecimal digits")
    return int(value, 16)


def _count(name: str, value: object) -> int:
    if type(value) is not int or not 1 <= value < 2**31:
        raise ValueError(f"{name}: must be a whole number from 1")
    return value


def _read(path: str | Path, *classes: type, secret: bool) -> Any:
    """The key in a file; a secret one must be closed to everybody but its owner."""
    with _naming(path):
        try:
            mode = Path(path).lstat().st_mode if secret else 0
            if stat.S_ISREG(mode) and mode & 0o077:
                raise ValueError(
                    f"is secret, and others may read or change it (mode {stat.S_IMODE(mode):04o}); type: chmod 600 "
                    f"{shlex.quote(str(path))}"
                )
            content = files.read(Path(path), at_most=_MOST_BYTES)
        except OSError as error:
            raise ValueError(f"cannot be read: {error.strerror}") from error
        try:
            fields = strict_json.loads(content)
        except ValueError:
            # The parser's own error would carry the text along.
            fields = None
        if not isinstance(fields, dict):
            raise ValueError("is no key file: must be one JSON object, every name in it once")
        return _key(fields, *classes)


def _write(path: str | Path, key: _Key, *, mode: int) -> None:
    """Write a new file durably, whole or not at all; a file that exists is never replaced, even if it appears meanwhile."""
    where = Path(path)
    temporary = where.with_name(f".{where.name}.{secrets.token_hex(4)}")
    with _naming(path):
        content = strict_json.canonical(_said(key)) + b"\n"
        try:
            files.write_atomic(temporary, content, mode=mode)
            try:
                os.link(temporary, where)
            finally:
                files.remove(temporary)
        except FileExistsError:
            raise ValueError("exists, and a key file is never overwritten; choose another name or folder") from None
        except OSError as error:
            raise ValueError(f"cannot be written: {error.strerror}") from error
