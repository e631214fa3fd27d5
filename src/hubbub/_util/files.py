"""Durable, atomic files: a crash or a loss of power leaves the old content or the new one, never a mixture.

Durable means: when the function returns, the content *and* the name are on disk (``fsync`` of the file, then of its folder).
Nothing here follows a symbolic link that stands in place of the file, so that a folder's content stays in the folder.
"""

import errno
import fcntl
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hubbub.errors import HubbubError, ParticipationError, RunFolderError

# Bytes that are overwritten at once.
_PART = 2**20


def write_atomic(path: Path, content: bytes | Iterable[bytes], *, mode: int = 0o600) -> None:
    """Replace a file's content, which may come in parts, durably; if that fails, the old content stands."""
    temporary = _temporary(path)
    if os.path.lexists(temporary):
        # Left by a crash, or put there by somebody: never written into.
        os.unlink(temporary)
    try:
        with opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode) as descriptor:
            for part in (content,) if isinstance(content, bytes) else content:
                write_whole(partial(os.write, descriptor), part, temporary)
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise
    sync(path.parent)


def append(path: Path, content: bytes, *, at: int) -> None:
    """Write at the end of a file that exists, durably; if that fails, the old content stands.

    ``at`` is how long the file must be before: a longer or shorter one was changed by somebody else.
    """
    with opened(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW) as descriptor:
        size = os.fstat(descriptor).st_size
        if size != at:
            raise BlockingIOError(errno.EAGAIN, f"holds {size} bytes, not the {at} that were written", str(path))
        try:
            write_whole(partial(os.write, descriptor), content, path)
            os.fsync(descriptor)
        except BaseException:
            os.ftruncate(descriptor, size)
            raise


def truncate(path: Path, size: int) -> None:
    """Cut a file off, durably."""
    with opened(path, os.O_WRONLY | os.O_NOFOLLOW) as descriptor:
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)


def cache_folder() -> Path:
    """The folder of files that can be made again: the variable ``HUBBUB_CACHE``, else ``~/.cache/hubbub``."""
    named = os.environ.get("HUBBUB_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "hubbub"


def make_folder(path: Path) -> None:
    """Create a folder that only its owner may enter, and those above it, durably; one that is there is kept."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            return
        what = "is a symbolic link; name the folder itself" if path.is_symlink() else "is no folder"
        raise NotADirectoryError(errno.ENOTDIR, what, str(path))
    except FileNotFoundError:
        if not path.parent.exists():
            make_folder(path.parent)
    os.mkdir(path, 0o700)
    sync(path.parent)


@contextmanager
def locked_folder(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Lock a folder, created if it is missing, against other processes by a file in it."""
    make_folder(path)
    if path.stat().st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "belongs to another user; name a folder of your own", str(path))
    descriptor, owner = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), os.getpid()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        if os.getpid() == owner:
            # A forked process, such as a worker of a DataLoader, has the descriptor as well, and would keep the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def sync(path: Path) -> None:
    """Make durable what is in a file, or the names that are in a folder."""
    try:
        with opened(path, os.O_RDONLY) as descriptor:
            os.fsync(descriptor)
    except PermissionError:
        # A folder that may be entered and not read.
        os.sync()


def remove(path: Path) -> None:
    """Remove a file and the temporary file of an interrupted write, durably, if they exist."""
    found = [name for name in (path, _temporary(path)) if os.path.lexists(name)]
    for name in found:
        os.unlink(name)
    if found:
        sync(path.parent)


def wipe(path: Path) -> None:
    """Write zeros over a file, then remove it, durably. Copies of a disk or a backup are out of reach."""
    with opened(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW) as descriptor:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise OSError(
                errno.EINVAL,
                "is no file of its own: it has another name or is not a regular file; remove it by hand",
                str(path),
            )
        for start in range(0, status.st_size, _PART):
            write_whole(partial(os.write, descriptor), bytes(min(_PART, status.st_size - start)), path)
        os.fsync(descriptor)
    remove(path)


def read(path: Path, *, at_most: int) -> bytes:
    """A regular file's content; one of more than ``at_most`` bytes is refused before it is read."""
    with opened(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW) as descriptor:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        if status.st_size > at_most:
            raise OSError(errno.EFBIG, f"holds {status.st_size:,} bytes, at most {at_most:,} are read", str(path))
        # It knows the size, and holds the content once.
        with io.FileIO(descriptor, closefd=False) as file:
            return file.readall()


@contextmanager
def refusing(path: Path, what: str, then: str = "restore it", kind: type[HubbubError] = RunFolderError) -> Iterator[None]:
    """A context in which errors of reading or parsing a file become an error of a ``kind`` that names it.

    It says ``what`` the fault is, such as "is no release", and the next step, ``then``.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{path}: cannot be read ({error.strerror}); {then}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ParticipationError) as error:
        why = f"has no {error}" if isinstance(error, KeyError) else error
        raise kind(f"{path}: {what} ({why}); {then}") from error


@contextmanager
def opened(path: Path, flags: int, mode: int = 0o600) -> Iterator[int]:
    """A descriptor; an error of a call on it names the file."""
    descriptor = os.open(path, flags, mode)
    try:
        yield descriptor
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        os.close(descriptor)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def write_whole(write: Callable[[memoryview], int | None], content: bytes, path: Path | None) -> None:
    """Write all of the content by calls that may write a part of it; ``path`` is for the message."""
    view = memoryview(content)
    while view:
        written = write(view)
        if not written:
            raise OSError(errno.ENOSPC, f"no room for {len(view):,} bytes", path and str(path))
        view = view[written:]
