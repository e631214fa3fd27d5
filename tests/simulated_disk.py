"""A disk that forgets: it stands in for ``os`` in ``hubbub._util.files``, and says what a loss of power may leave.

Calls are done in a real folder and logged. Written data are durable after an fsync of their file, names after an fsync of
their folder. Of all the rest any part may be lost, in any order: a name leads to any file that it led to since, and a write is
there, or not, or cut, or of its full length with some sectors unwritten. What a lost name led to is gone.
"""
# ruff: noqa: PTH102, PTH105, PTH108

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["EVERYTHING", "NOTHING", "Choose", "Disk", "Image", "Killed", "Mark", "put"]

SECTOR = 512
ROOT = 0

# Takes one of several things that may have happened: the first is the loss of what was written, the last that it is there.
Choose = Callable[[Sequence[Any]], Any]


def NOTHING(options: Sequence[Any]) -> Any:  # noqa: N802 # a constant
    """Nothing is there that was not durable."""
    return options[0]


def EVERYTHING(options: Sequence[Any]) -> Any:  # noqa: N802 # a constant
    """All is there, as after kill -9."""
    return options[-1]


class Killed(BaseException):
    """The process has ended: no handler of exceptions does anything more."""


@dataclass(frozen=True)
class Write:
    inode: int
    offset: int
    content: bytes


@dataclass(frozen=True)
class Resize:
    """Another length of a file."""

    inode: int
    size: int


@dataclass(frozen=True)
class Name:
    """What a name in a folder leads to; ``None`` where it was removed."""

    folder: int
    name: str
    inode: int | None
    is_folder: bool = False


@dataclass(frozen=True)
class Sync:
    """All data of a file, or all names in a folder, are durable."""

    inode: int


@dataclass(frozen=True)
class Mark:
    """What the world saw at this point."""

    event: Any


class Disk:
    """What ``hubbub._util.files`` takes for ``os``; what is in the folder at the start is durable.

    Args:
        root: A folder; what is outside it is not logged.

    ``before`` is called with the name of each call that changes the disk, and its path: it may raise, in place of the call.
    ``room`` is how many more bytes fit; where none does a write raises, or returns 0 if ``returns_zero``.
    """

    def __init__(self, root: Path) -> None:
        self.log: list[tuple[Write | Resize | Name | Sync, ...] | Mark] = []
        self.before: Callable[[str, Path], None] = lambda call, path: None
        self.room: int | None = None
        self.returns_zero = False
        self._root = root
        self._inodes: dict[Path, int] = {root: ROOT}
        self._next = 1
        self._opened: dict[int, tuple[Path, int]] = {}
        for path in sorted(root.rglob("*")):
            inode = self._new(path)
            content = () if path.is_dir() else (Write(inode, 0, path.read_bytes()), Sync(inode))
            name = Name(self._inodes[path.parent], path.name, inode, path.is_dir())
            self.log.append((name, *content, Sync(self._inodes[path.parent])))

    def __getattr__(self, name: str) -> Any:
        """Constants and calls that only read. Any other call is unknown to this disk: better an error than a blind spot."""
        if name.isupper() or name.startswith("O_") or name in ("environ", "fstat", "getpid", "getuid", "lstat", "read", "path"):
            return getattr(os, name)
        raise AssertionError(f"os.{name}: the simulated disk does not know this call")

    def mark(self, event: Any) -> None:
        """Note what the world sees now."""
        self.log.append(Mark(event))

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        changes = flags & (os.O_WRONLY | os.O_RDWR)
        if changes:
            self.before("open", path)
        existed = os.path.lexists(path)
        descriptor = os.open(path, flags, mode)
        self._opened[descriptor] = (path, flags)
        if changes and self._ours(path):
            if not existed:
                self._log(Name(self._inodes[path.parent], path.name, self._new(path)))
            elif flags & os.O_TRUNC:
                self._log(Resize(self._inodes[path], 0))
        return descriptor

    def close(self, descriptor: int) -> None:
        self._opened.pop(descriptor, None)
        os.close(descriptor)

    def write(self, descriptor: int, content: Any) -> int:
        path, flags = self._opened[descriptor]
        self.before("write", path)
        if self.room is not None:
            content = content[: self.room]
            self.room -= len(content)
            if not content and not self.returns_zero:
                raise OSError(28, "No space left on device")
        end = flags & os.O_APPEND
        offset = os.fstat(descriptor).st_size if end else os.lseek(descriptor, 0, os.SEEK_CUR)
        written = os.write(descriptor, content)
        if self._ours(path) and written:
            self._log(Write(self._inodes[path], offset, bytes(content[:written])))
        return written

    def ftruncate(self, descriptor: int, size: int) -> None:
        path, _ = self._opened[descriptor]
        self.before("ftruncate", path)
        os.ftruncate(descriptor, size)
        if self._ours(path):
            self._log(Resize(self._inodes[path], size))

    def fsync(self, descriptor: int) -> None:
        path, _ = self._opened[descriptor]
        self.before("fsync", path)
        if self._ours(path):
            self._log(Sync(self._inodes[path]))

    def replace(self, old: Path, new: Path) -> None:
        self.before("replace", new)
        os.replace(old, new)
        if self._ours(new):
            inode = self._inodes[new] = self._inodes.pop(old)
            folder = self._inodes[new.parent]
            # Two entries of a folder: one of them may be on disk without the other.
            self._log(Name(folder, new.name, inode), Name(folder, old.name, None))

    def unlink(self, path: Path) -> None:
        if os.path.lexists(path):
            self.before("unlink", path)
        os.unlink(path)
        if self._ours(path):
            del self._inodes[path]
            self._log(Name(self._inodes[path.parent], path.name, None))

    def mkdir(self, path: Path, mode: int = 0o777) -> None:
        self.before("mkdir", path)
        os.mkdir(path, mode)
        if self._ours(path):
            self._log(Name(self._inodes[path.parent], path.name, self._new(path), is_folder=True))

    def _ours(self, path: Path) -> bool:
        return path.is_relative_to(self._root)

    def _new(self, path: Path) -> int:
        inode = self._inodes[path] = self._next
        self._next += 1
        return inode

    def _log(self, *effects: Write | Resize | Name | Sync) -> None:
        self.log.append(effects)


class Image:
    """What a disk holds, and what it may hold, at a point of a log."""

    def __init__(self) -> None:
        # For each name what it led to, from the durable value to the last; for each file durable bytes and what came since.
        self._names: dict[int, dict[str, list[int | None]]] = {ROOT: {}}
        self._data: dict[int, tuple[bytes, list[Write | Resize]]] = {}

    @classmethod
    def along(cls, log: Sequence[Any], start: int = 0) -> Iterator[tuple["Image", list[Any]]]:
        """The disk before each change of it from ``start`` on and after the last, with the events up to there.

        One object, which goes on when the next is asked for.
        """
        image, events = cls(), []
        for number, step in enumerate(log):
            if isinstance(step, Mark):
                events.append(step.event)
                continue
            if number >= start:
                yield image, events
            for effect in step:
                image.apply(effect)
        yield image, events

    def apply(self, effect: Write | Resize | Name | Sync) -> None:
        """Go on by one effect."""
        match effect:
            case Write(inode) | Resize(inode):
                self._data[inode][1].append(effect)
            case Name(folder, name, inode, is_folder):
                self._names[folder].setdefault(name, [None]).append(inode)
                if is_folder:
                    self._names.setdefault(inode, {})
                elif inode is not None:
                    self._data.setdefault(inode, (b"", []))
            case Sync(inode) if inode in self._names:
                self._names[inode] = {name: values[-1:] for name, values in self._names[inode].items()}
            case Sync(inode):
                self._data[inode] = (self._content(inode, EVERYTHING), [])

    def left(self, choose: Choose) -> dict[Path, bytes | None]:
        """What a loss of power leaves: files with their content, and folders."""
        found: dict[Path, bytes | None] = {}
        contents: dict[int, bytes] = {}

        def walk(folder: int, path: Path) -> None:
            for name, values in self._names[folder].items():
                inode = choose(values) if len(values) > 1 else values[0]
                if inode is None:
                    continue
                if inode in self._names:
                    found[path / name] = None
                    walk(inode, path / name)
                    continue
                if inode not in contents:
                    contents[inode] = self._content(inode, choose)
                found[path / name] = contents[inode]

        walk(ROOT, Path())
        return found

    def _content(self, inode: int, choose: Choose) -> bytes:
        content, since = self._data[inode]
        for effect in since:
            content = _changed(content, effect, choose)
        return content


def _changed(content: bytes, effect: Write | Resize, choose: Choose) -> bytes:
    if isinstance(effect, Resize):
        return choose((content, content[: effect.size].ljust(effect.size, b"\0")))
    start, new = effect.offset, effect.content
    fate = choose(("lost", "cut", "unwritten sectors", "whole"))
    if fate == "lost":
        return content
    if fate == "cut":
        new = new[: choose(range(len(new)))]
    end = start + len(new)
    result = bytearray(content.ljust(end, b"\0"))
    for sector in range(start // SECTOR * SECTOR, end, SECTOR):
        part = slice(max(start, sector), min(end, sector + SECTOR))
        if fate != "unwritten sectors" or choose((False, True)):
            result[part] = new[part.start - start : part.stop - start]
    return bytes(result)


def put(left: dict[Path, bytes | None], folder: Path) -> None:
    """Make a real folder of what a loss of power left."""
    folder.mkdir()
    for path, content in left.items():
        if content is None:
            (folder / path).mkdir(mode=stat.S_IRWXU)
            continue
        descriptor = os.open(folder / path, os.O_WRONLY | os.O_CREAT, stat.S_IRUSR | stat.S_IWUSR)
        os.write(descriptor, content)
        os.close(descriptor)
