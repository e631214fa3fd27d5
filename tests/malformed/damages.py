"""What is done to the folder of a run, and how the folder is put back as it was."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from malformed.contents import chained

Damage = Callable[[], object]


def nothing() -> None:
    """For what is wrong on the command line alone."""


def holding(name: str, content: bytes) -> Damage:
    def damage() -> None:
        kept = stat.S_IMODE(Path(name).stat().st_mode) if Path(name).exists() else 0o600
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content)
        Path(name).chmod(kept)

    return damage


def without(*names: str) -> Damage:
    return lambda: [Path(name).unlink() for name in names]


def having_mode(name: str, mode: int) -> Damage:
    return lambda: Path(name).chmod(mode)


def together(*damages: Damage) -> Damage:
    return lambda: [damage() for damage in damages]


def forged(bodies: Iterable[bytes]) -> Damage:
    return holding("run/ledger.jsonl", chained(bodies))


KINDS = ("folder", "pipe", "link", "endless", "dangling", "loop", "void")


def becoming(name: str, kind: str) -> Damage:
    """Something else than a file, or than a folder, in its place."""

    def damage() -> None:
        path = Path(name)
        path.rename("elsewhere")
        match kind:
            case "folder":
                path.mkdir()
            case "pipe":
                os.mkfifo(path)
            case "link":
                path.symlink_to(Path("elsewhere").absolute())
            case "endless":
                path.symlink_to("/dev/zero")
            case "dangling":
                path.symlink_to("nowhere")
            case "loop":
                path.symlink_to(path.name)
            case "void":
                path.symlink_to("/dev/null")
            case "file":
                path.write_bytes(b"a file")

    return damage


_LONG_AGO = 1_000_000_000


class Workplace:
    """A folder that can be put back as it was, whatever stands there now."""

    def __init__(self, root: Path) -> None:
        self._root = root
        found = list(_walk(root))
        self._folders = [path for path in found if path.is_dir()][::-1]
        self._files = {path: (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) for path in found if path.is_file()}
        for path in self._files:
            os.utime(path, (_LONG_AGO, _LONG_AGO))

    def restore(self) -> None:
        for path in _walk(self._root):
            kind = path.lstat().st_mode
            if stat.S_ISDIR(kind):
                if path not in self._folders:
                    path.rmdir()
            elif not self._as_it_was(path):
                path.unlink()
        for folder in self._folders:
            folder.mkdir(mode=0o700, exist_ok=True)
        for path, (content, mode) in self._files.items():
            if not path.exists():
                path.write_bytes(content)
                path.chmod(mode)
                os.utime(path, (_LONG_AGO, _LONG_AGO))

    def _as_it_was(self, path: Path) -> bool:
        """Whether it is the file that was there; whoever writes to one makes it younger."""
        status = path.lstat()
        return path in self._files and (status.st_mtime, status.st_mode) == (_LONG_AGO, stat.S_IFREG | self._files[path][1])

    def stamp(self) -> dict[Path, tuple[int, ...]]:
        """What stands where, so that a later stamp tells whether a command changed anything, the lock of a run aside."""
        found = {}
        for path in _walk(self._root):
            if path.name != "lock":
                status = path.lstat()
                whole = () if stat.S_ISDIR(status.st_mode) else (status.st_ino, status.st_size, status.st_mtime_ns)
                found[path] = (status.st_mode, *whole)
        return found


def _walk(root: Path) -> Iterator[Path]:
    """All below a folder, what is inside first; no link is followed."""
    for folder, folders, files in os.walk(root, topdown=False):
        yield from (Path(folder, name) for name in (*files, *folders))
