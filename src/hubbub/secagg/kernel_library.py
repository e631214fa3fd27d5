"""The compiled kernel as a file: built by this machine's C compiler when its owner asks, loaded from where nobody else writes.

Loading a library runs what is in it. So it lies in a folder of its own in the cache, and it is taken only where no other user
could have put it there or changed it: file and folders belong to this user or to root, and others cannot write to them. The
file's name holds a digest of the source and of how it was compiled: a library of another version is not found.

Nothing here is built or loaded unless ``hubbub paillier kernel`` was run once.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from hubbub import files
from hubbub.errors import ConfigError

__all__ = ["build", "find", "folder", "open_library", "remove"]

_FLAGS = ("-O3", "-std=c11", "-shared", "-fPIC")
_COMPILERS = ("cc", "gcc", "clang")
_SECONDS = 120
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def folder() -> Path:
    """Where the library lies."""
    return files.cache_folder() / "kernel"


def find() -> Path | None:
    """The library of this version, if it was built.

    Raises:
        ConfigError: Somebody else could have put it there.
    """
    place = folder().resolve()
    if sys.platform != "linux" or not place.is_dir():
        return None
    built = sorted(place.glob(f"ifma-{_digest(_source(), *_texts(_FLAGS))}-*.so"))
    if not built:
        return None
    _require_own(place, built[0])
    return built[0]


def open_library(path: Path) -> ctypes.CDLL:
    """The library, with the types of its functions.

    Raises:
        ConfigError: It does not load, or this processor lacks what it needs.
    """
    long, word, data = ctypes.c_long, ctypes.c_uint64, ctypes.c_void_p
    try:
        library = ctypes.CDLL(str(path))
        supported = library.hubbub_supported()
    except (OSError, AttributeError) as error:
        raise ConfigError(f"{path} does not load: {error}; build it again with 'hubbub paillier kernel'") from error
    if not supported:
        raise ConfigError("this processor has no AVX-512 IFMA: the kernel needs it; everything works without, more slowly")
    library.hubbub_powers.argtypes = [data, data, word, long, long, data, long, data, data, long]
    library.hubbub_powers.restype = ctypes.c_int
    library.hubbub_combine.argtypes = [data, data, word, long, long, data, long, data, data, long, data, data, long, long]
    library.hubbub_combine.restype = ctypes.c_int
    library.hubbub_split.argtypes = [data, long, long, data, long]
    library.hubbub_split.restype = None
    return library


def build(check: Callable[[ctypes.CDLL], None]) -> Path:
    """Compile the kernel into the cache; what was there of it is replaced.

    Args:
        check: Raises an error where a library answers wrongly; then nothing is kept.

    Raises:
        ConfigError: There is no compiler, or none that can do it, or the folder is not safe.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise ConfigError(f"this machine is {sys.platform} on {platform.machine()}: the kernel is for Linux on x86_64")
    named = os.environ.get("CC")
    compiler = next(filter(None, map(shutil.which, [named] if named else _COMPILERS)), None)
    if compiler is None:
        raise ConfigError(f"no C compiler: looked for {named or ', '.join(_COMPILERS)}; install one, or name it in CC")
    place = folder().resolve()
    files.make_folder(place)
    _require_own(place)
    source = _source()
    which = _digest(compiler.encode(), _run([compiler, "--version"]))
    with tempfile.TemporaryDirectory(dir=place) as work:
        (Path(work) / "ifma.c").write_bytes(source)
        made = Path(work) / "ifma.so"
        _run([compiler, *_FLAGS, "-o", str(made), str(Path(work) / "ifma.c")])
        check(open_library(made))
        content = made.read_bytes()
    remove()
    path = place / f"ifma-{_digest(source, *_texts(_FLAGS))}-{which}.so"
    files.write_atomic(path, content, mode=0o700)
    return path


def remove() -> list[Path]:
    """Delete every version of the library; what was deleted."""
    gone = sorted(folder().glob("ifma-*.so"))
    for path in gone:
        files.remove(path)
    return gone


def _source() -> bytes:
    return Path(__file__).with_name("ifma.c").read_bytes()


def _texts(words: tuple[str, ...]) -> list[bytes]:
    return [word.encode() for word in words]


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()[:16]


def _run(command: list[str]) -> bytes:
    """What a command prints."""
    try:
        done = subprocess.run(  # noqa: S603 # this machine's compiler, when its owner asks for it
            command, capture_output=True, check=True, timeout=_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        told = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        raise ConfigError(
            f"{command[0]} cannot build the kernel: {told[:500] or error}; name another compiler in CC"
        ) from error
    return done.stdout


def _require_own(place: Path, *files_in_it: Path) -> None:
    """Refuse a folder, or files in it, that another user could have changed.

    Args:
        place: Without symbolic links, so that what is checked is what is loaded.
        files_in_it: Likewise.
    """
    for path in (*files_in_it, place, *place.parents):
        facts = os.lstat(path)
        # In a sticky folder, such as /tmp, nobody moves what belongs to others.
        sticky = bool(facts.st_mode & stat.S_ISVTX) and path in place.parents
        if facts.st_uid not in (os.geteuid(), 0):
            raise ConfigError(
                f"{path} belongs to another user: no kernel is loaded from there; set HUBBUB_CACHE to a folder of yours"
            )
        if stat.S_ISLNK(facts.st_mode) or (facts.st_mode & _OTHERS_WRITE and not sticky):
            raise ConfigError(
                f"others can change {path}: no kernel is loaded from there; remove it with 'hubbub paillier kernel --remove', "
                f"type 'chmod go-w' for the folder, then build it again"
            )
