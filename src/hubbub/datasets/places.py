"""Where the files of a published data set come from: a path, the folder HUBBUB_DATA, the cache, or a download into it."""

import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hubbub.errors import DataError
from hubbub.files import cache_folder

__all__ = ["PublishedFile", "cache", "named", "replacing", "what"]

# More than any of these files holds: a server that sends without end fills no memory.
_LARGEST = 400_000_000


def named(path: str | None) -> Path | None:
    """The path given, else the folder in the environment variable ``HUBBUB_DATA``, else ``None``.

    Raises:
        DataError: It begins with the home of a user who is not there.
    """
    chosen = path or os.environ.get("HUBBUB_DATA")
    if not chosen:
        return None
    try:
        return Path(chosen).expanduser()
    except RuntimeError as error:
        raise DataError(f"{chosen}: is missing ({error})") from error


def cache(name: str) -> Path:
    """The folder in which a data set is kept once it was downloaded or decoded."""
    return cache_folder() / name


def what(path: Path) -> str:
    """What is wrong with a path that is no regular file."""
    return "is no regular file" if path.exists() else "is missing"


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which takes its place whole or not at all; of several writers at a time, the last one stays.

    Raises:
        OSError: The folder cannot be made or written, or is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            yield file
            file.flush()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink()
            raise


@dataclass(frozen=True)
class PublishedFile:
    """A file that anybody can get, and by which its content is known.

    Args:
        address: Of the file, https.
        digest: Of its content in hexadecimal: MD5 where that is what was published, else SHA-256.
    """

    address: str
    digest: str

    @property
    def name(self) -> str:
        """Of the file, without its folder."""
        return self.address.rpartition("/")[2]

    def holds(self, content: bytes) -> bool:
        """Whether a content is the published one."""
        kind = "md5" if len(self.digest) == 32 else "sha256"
        return hashlib.new(kind, content, usedforsecurity=False).hexdigest() == self.digest

    def read(self, file: Path, missing: str) -> bytes:
        """The content of a file that must be this one.

        Args:
            file: Where it is.
            missing: What a reader should do where it is not, or is another.

        Raises:
            DataError: The file is missing, unreadable or another one.
        """
        if not file.is_file():
            raise DataError(f"{file}: {what(file)}; {missing}")
        try:
            content = file.read_bytes()
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error.strerror})") from error
        if not self.holds(content):
            raise DataError(f"{file}: is not the published {self.name} (its digest differs); {missing}")
        return content

    def fetched(self, folder: Path, instead: str) -> bytes:
        """The content from a folder of the cache, where it is whole, else by download into that folder.

        Raises:
            DataError: The download fails.
        """
        file = folder / self.name
        try:
            if file.is_file() and self.holds(content := file.read_bytes()):
                return content
            content = self.downloaded(instead)
            with replacing(file) as place:
                place.write(content)
        except OSError as error:
            raise DataError(f"{file}: cannot be read or written ({error}); {instead}") from error
        return content

    def downloaded(self, instead: str) -> bytes:
        """The content from its address.

        Args:
            instead: What a reader should do where there is no network.

        Raises:
            DataError: The download fails, or what comes is another content.
        """
        try:
            with urllib.request.urlopen(self.address, timeout=30) as response:  # noqa: S310 # a fixed https address
                content: bytes = response.read(_LARGEST)
        except (urllib.error.URLError, OSError) as error:
            raise DataError(f"{self.address}: cannot be downloaded ({error}); {instead}") from error
        if not self.holds(content):
            raise DataError(f"{self.address}: came damaged; try again, or {instead}")
        return content
