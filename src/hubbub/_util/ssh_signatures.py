"""Signatures that ``ssh-keygen -Y verify`` checks: Ed25519, under one namespace.

Source: OpenSSH, PROTOCOL.sshsig, https://github.com/openssh/openssh-portable/blob/master/PROTOCOL.sshsig; RFC 8709, section 6.
"""

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Collection
from pathlib import Path
from textwrap import fill

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey as PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey as PublicKey

from hubbub._util.files import refusing
from hubbub.errors import KeyFileError

__all__ = ["NAMESPACE", "PrivateKey", "PublicKey", "private_key", "public_keys", "require_signed", "sign"]

# The purpose of a signature: the same key may sign other things elsewhere.
NAMESPACE = "hubbub"
_MAGIC, _KIND, _HASH = b"SSHSIG", b"ssh-ed25519", b"sha512"
_BEGIN, _END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
_BYTES = 64
_MAKE = "make one: ssh-keygen -t ed25519 -N '' -f KEY"


def private_key(path: Path) -> PrivateKey:
    """The key of a file that OpenSSH or OpenSSL made."""
    content = _read(path)
    if path.stat().st_mode & 0o077:
        raise KeyFileError(f"{path}: may be read by others; chmod 600 {path} if nobody has, or make another key")
    load = serialization.load_ssh_private_key if b"OPENSSH" in content else serialization.load_pem_private_key
    try:
        key = load(content, password=None)
    except TypeError as error:
        raise KeyFileError(f"{path}: is under a passphrase, and nobody is there to type it; {_MAKE}") from error
    # The parser's message may contain a part of the key.
    except Exception as error:
        raise KeyFileError(f"{path}: is no private key of OpenSSH's or PEM form; {_MAKE}") from error
    if not isinstance(key, PrivateKey):
        raise KeyFileError(f"{path}: is no Ed25519 key; {_MAKE}")
    return key


def public_keys(path: Path) -> tuple[PublicKey, ...]:
    """The keys of a file: one in PEM, or one a line as in OpenSSH's KEY.pub; the old and the new where one was replaced."""
    content = _read(path)
    lines = [content] if content.startswith(b"-----BEGIN") else [line for line in content.splitlines() if line.strip()]
    load = serialization.load_pem_public_key if content.startswith(b"-----BEGIN") else serialization.load_ssh_public_key
    keys = []
    for line in lines:
        try:
            key = load(line)
        except Exception as error:
            raise KeyFileError(f"{path}: is no file of public keys; name the KEY.pub of the one that signed") from error
        if not isinstance(key, PublicKey):
            raise KeyFileError(f"{path}: is no Ed25519 key; name the KEY.pub of the one that signed")
        keys.append(key)
    if not keys:
        raise KeyFileError(f"{path}: holds no key; name the KEY.pub of the one that signed")
    return tuple(keys)


def sign(key: PrivateKey, message: bytes) -> str:
    """The signature of a message, as ``ssh-keygen -Y sign -n hubbub`` writes it.

    Example:
        >>> key = PrivateKey.generate()
        >>> require_signed(b"message", sign(key, b"message"), [key.public_key()])
    """
    body = b64encode(_content(key.public_key(), key.sign(_signed(message)))).decode()
    return f"{_BEGIN}\n{fill(body, 70)}\n{_END}\n"


def require_signed(message: bytes, signature: str, keys: Collection[PublicKey]) -> None:
    """Refuse a signature that none of some keys made of a message."""
    lines = signature.split()
    if " ".join(lines[:3] + lines[-3:]) != f"{_BEGIN} {_END}":
        raise ValueError("its signature is not of OpenSSH's form")
    content = b64decode("".join(lines[3:-3]), validate=True)
    made = content[-_BYTES:]
    for key in keys:
        if content == _content(key, made):
            try:
                return key.verify(made, _signed(message))
            except InvalidSignature as error:
                raise ValueError("its signature is of something else") from error
    raise ValueError("its signature is by another key, or for another purpose")


def _read(path: Path) -> bytes:
    with refusing(path, "cannot be read", "name the file of a key", KeyFileError):
        return path.read_bytes()


def _text(content: bytes) -> bytes:
    """A string of the wire format."""
    return len(content).to_bytes(4, "big") + content


_TERMS = _text(NAMESPACE.encode()) + _text(b"") + _text(_HASH)


def _signed(message: bytes) -> bytes:
    """The signed bytes for a message."""
    return _MAGIC + _TERMS + _text(hashlib.sha512(message).digest())


def _content(key: PublicKey, made: bytes) -> bytes:
    """A signature's content: a version, the key, the terms, and the 64 bytes that the key made."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    of_key, of_signature = (_text(_text(_KIND) + _text(own)) for own in (raw, made))
    return _MAGIC + (1).to_bytes(4, "big") + of_key + _TERMS + of_signature
