"""Heads of a run's ledger, sent to somebody outside, whose copy later reveals whether the run's folder was rolled back.

A head is sent once its record is on disk, and before the round's release leaves: one of the promise, and one of each round that
was released or aborted. A head that was not taken is sent again with the next round and at the next start, in order. So each is
sent at least once, and none is left out: ``state/heads`` keeps the last one that was taken.

A statement is a line of strict JSON: the head, the number of rounds in the ledger, and the run, by the hash of its promise. It
holds nothing private, and no time.
"""

import http.client
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hubbub._util import strict_json
from hubbub._util.ssh_signatures import PrivateKey, private_key, sign
from hubbub.errors import ConfigError

# Seconds that a head may take.
_PATIENCE = 10.0
_HERE = ("localhost", "127.0.0.1", "::1")


class _Straight(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a POST that follows one becomes a GET without its body."""

    def redirect_request(self, *_: Any) -> None:
        """No request."""


class HeadHook:
    """The receiver of each round's head: a command on its standard input, or a URL by POST.

    Args:
        to: ``https://…`` (``http://`` for this machine alone), or the words of a command, which no shell reads.
        key: The file of an Ed25519 key without a passphrase (``ssh-keygen -t ed25519``) that signs each statement;
            ``ssh-keygen -Y verify -n hubbub`` checks it.
        required: Whether a round's release may leave only once its head was taken. Otherwise a head that was not taken is
            a warning of the logger ``hubbub``, and is sent again.

    Raises:
        ConfigError: Neither a command nor such a URL.
        KeyFileError: The key cannot be used.

    Example:
        >>> hook = HeadHook(["cat"])
        >>> hook.give("00" * 32, 3, "11" * 32)
        ''
        >>> HeadHook(["false"]).give("00" * 32, 3, "11" * 32)
        'false: exit status 1'
    """

    def __init__(self, to: str | Sequence[str], *, key: str | Path | None = None, required: bool = False) -> None:
        self.required = required
        self._command = None if isinstance(to, str) else tuple(to)
        self._url = to if isinstance(to, str) else ""
        if self._command is None:
            try:
                parts = urlsplit(self._url)
            except ValueError:
                parts = urlsplit("")
            if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _HERE)):
                raise ConfigError(
                    f"head hook = {self._url!r}: must begin with https://, or with http://localhost; a command is a list of "
                    "words"
                )
            self.name = parts.hostname
        elif not self._command or not all(isinstance(word, str) and word for word in self._command):
            raise ConfigError(f"head hook = {to!r}: must be a URL, or the words of a command, such as ['keep-head', 'digits']")
        else:
            self.name = self._command[0]
        self._key: PrivateKey | None = None if key is None else private_key(Path(key).expanduser())

    def give(self, run: str, rounds: int, head: str) -> str:
        """Send a head; returns why it was not taken, or an empty text.

        Args:
            run: The hash of the ledger's first record.
            rounds: The number of rounds in the ledger.
            head: The hash of the ledger's last record.
        """
        body: dict[str, str | int] = {"head": head, "rounds": rounds, "run": run}
        signature = {} if self._key is None else {"signature": sign(self._key, signed_part(body))}
        line = strict_json.canonical(body | signature) + b"\n"
        try:
            why = self._post(line) if self._command is None else _run(self._command, line)
        except TimeoutError:
            why = f"no answer in {_PATIENCE:g} seconds"
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = str(getattr(error, "reason", "")) or getattr(error, "strerror", "") or type(error).__name__
        return f"{self.name}: {why}" if why else ""

    def _post(self, line: bytes) -> str:
        request = urllib.request.Request(self._url, line, {"Content-Type": "application/json"})  # noqa: S310 # of two schemes
        try:
            with urllib.request.build_opener(_Straight).open(request, timeout=_PATIENCE):
                return ""
        except urllib.error.HTTPError as error:
            error.close()
            return f"status {error.code}"


def signed_part(body: dict[str, Any]) -> bytes:
    """The part of a statement that its signature covers: all but the signature."""
    return strict_json.canonical({name: value for name, value in body.items() if name != "signature"})


def _run(command: Sequence[str], line: bytes) -> str:
    """Send a line to a command, in a process group of its own, so that a timeout also ends what it started."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=0) as process:  # noqa: S603
        try:
            process.communicate(line, timeout=_PATIENCE)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeoutError from error
            raise
    return "" if process.returncode == 0 else f"exit status {process.returncode}"
