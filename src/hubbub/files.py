"""The one door to a run's folder: a crash or a loss of power leaves the old content or the new, and a read reads a file.

Durable means: when the function returns, the content *and* the name are on disk (``fsync`` of the file, then of its folder).
Nothing here follows a symbolic link that stands in place of the file, so that a folder's content stays in the folder.
"""

import errno
import os
import stat
from pathlib import Path

__all__ = ["append", "make_folder", "read", "remove", "truncate", "wipe", "write_atomic"]


def write_atomic(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file's content, durably.

    Raises:
        OSError: The folder cannot be written, or is full; the old content stands.
    """
    temporary = _temporary(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    try:
        try:
            _write(descriptor, content, temporary)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise
    _sync(path.parent)


def append(path: Path, content: bytes, *, at: int) -> None:
    """Write at the end of a file, durably.

    Args:
        path: A file that exists.
        content: What to write.
        at: How long the file must be before; a longer or shorter one was changed by somebody else.

    Raises:
        BlockingIOError: The file has another length.
        OSError: The file cannot be written, or the disk is full; the old content stands.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    try:
        size = os.fstat(descriptor).st_size
        if size != at:
            raise BlockingIOError(errno.EAGAIN, f"holds {size} bytes, not the {at} that were written", str(path))
        try:
            _write(descriptor, content, path)
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def truncate(path: Path, size: int) -> None:
    """Cut a file off, durably."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder that only its owner may enter, and those above it, durably; one that is there is kept.

    Raises:
        OSError: It cannot be created, or a file or a symbolic link stands in its place.
    """
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            return
        raise NotADirectoryError(errno.ENOTDIR, "is no folder", str(path))
    except FileNotFoundError:
        if not path.parent.exists():
            make_folder(path.parent)
    os.mkdir(path, 0o700)
    _sync(path.parent)


def remove(path: Path) -> None:
    """Remove a file and what an interrupted write left beside it, durably, where they are there."""
    found = [name for name in (path, _temporary(path)) if os.path.lexists(name)]
    for name in found:
        os.unlink(name)
    if found:
        _sync(path.parent)


def wipe(path: Path) -> None:
    """Write zeros over a file, then remove it, durably. What a disk or a backup keeps elsewhere is out of reach."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        _write(descriptor, bytes(os.fstat(descriptor).st_size), path)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    remove(path)


def read(path: Path, *, at_most: int) -> bytes:
    """A regular file's content.

    Args:
        path: The file.
        at_most: Bytes; a longer file is refused before it is read.

    Raises:
        OSError: The file is missing, is no regular file, is longer, or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        if status.st_size > at_most:
            raise OSError(errno.EFBIG, f"holds {status.st_size:,} bytes, at most {at_most:,} are read", str(path))
        parts = []
        while part := os.read(descriptor, 1 << 24):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def _write(descriptor: int, content: bytes, path: Path) -> None:
    view = memoryview(content)
    while view:
        written = os.write(descriptor, view)
        if not written:
            raise OSError(errno.ENOSPC, f"no room for {len(view):,} bytes", str(path))
        view = view[written:]


def _sync(folder: Path) -> None:
    """Make new names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
